"""voyage-4-nano: what its checkpoint adds to the layout of sentence-transformers. `bidirectional_qwen3` runs it.

    config.json          model_type qwen3, use_bidirectional_attention true, num_labels 2048
    model.safetensors    model.embed_tokens, model.layers.N…, model.norm of Qwen3 under their usual names, and
                         linear.weight [num_labels, hidden_size]

It was trained so that the first components of a vector are a vector too (Matryoshka representation learning), at the
whole width, a half, a quarter and an eighth of it. Sources: the model card of voyageai/voyage-4-nano, and how vLLM
(`models/voyage.py`) and text-embeddings-inference load it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thread_service.models.embedder import Role

MODEL = "voyageai/voyage-4-nano"
MAX_TOKENS = 32_000
USUAL_WIDTH = 1024
"""Of the 2048 components, unless another width is asked for."""

PROMPTS: Mapping[Role, str] = {
    "query": "Represent the query for retrieving supporting documents: ",
    "document": "Represent the document for retrieval: ",
}
"""For a checkpoint that brings none; the spaces at the end belong to them."""


def is_voyage(config: Mapping[str, Any]) -> bool:
    """Whether a config.json describes Qwen3 blocks that attend in both directions."""
    if config.get("model_type") != "qwen3":
        return False
    code = config.get("auto_map")
    names = [*_strings(config.get("architectures")), *_strings(list(code.values()) if isinstance(code, dict) else None)]
    return config.get("use_bidirectional_attention") is True or any("Bidirectional" in name for name in names)


def widths(whole: int) -> tuple[int, ...]:
    """The widths that vectors of `whole` components were trained for, widest first."""
    return tuple(whole // part for part in (1, 2, 4, 8) if whole % part == 0)


def _strings(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
