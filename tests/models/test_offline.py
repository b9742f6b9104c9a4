"""With the models folder filled, a node needs no network; and one whose model is in ONNX form needs no torch."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_voyage import write_voyage

sys.path.append(str(Path(__file__).parents[1] / "node"))

from in_process import InProcess, document, ids

from thread_service.models import voyage
from thread_service.models.choice import choose
from thread_service.models.embedder import Stamp
from thread_service.settings import Settings

COMMIT = "0123456789abcdef" * 2 + "01234567"


def fill_models_folder(models_dir: Path) -> None:
    """As the Hub's client leaves it: files under their hashes, and a tree of links for the commit."""
    cache = models_dir / ("models--" + voyage.MODEL.replace("/", "--"))
    blobs, snapshot = cache / "blobs", cache / "snapshots" / COMMIT
    upstream = write_voyage(models_dir / "upstream")
    for number, path in enumerate(sorted(path for path in upstream.rglob("*") if path.is_file())):
        blob = blobs / f"{number:064x}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blob)
        link = snapshot / path.relative_to(upstream)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(COMMIT)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    called: list[object] = []

    def refuse(_: socket.socket, address: object) -> None:
        called.append(address)
        raise ConnectionRefusedError(address)

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *address, **_: refuse(None, address))  # type: ignore[arg-type]
    return called


def test_a_node_starts_and_answers_without_a_network(
    tmp_path: Path, no_network: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'thread-node[torch]'")
    monkeypatch.setenv("RAO_HOME", str(tmp_path / "home"))
    settings = Settings(embedding_model=voyage.MODEL, device="cpu", embedding_dim=32)
    fill_models_folder(tmp_path / "home" / "models" / "huggingface")
    written = Stamp("voyage-4-nano@32", voyage.MODEL, COMMIT, 32)
    for stored in (None, written):  # the second start is of a filled index, without any flag
        embedder = choose(settings, stored, {}).embedder
        node = InProcess(tmp_path / "data", embedder)  # type: ignore[arg-type]
        try:
            if stored is None:
                node.file("ada", document("The tide came in.", id="tide"), document("Ledgers are kept.", id="ledger"))
            assert ids(node.search("ada", "The tide came in."))[0] == "tide"
        finally:
            node.close()
        assert embedder.stamp is not None
        assert (embedder.stamp.space, embedder.stamp.revision) == ("voyage-4-nano@32", COMMIT)
        settings = Settings()
    assert no_network == []


def test_neither_the_help_page_nor_a_model_in_onnx_form_imports_torch(model_folder: Callable[..., Path]) -> None:
    script = f"""
import contextlib, sys
from pathlib import Path
from thread_service import app, cli
from thread_service.models.local import local_embedder

with contextlib.suppress(SystemExit):
    cli.main(["--help"])
embedder = local_embedder({str(model_folder())!r}, models_dir=Path("unused"), wish="auto")
embedder.load()
assert embedder.embed(["alpha"], "query").shape == (1, 8)
print(sorted({{"torch", "transformers", "safetensors"}} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    assert done.stdout.endswith("[]\n")
