"""The ``eager`` target: the Hugging Face model itself over plain PyTorch operators. Slow; the oracle of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from polybatch.kv_layout import CacheSpec, KVLayout, plain_head_elements
from polybatch.models import attention, experts
from polybatch.models.loading import model_from_state
from polybatch.models.step import StepModule
from polybatch.targets.base import BuildRequest, BuildResult, Float32Array, Int64Array, SlotKV
from polybatch.weights import map_safetensors, write_safetensors

WEIGHTS = "weights.safetensors"


class EagerTarget:
    """Stores config.json and the weights as they are; needs no compiler."""

    def build(self, request: BuildRequest, folder: Path) -> BuildResult:
        request.progress("storing weights")
        model: PreTrainedModel = request.model
        model.config.save_pretrained(folder)
        write_safetensors(folder / WEIGHTS, _distinct_tensors(model), {"format": "pt"})
        layout = _layout(request.cache)
        return BuildResult(None, (), None, False, layout.slot_elements * model.dtype.itemsize)

    def open(self, folder: Path, cache: CacheSpec, threads: int) -> EagerRunner:
        model = model_from_state(folder, map_safetensors(folder / WEIGHTS))
        model.set_attn_implementation(attention.IMPLEMENTATION)
        model.set_experts_implementation(experts.IMPLEMENTATION)
        return EagerRunner(model, _layout(cache), cache.slots, threads)


class EagerRunner:
    """Runs steps by calling the model; the cache is one tensor [slots, elements]."""

    skips_padding = False
    copies_slots = True

    def __init__(self, model: PreTrainedModel, layout: KVLayout, slots: int, threads: int) -> None:
        self._layout = layout
        self._step = StepModule(model, layout)
        self._threads = threads
        self._cache = torch.zeros(slots, layout.slot_elements, dtype=model.dtype)

    def run(
        self, input_ids: Int64Array, position_ids: Int64Array, batch_index: Int64Array, logits_index: Int64Array
    ) -> Float32Array:
        arrays = (input_ids, position_ids, batch_index, logits_index)
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            with torch.no_grad():
                logits = self._step(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays), self._cache)
        finally:
            torch.set_num_threads(before)
        result: Float32Array = logits.numpy()
        return result

    def read_slot(self, slot: int) -> SlotKV:
        row = self._cache[slot]
        keys, values = [], []
        for layer, at in zip(self._layout.layers, self._layout.offsets, strict=True):
            shape = (layer.kv_heads, self._layout.ctx_len)
            size = shape[0] * shape[1]
            keys.append(row[at.keys : at.keys + size * layer.key_dim].view(*shape, layer.key_dim).clone())
            values.append(row[at.values : at.values + size * layer.value_dim].view(*shape, layer.value_dim).clone())
        return SlotKV(tuple(keys), tuple(values))

    def copy_slot(self, source: int, target: int, positions: int) -> None:
        ctx_len = self._layout.ctx_len
        both = (self._cache[source], self._cache[target])
        for layer, at in zip(self._layout.layers, self._layout.offsets, strict=True):
            for start, size in ((at.keys, layer.key_dim), (at.values, layer.value_dim)):
                here, there = (row[start : start + layer.kv_heads * ctx_len * size] for row in both)
                shape = (layer.kv_heads, ctx_len, size)
                there.view(shape)[:, :positions] = here.view(shape)[:, :positions]

    def reset(self) -> None:
        self._cache.zero_()

    def close(self) -> None:
        self._cache = torch.zeros(0)


def _layout(cache: CacheSpec) -> KVLayout:
    return KVLayout.build(cache.layers, cache.ctx_len, plain_head_elements)


def _distinct_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The state dict without the second names of tied tensors; transformers ties them again."""
    seen: set[int] = set()
    distinct = {}
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            distinct[name] = tensor.detach().contiguous()
        seen.add(tensor.data_ptr())
    return distinct


TARGET = EagerTarget()
