"""A real ONNX model, small enough to compute by hand: a table of 8-d token vectors, read through a word tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "alpha", "beta", "gamma", "delta", "query:", "passage:", "one", "two"]
TABLE = np.random.default_rng(7).normal(size=(len(WORDS), 8)).astype(np.float32)
MAX_TOKENS = 6  # four words and two special tokens


def write_onnx(path: Path, table: NDArray[np.float32], output: str = "last_hidden_state") -> None:
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "s"]) for name in ("input_ids", "attention_mask")
    ]
    hidden = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["b", "s", table.shape[1]])
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], [output])],
        "lookup",
        inputs,
        [hidden],
        [numpy_helper.from_array(table, "table")],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)


def write_tokenizer(path: Path, *, special_tokens: bool = True) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special_tokens:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    # Published tokenizers carry such settings; left on, they would cut and pad every text to three tokens.
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=3)
    tokenizer.save(str(path))


def write_model(folder: Path, **json_files: Any) -> Path:
    """A complete model; `json_files` replaces or, with None, leaves out a settings file."""
    write_onnx(folder / "onnx" / "model.onnx", TABLE)
    write_tokenizer(folder / "tokenizer.json")
    settings = {
        "config": {"hidden_size": 8, "vocab_size": len(WORDS), "max_position_embeddings": 512},
        "sentence_bert_config": {"max_seq_length": MAX_TOKENS},
        "modules": [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}],
        "1_Pooling/config": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False},
    }
    for file, content in (settings | json_files).items():
        if content is not None:
            path = folder / f"{file}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
    return folder
