"""The local default follows the device; the width follows the flag, the index, the model."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_voyage import write_voyage

from thread_service.models import device, voyage
from thread_service.models.choice import CPU_MODEL, Choice, choose
from thread_service.models.embedder import Stamp
from thread_service.models.local import LocalEmbedder
from thread_service.settings import Settings, SettingsError


@pytest.fixture(autouse=True)
def with_torch_and_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_has_cuda_device", lambda: True)
    monkeypatch.setattr(device, "has_torch", lambda: True)


def written_by(model: str, width: int) -> Stamp:
    return Stamp(f"{model}@{width}", model, None, width)


def width_of(choice: Choice) -> int | None:
    assert isinstance(choice.embedder, LocalEmbedder)
    return choice.embedder.width_by_files()


def test_on_cuda_the_default_is_voyage_4_nano(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose(Settings(), None, {})
    assert (choice.embedder.model, choice.why) == (
        "voyageai/voyage-4-nano",
        "the default on CUDA and without MISTRAL_API_KEY",
    )
    assert choice.queue["batch_bytes"] == 131_072
    choice = choose(Settings(embedder="local"), None, {"MISTRAL_API_KEY": "key"})
    assert (choice.embedder.model, choice.why) == ("voyageai/voyage-4-nano", "the default on CUDA")
    on_cpu = choose(Settings(device="cpu"), None, {})
    assert (on_cpu.embedder.model, on_cpu.queue["slots"]) == (CPU_MODEL, 2)  # a query waits for no documents
    monkeypatch.setattr(device, "has_torch", lambda: False)
    for wish in ("auto", "cuda"):
        choice = choose(Settings(device=wish), None, {})  # type: ignore[arg-type]
        assert choice.embedder.model == CPU_MODEL


def test_what_wrote_the_index_goes_before_the_default() -> None:
    choice = choose(Settings(), written_by(CPU_MODEL, 384), {})
    assert (choice.embedder.model, choice.why) == (CPU_MODEL, "it wrote the index")


def test_the_width_is_asked_for_or_that_of_the_index_or_the_models(tmp_path: Path) -> None:
    folder = str(write_voyage(tmp_path / "voyage"))
    asked = Settings(embedding_model=folder, embedding_dim=16)
    assert width_of(choose(asked, written_by(folder, 32), {})) == 16
    assert width_of(choose(Settings(), written_by(folder, 32), {})) == 32
    assert width_of(choose(Settings(embedding_model=folder), written_by("other", 32), {})) == 64
    assert width_of(choose(Settings(embedding_model=folder), None, {})) == 64


def test_a_width_for_a_hosted_model_is_refused() -> None:
    with pytest.raises(SettingsError, match="--embedding-dim"):
        choose(Settings(embedder="mistral", embedding_dim=256), None, {})


def test_the_older_name_of_the_default_stands_for_it() -> None:
    from thread_service.launch_lines import original_model

    assert original_model("rao-studios/voyage-4-nano-mlx-8bit")[0] == voyage.MODEL
