"""voyage-4-nano: a tiny random checkpoint in its layout against the formulas in float64; what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_error, loaded
from numpy.typing import NDArray
from tiny_voyage import CONFIG, HIDDEN, PROMPTS, WIDTH, reference, tensors, token_ids, write_tokenizer, write_voyage

from thread_service.models.embedder import EmbeddingFailed, Stamp
from thread_service.models.folder import read_folder
from thread_service.models.local import local_embedder

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'thread-node[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thread-node[torch]'")

TEXTS = [
    "",
    "a",
    "Ada keeps the ledger.",
    "Ünïcödé 👩‍👩‍👧 \x00 " * 3,
    "The tide came in, and the ledger was lost. " * 6,
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "any-name", **settings: Any) -> Path:
        return write_voyage(tmp_path / name, **settings)

    return write


def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)


def expected(texts: list[str], prompt: str, width: int = WIDTH) -> NDArray[np.float64]:
    return np.stack([unit(reference(token_ids(prompt + text))[:width]) for text in texts])


def config(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in (dict(CONFIG) | changes).items() if value is not None}


def test_vectors_are_those_of_the_formulas_whatever_the_batch(checkpoint: Callable[..., Path]) -> None:
    embedder = loaded(checkpoint())
    for role in ("query", "document"):
        np.testing.assert_allclose(embedder.embed(TEXTS, role), expected(TEXTS, PROMPTS[role]), atol=1e-5)
    # More rows and tokens than a batch takes: alone, among others, padded and not, in any order.
    random = np.random.default_rng(0)
    texts = [TEXTS[4][: random.integers(0, 90)] for _ in range(150)]
    together = embedder.embed(texts, "document")
    np.testing.assert_allclose(together[::10], expected(texts[::10], PROMPTS["document"]), atol=1e-5)
    order = random.permutation(len(texts))
    np.testing.assert_allclose(embedder.embed([texts[i] for i in order], "document"), together[order], atol=1e-5)
    alone = np.vstack([embedder.embed([text], "document") for text in texts[:20]])
    np.testing.assert_allclose(alone, together[:20], atol=1e-5)
    assert together.dtype == np.float32


def test_vectors_of_a_long_text_are_those_of_the_formulas(checkpoint: Callable[..., Path]) -> None:
    long = "".join(map(chr, np.random.default_rng(2).integers(32, 127, 2_500)))
    found = loaded(checkpoint()).embed([long], "document")
    np.testing.assert_allclose(found, expected([long], PROMPTS["document"]), atol=1e-5)


def test_queries_and_documents_differ_and_the_published_prompts_are_known(checkpoint: Callable[..., Path]) -> None:
    own = loaded(checkpoint("own"))
    without = loaded(checkpoint("without", config_sentence_transformers=None))
    query, document = own.embed(["ledger"], "query"), own.embed(["ledger"], "document")
    assert np.abs(query - document).max() > 0.01
    np.testing.assert_array_equal(without.embed(["ledger"], "query"), query)
    np.testing.assert_array_equal(without.embed(["ledger"], "document"), document)
    other = loaded(checkpoint("other", config_sentence_transformers={"prompts": {"query": "q: ", "document": ""}}))
    np.testing.assert_allclose(other.embed(["ledger"], "query"), expected(["ledger"], "q: "), atol=1e-5)


def test_a_cut_vector_is_renormalised(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    for width in (64, 32, 16, 8):
        embedder = loaded(folder, width=width)
        assert embedder.stamp is not None
        assert (embedder.stamp.space, embedder.stamp.width) == (f"any-name@{width}", width)
        vectors = embedder.embed(TEXTS, "document")
        np.testing.assert_allclose(vectors, expected(TEXTS, PROMPTS["document"], width), atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    for width in (24, 128):
        assert f"--embedding-dim {width}: the vectors of {folder} can have 64, 32, 16, 8" in load_error(
            folder, width=width
        )


def test_of_2048_components_1024_are_kept_unless_the_index_has_others(checkpoint: Callable[..., Path]) -> None:
    head = np.random.default_rng(1).normal(size=(2048, HIDDEN)).astype(np.float32)
    folder = checkpoint(config=config(num_labels=2048), weights=tensors() | {"linear.weight": head})
    model = str(folder)

    def written(width: int, by: str = model) -> Stamp:
        return Stamp(f"voyage@{width}", by, None, width)

    for asked, stored, width in (
        (None, None, 1024),
        (None, written(512), 512),
        (None, written(384), 1024),
        (None, written(512, "other"), 1024),
        (2048, written(512), 2048),
    ):
        embedder = local_embedder(model, models_dir=Path("unused"), width=asked, stored=stored)
        assert embedder.width_by_files() == width
    assert loaded(folder).embed(["a"], "query").shape == (1, 1024)


def test_a_text_over_the_limit_is_the_average_of_its_windows(checkpoint: Callable[..., Path]) -> None:
    embedder = loaded(checkpoint(sentence_bert_config={"max_seq_length": 60}))
    text = "The ledger of the tides, kept by Ada and lost at sea. " * 4
    ids = token_ids(PROMPTS["document"] + text)
    windows = [ids[start : start + 60] for start in range(0, len(ids), 60)]
    assert len(windows[-1]) < 60
    whole = unit(np.sum([len(window) * unit(reference(window)) for window in windows], axis=0))
    np.testing.assert_allclose(embedder.embed(["a", text], "document")[1], whole, atol=1e-5)
    assert embedder.count_tokens([text]) == len(token_ids(text))


def test_the_limit_is_that_of_the_model_card(checkpoint: Callable[..., Path]) -> None:
    assert read_folder([checkpoint()], ("safetensors",)).max_tokens == 32_000


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["Qwen3Model"], "auto_map": None},
        {"use_bidirectional_attention": None, "auto_map": None},
        {"use_bidirectional_attention": None, "architectures": None},
    ],
)
def test_the_config_says_that_it_is_this_model(checkpoint: Callable[..., Path], changes: dict[str, Any]) -> None:
    folder = checkpoint(config=config(**changes))
    np.testing.assert_allclose(loaded(folder).embed(TEXTS, "query"), expected(TEXTS, PROMPTS["query"]), atol=1e-5)


def test_several_files_are_as_good_as_one_and_a_missing_one_is_named(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint(shards=3)
    np.testing.assert_allclose(loaded(folder).embed(TEXTS, "query"), expected(TEXTS, PROMPTS["query"]), atol=1e-5)
    shard = folder / "model-00002-of-00003.safetensors"
    whole = shard.read_bytes()
    shard.unlink()
    assert f"{shard} is missing, which model.safetensors.index.json names" in load_error(folder)
    shard.write_bytes(whole[:-10])
    assert f"{shard} is not a safetensors file" in load_error(folder)
    shard.write_bytes(whole)
    index = folder / "model.safetensors.index.json"
    for damage in ("{", "[]", '{"weight_map": {"a": "../elsewhere.safetensors"}}', '{"weight_map": {"a": 1}}'):
        index.write_text(damage)
        assert f"{index} is not an index of safetensors files" in load_error(folder)


def test_a_tensor_too_few_too_many_or_of_another_size_is_named(checkpoint: Callable[..., Path]) -> None:
    good = tensors()
    lost = "model.layers.1.self_attn.k_norm.weight"
    few = checkpoint("few", weights={name: tensor for name, tensor in good.items() if name != lost})
    assert f"{few}/model.safetensors lacks the tensor {lost}" in load_error(few)
    headless = checkpoint("headless", weights={name: good[name] for name in good if name != "linear.weight"})
    assert "lacks the tensor linear.weight" in load_error(headless)
    many = checkpoint("many", weights=good | {"lm_head.weight": good["model.embed_tokens.weight"]})
    assert f"{many}/model.safetensors holds the tensor lm_head.weight" in load_error(many)
    wide = checkpoint("wide", config=config(hidden_size=48))
    error = load_error(wide)
    assert f"{wide}/model.safetensors: the tensor linear.weight is 64×32, {wide}/config.json asks for 64×48" in error
    odd = checkpoint("odd", weights=good | {"linear.weight": np.full((WIDTH, HIDDEN), np.nan, np.float32)})
    assert f"{odd}/model.safetensors gives a vector that is not finite" in load_error(odd)


def test_settings_that_would_give_other_vectors_are_refused(checkpoint: Callable[..., Path]) -> None:
    headless = checkpoint("headless", config=config(num_labels=None))
    assert f"{headless}/config.json does not say num_labels" in load_error(headless)
    sliding = checkpoint("sliding", config=config(use_sliding_window=True, sliding_window=8, max_window_layers=1))
    assert f"{sliding}/config.json asks for a sliding window" in load_error(sliding)
    last = checkpoint("last", **{"1_Pooling/config": {"pooling_mode": "lasttoken"}})
    assert "other layers than mean pooling" in load_error(last)
    damaged = checkpoint("damaged", config=config(num_key_value_heads="two"))
    assert f"{damaged}/config.json is not a Qwen3 model's" in load_error(damaged)


def test_a_tokenizer_of_another_model_is_named(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    write_tokenizer(folder / "tokenizer.json", extra=9)
    assert f"{folder}/tokenizer.json has a token 265 but {folder}/config.json says the model knows 260" in load_error(
        folder
    )
    (folder / "tokenizer.json").write_text(json.dumps({"model": {}}))
    assert f"{folder}/tokenizer.json is not a tokenizer" in load_error(folder)


def test_without_memory_for_a_batch_half_of_it_is_tried(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from thread_service.models import torch_model

    embedder = loaded(checkpoint())
    whole = torch_model.TorchModel._pooled
    sizes: list[int] = []

    def scarce(model: Any, ids: Any, mask: Any) -> Any:
        sizes.append(len(ids))
        if ids.shape[0] * ids.shape[1] > 200:
            raise torch.OutOfMemoryError("not enough")
        return whole(model, ids, mask)

    monkeypatch.setattr(torch_model.TorchModel, "_pooled", scarce)
    texts = [f"text {number}" for number in range(7)]
    np.testing.assert_allclose(embedder.embed(texts, "query"), expected(texts, PROMPTS["query"]), atol=1e-5)
    assert sizes[0] == 7
    with pytest.raises(EmbeddingFailed, match="no memory on cpu for a text of 357 tokens"):
        embedder.embed(["x" * 300], "query")


def test_odd_texts_have_finite_unit_vectors_and_what_is_not_unicode_is_refused(checkpoint: Callable[..., Path]) -> None:
    embedder = loaded(checkpoint("odd", config_sentence_transformers={"prompts": {"query": " ", "document": ""}}))
    vectors = embedder.embed(["", " \t\n", "\x00", "👩‍👩‍👧", "x" * 3_000], "document")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    alone = embedder.embed(["abc"], "document")
    np.testing.assert_allclose(embedder.embed(["", "abc"], "document")[1:], alone, atol=1e-5)
    with pytest.raises(EmbeddingFailed, match="could not be cut into tokens"):
        embedder.embed(["\ud800"], "query")


def test_cuda_without_a_device_is_an_error_with_a_remedy(
    checkpoint: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no CUDA device" in load_error(checkpoint(), wish="cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_vectors_are_those_of_the_formulas_in_bfloat16(checkpoint: Callable[..., Path]) -> None:
    embedder = loaded(checkpoint(), wish="cuda")
    vectors = embedder.embed(TEXTS, "document")
    assert (vectors * expected(TEXTS, PROMPTS["document"])).sum(axis=1).min() > 0.999
