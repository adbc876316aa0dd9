"""The floor of a step: sum over its operations of max(bytes / bandwidth, flops / rate). Pure.

Counted are the bytes that an operation must read: weights, and keys and values of the live positions. Each counts as
read from memory in every step, although a large L3 may keep part of it, so a small model can come out below its floor.
Not counted, so that the floor stays a lower bound: activations, logits, norms, the rotary embedding and the softmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "int8": 1}
WEIGHT_BYTES = {"fp32": 2, "bf16": 2, "int8": 1}
"""The checkpoints are bfloat16, and programs in float32 read them as such."""


@dataclass(frozen=True)
class Machine:
    """Bytes per second that all threads read from memory, and operations per second by precision of the operands."""

    read_bytes_per_s: float
    flops_per_s: Mapping[str, float]


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder with gated MLPs, as in its Hugging Face config."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """From the keys of ``config.json``."""
        heads = config["num_attention_heads"]
        return cls(
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab=config["vocab_size"],
        )


@dataclass(frozen=True)
class Step:
    """``batch`` rows of ``tokens`` tokens from ``position`` on; ``logits`` tokens of each row give logits."""

    batch: int
    tokens: int
    position: int
    logits: int


@dataclass(frozen=True)
class Operation:
    """``count`` equal operations, each with its own bytes. precision: of the operands, which decides the rate."""

    name: str
    count: int
    read_bytes: float
    flops: float
    precision: str

    def seconds(self, machine: Machine) -> float:
        """All ``count`` of them, one after the other."""
        rate = machine.flops_per_s[self.precision]
        return self.count * max(self.read_bytes / machine.read_bytes_per_s, self.flops / rate)


def operations(shape: ModelShape, step: Step, precision: str) -> list[Operation]:
    """The matrix products and attentions of a step. With "int8" only the weights are; keys and values are bfloat16."""
    rows = step.batch * step.tokens
    q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    linears = (
        ("qkv", shape.layers, rows, q_size + 2 * kv_size, shape.hidden),
        ("o", shape.layers, rows, shape.hidden, q_size),
        ("gate_up", shape.layers, rows, 2 * shape.intermediate, shape.hidden),
        ("down", shape.layers, rows, shape.hidden, shape.intermediate),
        ("lm_head", 1, step.batch * step.logits, shape.vocab, shape.hidden),
    )
    found = [
        Operation(name, count, n * k * WEIGHT_BYTES[precision], 2.0 * m * n * k, precision)
        for name, count, m, n, k in linears
    ]
    cached = "bf16" if precision == "int8" else precision
    kv_bytes = step.batch * (step.position + step.tokens) * 2 * kv_size * ELEMENT_BYTES[cached]
    seen = step.tokens * step.position + step.tokens * (step.tokens + 1) // 2  # positions, summed over a row's tokens
    return [*found, Operation("attention", shape.layers, kv_bytes, 4.0 * step.batch * seen * q_size, cached)]


def floor_seconds(found: Iterable[Operation], machine: Machine) -> float:
    """Of the operations one after the other, each at the limit that it meets first."""
    return sum(operation.seconds(machine) for operation in found)
