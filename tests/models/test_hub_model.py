"""A model from the Hub: only the files it needs, weights last, offline once it is there. No network: a fake Hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from tiny_voyage import write_voyage

from thread_service.models import device
from thread_service.models.embedder import ModelUnavailable, Stamp, Status
from thread_service.models.local import LocalEmbedder, local_embedder

COMMIT = "c0ffee" * 6 + "c0ff"
UNNEEDED = {"README.md", "pytorch_model.bin", "modeling.py"}


class FakeHub:
    """Serves one folder as `org/tiny`, writing the cache as the real client does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reachable = True
        self.fetched: list[str] = []
        self.during_download: Callable[[str], None] = lambda name: None
        self.asked_for: list[str | None] = []
        """Revisions; with a commit as its name a snapshot is that commit's, else the newest."""

    def names(self) -> list[str]:
        return [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()]

    def model_info(self, _api: Any, repository: str, *, revision: str | None, files_metadata: bool) -> Any:
        assert files_metadata
        self.asked_for.append(revision)
        if not self.reachable:
            raise ConnectionError("connection refused\nand a long explanation")
        files = [SimpleNamespace(rfilename=name, size=(self.folder / name).stat().st_size) for name in self.names()]
        return SimpleNamespace(siblings=files, sha=COMMIT)

    def snapshot_download(
        self, repository: str, *, revision: str | None, cache_dir: Path, allow_patterns: list[str], tqdm_class: Any
    ) -> str:
        cache = Path(cache_dir) / f"models--{repository.replace('/', '--')}"
        commit = revision if revision is not None and len(revision) == len(COMMIT) else COMMIT
        snapshot = cache / "snapshots" / commit
        if commit != revision:
            (cache / "refs").mkdir(parents=True, exist_ok=True)
            (cache / "refs" / (revision or "main")).write_text(commit)
        bar = tqdm_class(desc="bytes", unit="B", total=0)
        for name in allow_patterns:
            target = snapshot / name
            target.parent.mkdir(parents=True, exist_ok=True)
            size = (self.folder / name).stat().st_size
            for part in (size // 2, size - size // 2):
                self.during_download(name)
                bar.update(part)
            shutil.copy(self.folder / name, target)
            self.fetched.append(name)
        return str(snapshot)


def serve(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(folder)
    for unneeded in UNNEEDED:
        (folder / unneeded).write_bytes(b"unneeded")
    monkeypatch.setattr(
        huggingface_hub.HfApi, "model_info", lambda api, *args, **kwargs: fake.model_info(api, *args, **kwargs)
    )
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


@pytest.fixture
def hub(model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = serve(model_folder("upstream"), monkeypatch)
    (fake.folder / "onnx" / "model_O3.onnx").write_bytes(b"unneeded")
    (fake.folder / "onnx" / "model.onnx_data").write_bytes(bytes(1000))
    return fake


@pytest.fixture
def voyage_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    for module in ("torch", "transformers"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install 'thread-node[torch]'")
    return serve(write_voyage(tmp_path / "upstream", shards=2), monkeypatch)


def tiny(tmp_path: Path, spec: str = "org/tiny", *, written: Stamp | None = None) -> LocalEmbedder:
    return local_embedder(spec, models_dir=tmp_path / "models", threads=1, stored=written)


def test_the_needed_files_are_fetched_and_the_graph_comes_last(hub: FakeHub, tmp_path: Path) -> None:
    embedder = tiny(tmp_path)
    embedder.load()
    assert set(hub.fetched) == set(hub.names()) - {*UNNEEDED, "onnx/model_O3.onnx"}
    assert hub.fetched[-2:] == ["onnx/model.onnx_data", "onnx/model.onnx"]
    assert embedder.stamp is not None
    assert (embedder.stamp.space, embedder.stamp.model) == ("tiny@8", "org/tiny")
    assert embedder.stamp.revision == COMMIT


def test_progress_grows_to_the_whole(hub: FakeHub, tmp_path: Path) -> None:
    embedder = tiny(tmp_path)
    seen: list[Status] = []
    hub.during_download = lambda name: seen.append(embedder.status)
    embedder.load()
    fractions = [status.fraction for status in seen]
    assert {status.phase for status in seen} == {"downloading"}
    assert fractions[0] == 0
    assert fractions == sorted(fractions)
    assert 0.5 < fractions[-1] < 1
    assert str(Status("downloading", 0.429)) == "embedding model downloading 42%"


@pytest.mark.parametrize("spec", ["org/tiny", "org/tiny@v1.0"])
def test_a_model_that_is_there_needs_no_network(hub: FakeHub, tmp_path: Path, spec: str) -> None:
    tiny(tmp_path, spec).load()
    hub.reachable = False
    again = tiny(tmp_path, spec)
    again.load()
    assert again.status.phase == "ready"


def test_a_filled_index_fetches_the_commit_that_wrote_it(hub: FakeHub, tmp_path: Path) -> None:
    older = "0ld" * 13 + "0"
    for stored, asked in (("org/tiny", older), ("org/other", None)):
        embedder = tiny(tmp_path / stored, written=Stamp("tiny@8", stored, older, 8))
        embedder.load()
        assert embedder.stamp is not None
        assert (hub.asked_for[-1], embedder.stamp.revision) == (asked, asked or COMMIT)
    hub.reachable = False
    tiny(tmp_path / "org/tiny", written=Stamp("tiny@8", "org/tiny", older, 8)).load()


def test_a_revision_that_is_asked_for_goes_before_the_one_that_wrote_the_index(hub: FakeHub, tmp_path: Path) -> None:
    tiny(tmp_path, "org/tiny@v1.0", written=Stamp("tiny@8", "org/tiny", "0" * 40, 8)).load()
    assert hub.asked_for == ["v1.0"]


def test_another_commit_that_is_here_is_better_than_none_without_a_network(hub: FakeHub, tmp_path: Path) -> None:
    tiny(tmp_path).load()
    hub.reachable = False
    embedder = tiny(tmp_path, written=Stamp("tiny@8", "org/tiny", "0" * 40, 8))
    embedder.load()
    assert embedder.stamp is not None
    assert embedder.stamp.revision == COMMIT


def test_an_interrupted_download_is_taken_up_again(hub: FakeHub, tmp_path: Path) -> None:
    def break_off(name: str) -> None:
        if name == "onnx/model.onnx":
            raise ConnectionError("reset by peer")

    hub.during_download = break_off
    embedder = tiny(tmp_path)
    with pytest.raises(ModelUnavailable, match="reset by peer"):
        embedder.load()
    hub.during_download = lambda name: None
    embedder.load()
    assert embedder.status.phase == "ready"


def test_closing_ends_a_download(hub: FakeHub, tmp_path: Path) -> None:
    embedder = tiny(tmp_path)
    hub.during_download = lambda name: embedder.close()
    with pytest.raises(ModelUnavailable, match="stopped"):
        embedder.load()
    assert hub.fetched == []


def test_an_unreachable_hub_is_an_error_with_a_remedy(hub: FakeHub, tmp_path: Path) -> None:
    hub.reachable = False
    with pytest.raises(ModelUnavailable) as caught:
        tiny(tmp_path).load()
    assert str(caught.value) == (
        "org/tiny could not be downloaded from the Hugging Face Hub (connection refused): "
        "check the name and the network, or name a directory that holds the model"
    )


def test_a_repository_without_onnx_files_is_refused_before_the_download(hub: FakeHub, tmp_path: Path) -> None:
    shutil.rmtree(hub.folder / "onnx")
    with pytest.raises(ModelUnavailable, match=r"no \.onnx file in org/tiny on the Hub"):
        tiny(tmp_path).load()
    assert hub.fetched == []


def test_of_safetensors_the_index_comes_first_and_every_shard_is_needed(voyage_hub: FakeHub, tmp_path: Path) -> None:
    tiny(tmp_path).load()
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert set(voyage_hub.fetched) == set(voyage_hub.names()) - UNNEEDED
    assert sorted(voyage_hub.fetched[-2:]) == shards
    embedder = tiny(tmp_path)
    source = embedder.source
    found = source.here()
    assert found is not None
    assert found.revision == COMMIT
    (found.roots[0] / shards[1]).unlink()
    assert source.here() is None
    embedder.load()
    assert source.here() == found
    assert embedder.stamp is not None
    assert (embedder.stamp.space, embedder.stamp.revision) == ("tiny@64", COMMIT)


def test_weights_that_nothing_here_can_run_are_refused_before_the_download(
    voyage_hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(ModelUnavailable, match=r"org/tiny on the Hub, and model\.safetensors\.index\.json needs torch"):
        tiny(tmp_path).load()
    assert voyage_hub.fetched == []
