"""Where each layer's keys and values lie inside one slot of the retained KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerKV:
    """The KV shape of one attention layer: keys [kv_heads, ctx_len, key_dim], values [kv_heads, ctx_len, value_dim]."""

    kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class CacheSpec:
    """What a cache must hold: ``slots`` sequences of ``ctx_len`` positions; dtype is "float32" or "bfloat16"."""

    layers: tuple[LayerKV, ...]
    dtype: str
    ctx_len: int
    slots: int


@dataclass(frozen=True)
class LayerOffsets:
    """Element offsets of one layer's keys and values from the start of a slot."""

    keys: int
    values: int


HeadElements = Callable[[LayerKV, int], tuple[int, int]]
"""(layer, ctx_len) -> elements that one head's keys and one head's values take."""


@dataclass(frozen=True)
class KVLayout:
    """One slot = every layer's keys and values, one after the other; slots lie one after the other in the cache."""

    layers: tuple[LayerKV, ...]
    ctx_len: int
    offsets: tuple[LayerOffsets, ...]
    slot_elements: int

    @classmethod
    def build(
        cls, layers: Sequence[LayerKV], ctx_len: int, head_elements: HeadElements, alignment: int = 1
    ) -> KVLayout:
        """Lay the layers out one after the other, each starting at a multiple of ``alignment`` elements.

        ``head_elements`` is the target's own packing rule.
        """
        offsets = []
        end = 0
        for layer in layers:
            keys, values = head_elements(layer, ctx_len)
            offsets.append(LayerOffsets(end, end + layer.kv_heads * keys))
            end += layer.kv_heads * (keys + values)
            end += -end % alignment
        return cls(tuple(layers), ctx_len, tuple(offsets), end)


def plain_head_elements(layer: LayerKV, ctx_len: int) -> tuple[int, int]:
    """The rule of the ``eager`` target: keys [ctx_len, key_dim], values [ctx_len, value_dim], row-major."""
    return ctx_len * layer.key_dim, ctx_len * layer.value_dim
