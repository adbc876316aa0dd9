"""Attention over a retained cache that is an input and an output of the graph, from plain tensor operations.

Registered with transformers' ``AttentionInterface`` like ``models/attention.py``; the graph's module
(:mod:`polybatch.targets.qaic.step`) puts the step's :class:`CacheContext` into place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from polybatch.models.running import Running
from polybatch.targets.qaic.names import CACHE_DOMAIN, DROPPED_POSITION

IMPLEMENTATION = "polybatch_qaic"
"""The name under which the function is registered with transformers."""

_MASKED = torch.finfo(torch.float16).min
"""The score of a position that may not be read: finite in float16, so that a row without any live position stays
finite, and so low that its weight beside a real score is exactly zero."""


@dataclass
class CacheContext:
    """The cache of a running step: ``past[i]`` = [keys, values] of layer i, replaced as layers write to it.

    ``batch_index`` is None where row b is slot b. ``length`` is how many positions attention reads.
    """

    past: list[list[Tensor]]
    position_ids: Tensor
    batch_index: Tensor | None
    length: int

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Put the step's keys and values [b, kv_heads, s, dim] at its positions; those of padding are dropped."""
        at = torch.where(self.position_ids < 0, DROPPED_POSITION, self.position_ids)
        self.past[layer] = [
            self._scatter(cache, at, new) for cache, new in zip(self.past[layer], (keys, values), strict=True)
        ]

    def read(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values [b, kv_heads, length, dim]; positions after the row's last one hold anything, values 0."""
        index = torch.arange(self.length)[None, None, :]
        unwritten = index > self.position_ids.amax(dim=1)[:, None, None]
        index = torch.where(unwritten, DROPPED_POSITION, index)
        keys, values = (self._gather(cache, index) for cache in self.past[layer])
        # Weight 0 times a value that was never written, perhaps NaN, must be 0.
        return keys, values.masked_fill(unwritten[..., None], 0.0)

    def _scatter(self, cache: Tensor, at: Tensor, new: Tensor) -> Tensor:
        if self.batch_index is None:
            return _cache_op("CtxScatter", cache, cache.shape, at, new)
        return _cache_op("CtxScatterCB", cache, cache.shape, self.batch_index, at, new)

    def _gather(self, cache: Tensor, index: Tensor) -> Tensor:
        shape = (self.position_ids.shape[0], cache.shape[1], self.length, cache.shape[3])
        length = torch.full((), self.length, dtype=torch.int64)
        if self.batch_index is None:
            return _cache_op("CtxGather", cache, shape, index, length)
        return _cache_op("CtxGatherCB", cache, shape, self.batch_index, index, length)


def _cache_op(name: str, cache: Tensor, shape: Sequence[int], *operands: Tensor) -> Tensor:
    """A node of the graph for a function of ``onnx_functions``; when run by torch it gives zeros."""
    node: Tensor = torch.onnx.ops.symbolic(
        f"{CACHE_DOMAIN}::{name}", (cache, *operands), dtype=cache.dtype, shape=shape, version=1
    )
    return node


running: Running[CacheContext] = Running()


def cached_attention_forward(
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
    """transformers' attention signature; ``models/guard.py`` vets the other arguments. Returns [b, s, heads, dim]."""
    context = running.context
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    context.write(layer, key, value)
    keys, values = context.read(layer)
    scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    scores = _scores(query, keys, scale, softcap)
    scores = scores.masked_fill(_hidden(context, sliding_window), _MASKED)
    weights = _softmax(scores, s_aux).to(values.dtype)
    return _weighted_sum(weights, values).transpose(1, 2).contiguous(), None


def _scores(query: Tensor, keys: Tensor, scale: float, softcap: float | None) -> Tensor:
    """[b, heads, s, length] in float32. The heads that share keys are rows of one product: no key is repeated."""
    batch, heads, steps, dim = query.shape
    groups = heads // keys.shape[1]
    grouped = (query * scale).reshape(batch, keys.shape[1], groups * steps, dim)
    scores = torch.matmul(grouped, keys.transpose(2, 3)).reshape(batch, heads, steps, keys.shape[2]).float()
    return torch.tanh(scores / softcap) * softcap if softcap else scores


def _hidden(context: CacheContext, window: int | None) -> Tensor:
    """[b, 1, s, length]: true where a query may not look; everywhere for padding."""
    at = context.position_ids[:, None, :, None]
    index = torch.arange(context.length)[None, None, None, :]
    return (index > at) | (index <= at - window) if window else index > at


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    sink = sinks.float()[None, :, None, None].expand(scores.shape[0], -1, scores.shape[2], 1)
    return torch.softmax(torch.cat([sink, scores], dim=-1), dim=-1)[..., 1:]


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    batch, heads, steps, length = weights.shape
    kv_heads = values.shape[1]
    grouped = weights.reshape(batch, kv_heads, heads // kv_heads * steps, length)
    return torch.matmul(grouped, values).reshape(batch, heads, steps, values.shape[3])


AttentionInterface.register(IMPLEMENTATION, cached_attention_forward)
