"""Running a model as transformers alone would, in float32 if need be: the reference of what is compiled from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel


@contextmanager
def plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """transformers' own eager attention and experts for a while: everything is made of plain products."""
    before = (model.config._attn_implementation, model.config._experts_implementation)
    try:
        model.set_attn_implementation("eager")
        model.set_experts_implementation("eager")
        yield
    finally:
        model.set_attn_implementation(before[0])
        model.set_experts_implementation(before[1])


@contextmanager
def widened(model: PreTrainedModel) -> Iterator[None]:
    """The model in float32 for a while, exactly as it is."""
    narrow = [(tensor, tensor.dtype) for tensor in _float_tensors(model) if tensor.dtype != torch.float32]
    for tensor, _ in narrow:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor, dtype in narrow:
            tensor.data = tensor.data.to(dtype)


def _float_tensors(model: PreTrainedModel) -> list[torch.Tensor]:
    return [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
