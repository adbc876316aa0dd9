"""Where each layer's keys and values lie inside one slot of the retained KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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
    """Element offsets of one layer's keys and values from the start of a chunk."""

    keys: int
    values: int


class CachePacking(Protocol):
    """A target's own way to lay out the positions of a slot."""

    def chunk_positions(self, ctx_len: int) -> int:
        """Positions that lie together, with every layer's keys and values; a slot is a row of such chunks."""
        ...

    def layer_elements(self, layer: LayerKV, positions: int) -> tuple[int, int]:
        """Of one layer in a chunk: elements from its first key to its first value, and elements in all."""
        ...


@dataclass(frozen=True)
class KVLayout:
    """One slot = chunks of positions, one after the other; slots lie one after the other in the cache.

    A chunk holds every layer's keys and values of its positions.
    """

    layers: tuple[LayerKV, ...]
    ctx_len: int
    offsets: tuple[LayerOffsets, ...]
    chunk_positions: int
    chunk_elements: int

    @property
    def chunks(self) -> int:
        return -(-self.ctx_len // self.chunk_positions)

    @property
    def slot_elements(self) -> int:
        return self.chunks * self.chunk_elements

    @classmethod
    def build(cls, layers: Sequence[LayerKV], ctx_len: int, packing: CachePacking, alignment: int = 1) -> KVLayout:
        """Lay the layers of a chunk out one after the other; a chunk takes a multiple of ``alignment`` elements."""
        positions = packing.chunk_positions(ctx_len)
        offsets = []
        end = 0
        for layer in layers:
            values, elements = packing.layer_elements(layer, positions)
            offsets.append(LayerOffsets(end, end + values))
            end += elements
        return cls(tuple(layers), ctx_len, tuple(offsets), positions, end + -end % alignment)


class PlainPacking:
    """The rule of the ``eager`` target: one chunk; keys [kv_heads, ctx_len, key_dim], then values alike, row-major."""

    def chunk_positions(self, ctx_len: int) -> int:
        return ctx_len

    def layer_elements(self, layer: LayerKV, positions: int) -> tuple[int, int]:
        keys = layer.kv_heads * positions * layer.key_dim
        return keys, keys + layer.kv_heads * positions * layer.value_dim
