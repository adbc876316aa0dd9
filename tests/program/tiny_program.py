"""A small program without a graph: enough for everything that the program directory promises."""

import importlib.metadata
from pathlib import Path

import torch

from polybatch.program import (
    Batching,
    CreatedBy,
    KvCache,
    KvLayer,
    Manifest,
    ModelInfo,
    ProgramWriter,
    describe_io,
    describe_rows,
)
from polybatch.specialization import build_table
from polybatch.weights import write_safetensors


def make_manifest(**changes: object) -> Manifest:
    table = build_table(batch_size=[1, 4], continuous_batching=True, full_batch_size=4, ctx_len=64, prefill_seq_len=16)
    inputs, outputs = describe_io(table, vocab_size=32)
    fields = {
        "created": "2026-01-31",
        "created_by": CreatedBy(polybatch="0.1.0", torch=importlib.metadata.version("torch"), transformers="5.24.0"),
        "target": "cpu",
        "isa": "portable",
        "model": ModelInfo(
            class_name="LlamaForCausalLM",
            model_type="llama",
            dtype="float32",
            vocab_size=32,
            num_layers=1,
            source="tiny-llama",
        ),
        "inputs": inputs,
        "outputs": outputs,
        "batching": Batching.from_config(table.config),
        "specializations": describe_rows(table, {table.rows[1]: 1.5}),
        "batch_invariant": True,
        "kv_cache": KvCache(layers=(KvLayer(kv_heads=2, key_dim=8, value_dim=8),), bytes_per_slot=8192),
    }
    return Manifest(**{**fields, **changes})


def write_cpu_files(folder: Path) -> None:
    """The other files that a program of target cpu must have."""
    for name in ("graph.so", "kernels.so"):
        (folder / name).write_bytes(b"x")


def write_program(path: Path, value: float = 0.0, **changes: object) -> Path:
    """A program whose only weight is filled with ``value``."""
    with ProgramWriter(path) as writer:
        write_safetensors(writer.path / "weights.safetensors", {"weight": torch.full((16, 16), value)})
        write_cpu_files(writer.path)
        (writer.path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
        writer.commit(make_manifest(**changes))
    return path
