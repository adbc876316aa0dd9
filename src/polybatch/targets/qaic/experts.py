"""Mixture-of-experts layers as dense products: every expert sees every token, and the router's weights pick.

The graph must serve one token and a whole prefill chunk with fixed shapes. Gathering each token's expert weights would
multiply the weights read by the tokens; this reads each expert once per step and is only arithmetic to the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

IMPLEMENTATION = "polybatch_qaic"
"""The name under which the function is registered with transformers."""


def dense_experts_forward(module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' experts signature: hidden_states [tokens, hidden], top_k_* [tokens, top_k]; [tokens, hidden]."""
    hidden = _project(module, "gate_up_proj" if module.has_gate else "up_proj", hidden_states[None])
    hidden = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
    hidden = _project(module, "down_proj", hidden)
    if module.has_post_expert_norm:
        hidden = module.post_expert_norm(hidden)
    experts = torch.arange(module.num_experts)
    chosen = top_k_index[None] == experts[:, None, None]
    weights = torch.where(chosen, top_k_weights[None].to(hidden.dtype), 0.0).sum(dim=-1)
    return (hidden * weights[..., None]).sum(dim=0).to(hidden_states.dtype)


def _project(module: Any, name: str, rows: Tensor) -> Tensor:
    """Rows [1 or experts, tokens, k] times each expert's weight; [experts, tokens, n]."""
    weight = getattr(module, name)
    out = torch.matmul(rows, weight if module.is_transposed else weight.transpose(-1, -2))
    return out + getattr(module, f"{name}_bias")[:, None] if module.has_bias else out


ALL_EXPERTS_FUNCTIONS.register(IMPLEMENTATION, dense_experts_forward)
