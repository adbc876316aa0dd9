"""Steps of the exported graph through ONNX Runtime, with the cache kept between them as the device keeps it.

Slow and exact: it checks what a compile has exported, on machines without the device.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch

from polybatch.kv_layout import CacheSpec
from polybatch.specialization import Specialization
from polybatch.targets.base import Float32Array, SlotKV
from polybatch.targets.qaic.device_semantics import load_with_device_semantics
from polybatch.targets.qaic.fixed_shapes import Arrays, GraphRunner
from polybatch.targets.qaic.names import LOGITS, RETAINED_SUFFIX, is_retained, past_names


class OnnxRunner(GraphRunner):
    """A :class:`polybatch.targets.base.StepRunner` over the files of a program; a bfloat16 graph runs in float32."""

    def __init__(self, folder: Path, cache: CacheSpec, threads: int) -> None:
        self._session = _open(folder, threads)
        super().__init__(tuple(entry.name for entry in self._session.get_inputs()))
        self._cache = cache
        self._retained = tuple(name for name in self._inputs if is_retained(name))
        self._state: dict[str, ort.OrtValue] = {}
        self.reset()

    def _run_row(self, row: Specialization, arrays: Arrays) -> Float32Array:
        feeds = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        names = [LOGITS, *(name + RETAINED_SUFFIX for name in self._retained)]
        logits, *retained = self._session.run_with_ort_values(names, {**feeds, **self._state})
        self._state = dict(zip(self._retained, retained, strict=True))
        result: Float32Array = logits.numpy()
        return result

    def read_slot(self, slot: int) -> SlotKV:
        arrays = [torch.from_numpy(self._state[name].numpy()[slot].copy()) for name in self._retained]
        return SlotKV(tuple(arrays[::2]), tuple(arrays[1::2]))

    def reset(self) -> None:
        """The cache is NaN, not zero: memory that was never written may hold anything."""
        shapes = []
        for layer in self._cache.layers:
            prefix = (self._cache.slots, layer.kv_heads, self._cache.ctx_len)
            shapes += [(*prefix, layer.key_dim), (*prefix, layer.value_dim)]
        self._state = {
            name: ort.OrtValue.ortvalue_from_numpy(np.full(shape, np.nan, np.float32))
            for name, shape in zip(past_names(len(self._cache.layers)), shapes, strict=True)
        }

    def close(self) -> None:
        self._state = {}


def _open(folder: Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Weights are mapped, not copied into layouts of the runtime's own: a large model must fit beside itself.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # steps are few: leave the cores to others
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    return ort.InferenceSession(load_with_device_semantics(folder), options, providers=["CPUExecutionProvider"])
