"""The graph's contract with the device compiler and runtime: names, dtypes and symbolic dimensions. Pure code.

The compiler keeps a buffer on the device where an output is called ``X_RetainedState`` and an input ``X``.
"""

from __future__ import annotations

from dataclasses import dataclass

from polybatch.kv_layout import LayerKV
from polybatch.specialization import BatchingConfig

RETAINED_SUFFIX = "_RetainedState"
LOGITS = "logits"
MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"
CUSTOM_IO_FILE = "custom_io.yaml"
SPECIALIZATIONS_FILE = "specializations.json"
QPC_DIR = "qpc"
QPC_BINARY = "programqpc.bin"

CACHE_DOMAIN = "com.qualcomm.cloud"
"""The vendor's domain of the functions that read and write the cache."""

DROPPED_POSITION = 2**31 - 1
"""The index of a write that must not happen: out of the range of every context, so the device drops it."""


@dataclass(frozen=True)
class TensorContract:
    """One input or output of the graph; ``shape`` mixes sizes and names of symbolic dimensions."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


def past_names(layers: int) -> tuple[str, ...]:
    """The retained inputs: past_key.0, past_value.0, past_key.1, ..."""
    return tuple(f"past_{kind}.{layer}" for layer in range(layers) for kind in ("key", "value"))


def is_retained(name: str) -> bool:
    """Whether the device keeps this input or output from one call to the next."""
    return name.startswith("past_")


def graph_inputs(config: BatchingConfig, layers: tuple[LayerKV, ...], dtype: str) -> tuple[TensorContract, ...]:
    """The inputs in order; ``dtype`` is the model's."""
    step = ("batch_size", "seq_len")
    slots = "full_batch_size" if config.continuous_batching else "batch_size"
    inputs = [TensorContract("input_ids", "int64", step), TensorContract("position_ids", "int64", step)]
    for name, (heads, dim) in zip(past_names(len(layers)), _head_shapes(layers), strict=True):
        inputs.append(TensorContract(name, dtype, (slots, heads, "ctx_len", dim)))
    if config.uses_comp_ctx_lengths:
        inputs.append(TensorContract("comp_ctx_lengths", "int64", ("comp_ctx_lengths",)))
    if config.continuous_batching:
        inputs.append(TensorContract("batch_index", "int64", ("batch_size", 1)))
    if config.speculative:
        inputs.append(TensorContract("num_logits_to_keep", "int64", ("num_logits_to_keep", 1)))
    return tuple(inputs)


def graph_outputs(
    config: BatchingConfig, layers: tuple[LayerKV, ...], dtype: str, vocab_size: int
) -> tuple[TensorContract, ...]:
    """The outputs in order: logits, then every retained input's new state."""
    kept = "num_logits_to_keep" if config.speculative else 1
    retained = [
        TensorContract(entry.name + RETAINED_SUFFIX, entry.dtype, entry.shape)
        for entry in graph_inputs(config, layers, dtype)
        if is_retained(entry.name)
    ]
    return (TensorContract(LOGITS, "float32", ("batch_size", kept, vocab_size)), *retained)


def _head_shapes(layers: tuple[LayerKV, ...]) -> list[tuple[int, int]]:
    return [(layer.kv_heads, dim) for layer in layers for dim in (layer.key_dim, layer.value_dim)]
