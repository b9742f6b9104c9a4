"""The network of voyage-4-nano: transformers' own Qwen3 blocks, attending in both directions, and a linear layer.

    hidden states of Qwen3 → (mean over the tokens, in `torch_model`) → linear, hidden_size → num_labels

The checkpoint's own code applies the linear layer to each token and takes the mean afterwards. That is the same, as the
layer has no bias, and it would cost a product for each token instead of one for each text.
"""

from __future__ import annotations

import torch
from transformers import Qwen3Config, Qwen3Model
from transformers.models.qwen3.modeling_qwen3 import Qwen3PreTrainedModel

from thread_service.models.checkpoint import first_line, load_model
from thread_service.models.embedder import ModelUnavailable
from thread_service.models.folder import ModelFolder


class BidirectionalQwen3(Qwen3PreTrainedModel):  # type: ignore[misc]  # transformers is not type-checked
    """The names of its tensors are those of the checkpoint."""

    def __init__(self, config: Qwen3Config) -> None:
        super().__init__(config)
        self.model = Qwen3Model(config)
        for layer in self.model.layers:
            layer.self_attn.is_causal = False  # what counts where no mask is given
        self.linear = torch.nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Hidden states [n, s, hidden_size]. `mask` [n, s] is true at tokens; None: there is no padding."""
        masks = {"full_attention": None if mask is None else mask[:, None, None, :]}
        states: torch.Tensor = self.model(input_ids=ids, attention_mask=masks, use_cache=False).last_hidden_state
        return states


def load_qwen3(folder: ModelFolder, dtype: torch.dtype) -> BidirectionalQwen3:
    """Raises ModelUnavailable, naming the file and the tensor at fault."""
    try:
        config = Qwen3Config.from_pretrained(folder.config.parent, local_files_only=True)
    except Exception as error:
        raise ModelUnavailable(f"{folder.config} is not a Qwen3 model's: {first_line(error)}") from error
    if set(config.layer_types) != {"full_attention"}:
        raise ModelUnavailable(f"{folder.config} asks for a sliding window of attention, which is not supported")
    model = load_model(BidirectionalQwen3, folder, config, dtype=dtype, strict=True)
    assert isinstance(model, BidirectionalQwen3)
    return model
