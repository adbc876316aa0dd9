"""OpenVINO's runtime: a model with PagedAttention, whose KV blocks this file holds and feeds itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino.opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from bench.peers.openvino_export import exported
from bench.peers.protocol import Cell, Config, Peer, serve

PREFILL_CHUNK = 512
WANTED = "sampled_tokens_indices"
HINTS = {"bf16": "bf16", "int8": "bf16", "fp32": "f32"}


class OpenVinoPeer(Peer):
    """One infer request; sequence i owns the i-th run of ctx_len positions' blocks."""

    def __init__(self, config: Config) -> None:
        self._config = config
        core = ov.Core()
        model = core.read_model(exported(config) / "openvino_model.xml")
        paged_attention_transformation(model)
        _keep_wanted_rows(model)
        hint = HINTS[config.precision]
        properties = {
            "INFERENCE_PRECISION_HINT": hint,
            "KV_CACHE_PRECISION": hint,
            "INFERENCE_NUM_THREADS": config.threads,
            "PERFORMANCE_HINT": "LATENCY",
        }
        compiled = core.compile_model(model, "CPU", properties)
        self._request = compiled.create_infer_request()
        self._make_caches(compiled)
        self._inputs = {port.any_name for port in compiled.inputs}
        self.about = {"version": f"openvino {ov.get_version()}", "settings": str(properties)}

    def prepare(self, cell: Cell) -> None:
        rng = np.random.default_rng(2)
        rows = rng.permutation(self._config.slots)[: cell.batch]
        tokens = rng.integers(5, 30000, (cell.batch, cell.drafted + 1))
        self._feed(rows, self._config.position, tokens)
        self._outputs = tokens.size

    def step(self) -> None:
        self._request.infer(share_inputs=True)
        logits = self._request.get_output_tensor(0).data
        assert logits.shape[0] == self._outputs, logits.shape

    def prefill(self, tokens: int) -> None:
        ids = np.random.default_rng(0).integers(5, 30000, (1, tokens))
        for start in range(0, tokens, PREFILL_CHUNK):
            self._feed(np.array([0]), start, ids[:, start : start + PREFILL_CHUNK], last_only=True)
            self._request.infer(share_inputs=True)

    def _make_caches(self, compiled: Any) -> None:
        """Every block's live positions hold random numbers, so that none of them is the kernel's shared zero page."""
        ports = [port for port in compiled.inputs if "_cache." in port.any_name]
        self._block = int(ports[0].partial_shape[2].get_length())
        self._blocks_per_row = -(-self._config.ctx_len // self._block)
        live = -(-(self._config.position + 16) // self._block)
        rng = np.random.default_rng(0)
        self._caches = []
        for port in ports:
            shape = [self._config.slots * self._blocks_per_row, *(int(d.get_length()) for d in port.partial_shape[1:])]
            cache = ov.Tensor(port.element_type, ov.Shape(shape))
            by_row = _as_plain(cache).reshape(self._config.slots, self._blocks_per_row, -1)
            values = rng.standard_normal(by_row[0, :live].shape, dtype=np.float32)
            by_row[:, :live] = (
                values if by_row.dtype == np.float32 else (values.view(np.uint32) >> 16).astype(np.uint16)
            )
            self._request.set_tensor(port, cache)
            self._caches.append(cache)

    def _feed(self, rows: np.ndarray, past: int, tokens: np.ndarray, last_only: bool = False) -> None:
        batch, length = tokens.shape
        blocks = -(-(past + length) // self._block)
        positions = np.arange(past, past + length, dtype=np.int64)
        block_indices = rows[:, None] * self._blocks_per_row + np.arange(blocks)
        values = {
            "input_ids": tokens.ravel().astype(np.int64),
            "position_ids": np.tile(positions, batch),
            "past_lens": np.full(batch, past, np.int32),
            "subsequence_begins": np.arange(batch + 1, dtype=np.int32) * length,
            "block_indices": block_indices.ravel().astype(np.int32),
            "block_indices_begins": np.arange(batch + 1, dtype=np.int32) * blocks,
            "max_context_len": np.array(past + length, np.int32),
            WANTED: np.arange(tokens.size, dtype=np.int64)[-1 if last_only else 0 :],
        }
        for name, value in values.items():
            if name in self._inputs:  # which of them a model has depends on its position encoding
                self._request.set_tensor(name, ov.Tensor(value))


def _keep_wanted_rows(model: Any) -> None:
    """Compute logits for the rows named by a new input only, as GenAI's pipeline does: a prompt needs its last."""
    head = model.output("logits").get_node().input_value(0).get_node()
    while head.get_type_name() != "MatMul":
        head = head.input_value(0).get_node()
    wanted = ops.parameter([-1], ov.Type.i64, WANTED)
    wanted.output(0).set_names({WANTED})
    kept = ops.gather(head.input_value(0), wanted, ops.constant(0, ov.Type.i64))
    head.input(0).replace_source_output(kept.output(0))
    model.add_parameters([wanted])
    model.validate_nodes_and_infer_types()


def _as_plain(tensor: Any) -> np.ndarray:
    """The tensor's memory as float32, or as uint16 where numpy has no such type."""
    if tensor.element_type == ov.Type.f32:
        return np.asarray(tensor.data)
    if tensor.element_type != ov.Type.bf16:
        raise RuntimeError(f"a KV cache of {tensor.element_type} is not expected")
    return np.asarray(tensor.data).view(np.uint16)


if __name__ == "__main__":
    serve(OpenVinoPeer)
