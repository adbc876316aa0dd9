"""The one attention function that every model is routed through.

transformers lets a registered function replace the attention of any architecture that goes through its
``AttentionInterface`` (``ALL_ATTENTION_FUNCTIONS``). Ours calls ``polybatch::slot_attention`` on the cache that the
running step has put into the thread's :class:`StepContext`; no architecture needs code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from polybatch import ops  # noqa: F401  registers the operators
from polybatch.kv_layout import KVLayout
from polybatch.models.running import Running

IMPLEMENTATION = "polybatch"
"""The name under which the function is registered with transformers."""


@dataclass(frozen=True)
class StepContext:
    """What attention needs of the running step, besides q, k and v."""

    cache: Tensor
    batch_index: Tensor
    position_ids: Tensor
    layout: KVLayout


running: Running[StepContext] = Running()


def slot_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature over ``polybatch::slot_attention``; ``guard.py`` vets the other arguments."""
    context = running.context
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    offsets = context.layout.offsets[layer]
    out = torch.ops.polybatch.slot_attention(
        query,
        key,
        value,
        context.cache,
        context.batch_index,
        context.position_ids,
        None if s_aux is None else s_aux.float(),
        offsets.keys,
        offsets.values,
        context.layout.ctx_len,
        float(query.shape[-1] ** -0.5 if scaling is None else scaling),
        int(sliding_window or 0),
        float(softcap or 0.0),
    )
    return out, None


AttentionInterface.register(IMPLEMENTATION, slot_attention_forward)
