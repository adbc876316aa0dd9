"""From a Hugging Face model to ``model.onnx`` with its weights beside it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from torch.export import Dim
from transformers import PreTrainedModel

from polybatch.kv_layout import LayerKV
from polybatch.specialization import BatchingConfig
from polybatch.targets.qaic.names import MODEL_FILE, WEIGHTS_FILE, TensorContract, graph_inputs, graph_outputs
from polybatch.targets.qaic.norms import name_norms
from polybatch.targets.qaic.onnx_functions import OPSET, cache_functions
from polybatch.targets.qaic.step import QaicStep, device_graph

# Example sizes: small and all different, so that the exporter takes no size for another or for a constant.
_EXAMPLE_SIZES = {
    "batch_size": 2,
    "seq_len": 4,
    "full_batch_size": 3,
    "ctx_len": 16,
    "comp_ctx_lengths": 7,
    "num_logits_to_keep": 5,
}
_LARGEST = 1 << 20


def export_onnx(
    model: PreTrainedModel, layers: tuple[LayerKV, ...], config: BatchingConfig, folder: Path, *, plain: bool
) -> None:
    """Write the graph of every step, symbolic in all sizes, and its weights as external data.

    ``plain`` expands the cache functions into standard operators. The weights are written one at a time, straight
    from the model's own memory.
    """
    inputs = graph_inputs(config, layers, str(model.dtype).removeprefix("torch."))
    outputs = graph_outputs(config, layers, inputs[2].dtype, 0)
    graph = _translate(model, inputs, outputs)
    _tidy(graph, plain)
    ir.save(graph, folder / MODEL_FILE, external_data=WEIGHTS_FILE)
    onnx.checker.check_model(str(folder / MODEL_FILE))


def _translate(
    model: PreTrainedModel, inputs: tuple[TensorContract, ...], outputs: tuple[TensorContract, ...]
) -> ir.Model:
    sizes = {name: Dim(name, min=1, max=_LARGEST) for name in _EXAMPLE_SIZES}
    examples = [_example(entry) for entry in inputs]
    shapes = [_symbolic(entry, sizes) for entry in inputs]
    with torch.no_grad(), device_graph(model), _quiet_exporter(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecations
        program = torch.onnx.export(
            QaicStep(model),
            kwargs=_arguments(inputs, examples),
            dynamic_shapes=_arguments(inputs, shapes),
            input_names=[entry.name for entry in inputs],
            output_names=[entry.name for entry in outputs],
            opset_version=OPSET,
            optimize=False,
            verbose=False,
        )
    assert program is not None
    graph: ir.Model = program.model
    return graph


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without the exporter's warnings about packages that it does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _arguments(inputs: tuple[TensorContract, ...], values: list[Any]) -> dict[str, Any]:
    """Values by the argument of :class:`QaicStep` that they belong to."""
    named = dict(zip((entry.name for entry in inputs), values, strict=True))
    past = [value for name, value in named.items() if name.startswith("past_")]
    rest = {name: value for name, value in named.items() if not name.startswith("past_")}
    pairs = [list(pair) for pair in zip(past[::2], past[1::2], strict=True)]
    return {"input_ids": rest.pop("input_ids"), "position_ids": rest.pop("position_ids"), "past": pairs, **rest}


def _example(entry: TensorContract) -> torch.Tensor:
    shape = [_EXAMPLE_SIZES[size] if isinstance(size, str) else size for size in entry.shape]
    if entry.name == "position_ids":
        return torch.arange(shape[1]).repeat(shape[0], 1)
    if entry.name == "batch_index":
        return torch.arange(shape[0])[:, None].clone()
    return torch.zeros(shape, dtype=getattr(torch, entry.dtype))


def _symbolic(entry: TensorContract, sizes: dict[str, Any]) -> dict[int, Any]:
    return {axis: sizes[size] for axis, size in enumerate(entry.shape) if isinstance(size, str)}


def _tidy(model: ir.Model, plain: bool) -> None:
    """Fold constants, drop what nothing uses and the exporter's notes (which name files of this machine)."""
    for function in cache_functions():
        model.functions[function.identifier()] = function
    if plain:
        passes.InlinePass()(model)
    optimizer.optimize_ir(model, inline=False)
    if not plain:
        name_norms(model)
    passes.RemoveUnusedFunctionsPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)
    passes.ClearMetadataAndDocStringPass()(model)
    model.producer_version = None
