"""A checkpoint in the layout of voyage-4-nano, random and tiny, and what its vectors are: an independent float64
implementation in NumPy of Qwen3 (RMSNorm before each block and on each head, rotary positions, grouped queries, SwiGLU)
that attends in both directions, with the linear layer on each token before the mean, as the model card has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LAYERS, HIDDEN, HEADS, KEY_HEADS, HEAD, INNER, WIDTH = 3, 32, 4, 2, 16, 48, 64
THETA, EPSILON = 1_000_000.0, 1e-6
PAD = 256
CONFIG: Mapping[str, Any] = {
    "architectures": ["Qwen3BidirectionalModel"],
    "auto_map": {"AutoModel": "modeling.Qwen3BidirectionalModel"},
    "attention_bias": False,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": 40_960,
    "model_type": "qwen3",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KEY_HEADS,
    "num_labels": WIDTH,
    "pad_token_id": PAD,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_bidirectional_attention": True,
    "vocab_size": 260,
}
PROMPTS = {
    "query": "Represent the query for retrieving supporting documents: ",
    "document": "Represent the document for retrieval: ",
}
SETTINGS: Mapping[str, Any] = {
    "config": CONFIG,
    "config_sentence_transformers": {"prompts": PROMPTS, "default_prompt_name": None},
    "modules": [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ],
    "1_Pooling/config": {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True, "include_prompt": True},
}

Tensors = dict[str, NDArray[np.float32]]


def tensors() -> Tensors:
    random = np.random.default_rng(4)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (CONFIG["vocab_size"], HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
                "self_attn.k_proj": (KEY_HEADS * HEAD, HIDDEN),
                "self_attn.v_proj": (KEY_HEADS * HEAD, HIDDEN),
                "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
                "self_attn.q_norm": (HEAD,),
                "self_attn.k_norm": (HEAD,),
                "mlp.gate_proj": (INNER, HIDDEN),
                "mlp.up_proj": (INNER, HIDDEN),
                "mlp.down_proj": (HIDDEN, INNER),
                "input_layernorm": (HIDDEN,),
                "post_attention_layernorm": (HIDDEN,),
            }.items()
        }
    shapes |= {"model.norm.weight": (HIDDEN,), "linear.weight": (WIDTH, HIDDEN)}
    # Large enough for attention to prefer some tokens, and for every part to count.
    return {
        name: (random.normal(size=shape) * (0.4 if len(shape) > 1 else 0.3) + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_voyage(folder: Path, *, shards: int = 1, weights: Tensors | None = None, **json_files: Any) -> Path:
    """A complete checkpoint; `json_files` replaces or, with None, leaves out a settings file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, tensors() if weights is None else weights, shards)
    write_tokenizer(folder / "tokenizer.json")
    for file, content in (dict(SETTINGS) | json_files).items():
        if content is not None:
            path = folder / f"{file}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(content))
    return folder


def write_weights(folder: Path, weights: Tensors, shards: int) -> None:
    from safetensors.numpy import save_file  # comes with torch, which a test may have to do without

    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(weights)
    parts = {f"model-{part + 1:05}-of-{shards:05}.safetensors": names[part::shards] for part in range(shards)}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, folder / file, metadata={"format": "pt"})
    places = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def write_tokenizer(path: Path, extra: int = 0) -> None:
    """A token for each byte, as Qwen's tokenizer falls back to, without special tokens around a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>", *[f"<|extra_{index}|>" for index in range(extra)]])
    tokenizer.save(str(path))


def token_ids(text: str) -> list[int]:
    """The ids of the text's bytes in `write_tokenizer`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [alphabet.index(character) for word, _ in tokenizer.pre_tokenize_str(text) for character in word]


def reference(ids: list[int], weights: Tensors | None = None) -> NDArray[np.float64]:
    """[WIDTH], the mean before it is brought to unit length, of one text's tokens."""
    held = {name: tensor.astype(np.float64) for name, tensor in (weights or tensors()).items()}
    states = held["model.embed_tokens.weight"][ids]
    for layer in range(LAYERS):
        block = {
            name.removeprefix(f"model.layers.{layer}.").removesuffix(".weight"): tensor
            for name, tensor in held.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        states = states + _attention(_norm(states, block["input_layernorm"]), block)
        inner = _norm(states, block["post_attention_layernorm"])
        gate = inner @ block["mlp.gate_proj"].T
        inner = gate / (1 + np.exp(-gate)) * (inner @ block["mlp.up_proj"].T)
        states = states + inner @ block["mlp.down_proj"].T
    states = _norm(states, held["model.norm.weight"])
    mean: NDArray[np.float64] = (states @ held["linear.weight"].T).mean(axis=0)
    return mean


def _attention(states: NDArray[np.float64], block: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    def heads(name: str, count: int) -> NDArray[np.float64]:
        return (states @ block[f"self_attn.{name}"].T).reshape(len(states), count, HEAD)

    queries = _rotated(_norm(heads("q_proj", HEADS), block["self_attn.q_norm"]))
    keys = _rotated(_norm(heads("k_proj", KEY_HEADS), block["self_attn.k_norm"]))
    values = heads("v_proj", KEY_HEADS)
    seen = []
    for head in range(HEADS):
        group = head * KEY_HEADS // HEADS
        scores = queries[:, head] @ keys[:, group].T / np.sqrt(HEAD)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        seen.append(weights / weights.sum(axis=1, keepdims=True) @ values[:, group])
    return np.concatenate(seen, axis=1) @ block["self_attn.o_proj"].T


def _rotated(states: NDArray[np.float64]) -> NDArray[np.float64]:
    """[s, heads, HEAD]: component i and i + HEAD / 2 are turned together, by the position times THETA^(−2i / HEAD)."""
    angles = np.arange(len(states))[:, None] * THETA ** (-np.arange(0, HEAD, 2) / HEAD)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    left, right = states[..., : HEAD // 2], states[..., HEAD // 2 :]
    return np.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


def _norm(states: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return states / np.sqrt((states**2).mean(axis=-1, keepdims=True) + EPSILON) * scale
