"""How the native kernels keep keys and values; ``kernels/cache_layout.h`` holds the C++ side and says why.

The same for every instruction set. P is ``elements_per_group``: 1 for float32, 2 for bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from polybatch.kv_layout import KVLayout, LayerKV
from polybatch.targets.cpu.packing import elements_per_group, round_up

CHUNK = 256
"""Positions of a chunk, where ctx_len is not shorter."""

BLOCK = 64
"""Positions of which a head's keys, then its values, lie together."""

_GROUP = 16
"""Positions whose keys lie side by side."""


@dataclass(frozen=True)
class KernelPacking:
    """A layer's part of a chunk: [kv_heads][blocks][keys of a block, then its values].

    Keys of a block are [4][ceil(D/P)][16][P], values [64/P][DV][P].
    """

    dtype: torch.dtype

    def chunk_positions(self, ctx_len: int) -> int:
        return min(CHUNK, round_up(ctx_len, BLOCK))

    def layer_elements(self, layer: LayerKV, positions: int) -> tuple[int, int]:
        keys = self.key_elements(layer)
        return keys, layer.kv_heads * positions // BLOCK * (keys + BLOCK * layer.value_dim)

    def key_elements(self, layer: LayerKV) -> int:
        """Elements of a block's keys."""
        return BLOCK * round_up(layer.key_dim, elements_per_group(self.dtype))


class SlotLayer:
    """One layer's part of a flat slot [slot_elements], sharing its memory."""

    def __init__(self, slot: Tensor, layout: KVLayout, layer: int) -> None:
        self._kv, self._ctx_len = layout.layers[layer], layout.ctx_len
        blocks = _blocks(slot, layout, layer)
        group, keys = elements_per_group(slot.dtype), KernelPacking(slot.dtype).key_elements(self._kv)
        # [HK, chunks, blocks, groups, 16, ceil(D/P), P] and [HK, chunks, blocks, 64/P, P, DV]
        self._keys = blocks[..., :keys].unflatten(3, (BLOCK // _GROUP, -1, _GROUP, group)).permute(1, 0, 2, 3, 5, 4, 6)
        self._values = blocks[..., keys:].unflatten(3, (BLOCK // group, -1, group)).permute(1, 0, 2, 3, 5, 4)

    def keys(self) -> Tensor:
        """A copy of the keys [HK, ctx_len, D]."""
        return torch.clone(self._keys.flatten(5).flatten(1, 4)[:, : self._ctx_len, : self._kv.key_dim])

    def values(self) -> Tensor:
        """A copy of the values [HK, ctx_len, DV]."""
        return torch.clone(self._values.flatten(1, 4)[:, : self._ctx_len])

    def write(self, keys: Tensor, values: Tensor) -> None:
        """Store keys [HK, ctx_len, D] and values [HK, ctx_len, DV]; padding becomes 0."""
        for view, width, source in (
            (self._keys, self._keys.shape[5:].numel(), keys),
            (self._values, self._values.shape[5], values),
        ):
            padded = torch.zeros(source.shape[0], view.shape[1:5].numel(), width, dtype=source.dtype)
            padded[:, : source.shape[1], : source.shape[2]] = source
            view.copy_(padded.view(view.shape))


def copy_positions(source: Tensor, target: Tensor, layout: KVLayout, positions: int) -> None:
    """Copy the first positions of every layer from flat slot to flat slot.

    They go by whole blocks: what is copied beyond ``positions`` is written again before anyone reads it.
    """
    whole, rest = divmod(positions, layout.chunk_positions)
    elements = whole * layout.chunk_elements
    target[:elements] = source[:elements]
    for layer in range(len(layout.layers) if rest else 0):
        here, there = (_blocks(slot, layout, layer)[whole] for slot in (source, target))
        used = round_up(rest, BLOCK) // BLOCK
        there[:, :used] = here[:, :used]


def _blocks(slot: Tensor, layout: KVLayout, layer: int) -> Tensor:
    """One layer's blocks [chunks, HK, blocks of a chunk, elements] in a flat slot, sharing its memory."""
    kv, start = layout.layers[layer], layout.offsets[layer].keys
    _, elements = KernelPacking(slot.dtype).layer_elements(kv, layout.chunk_positions)
    part = slot.view(layout.chunks, layout.chunk_elements)[:, start : start + elements]
    return part.view(layout.chunks, kv.kv_heads, layout.chunk_positions // BLOCK, -1)
