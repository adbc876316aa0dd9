"""Mixture-of-experts layers through one registered function, so that a token's result does not know its neighbours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from polybatch import ops  # noqa: F401  registers the operators

IMPLEMENTATION = "polybatch"
"""The name under which the function is registered with transformers."""


def experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' experts signature over ``polybatch::expert_linear``.

    ``hidden_states`` [tokens, hidden], ``top_k_index`` and ``top_k_weights`` [tokens, top_k]; returns [tokens, hidden].
    """
    top_k = top_k_index.shape[-1]
    rows = hidden_states.repeat_interleave(top_k, dim=0)
    expert_index = top_k_index.reshape(-1)
    hidden = _project(module, "gate_up_proj" if module.has_gate else "up_proj", rows, expert_index)
    hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
    hidden = _project(module, "down_proj", hidden, expert_index)
    if module.has_post_expert_norm:
        hidden = module.post_expert_norm(hidden)
    weighted = hidden * top_k_weights.reshape(-1, 1)
    return weighted.view(-1, top_k, weighted.shape[-1]).sum(dim=1).to(hidden_states.dtype)


def _project(module: Any, name: str, rows: Tensor, expert_index: Tensor) -> Tensor:
    weight = getattr(module, name)
    bias = getattr(module, f"{name}_bias") if module.has_bias else None
    if module.is_transposed:
        weight = weight.transpose(-1, -2)
    return torch.ops.polybatch.expert_linear(rows, weight, bias, expert_index)  # type: ignore[no-any-return]


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, experts_forward)
