from __future__ import annotations

import pytest

from bench.limits.floor import Machine, ModelShape, Operation, Step, floor_seconds, operations

MACHINE = Machine(read_bytes_per_s=1e9, flops_per_s={"fp32": 1e9, "bf16": 2e9, "int8": 4e9})
# The shape of JackFram/llama-68m.
CONFIG = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "vocab_size": 32000,
}
LINEAR_WEIGHTS = 2 * (4 * 768 * 768 + 3 * 768 * 3072) + 32000 * 768


def total(found: list[Operation], what: str) -> float:
    return sum(operation.count * getattr(operation, what) for operation in found)


def linears(found: list[Operation]) -> list[Operation]:
    return [operation for operation in found if operation.name != "attention"]


def attention(found: list[Operation]) -> Operation:
    return next(operation for operation in found if operation.name == "attention")


def test_one_token_reads_every_linear_weight_once() -> None:
    found = linears(operations(ModelShape.from_config(CONFIG), Step(1, 1, 512, 1), "bf16"))
    assert total(found, "read_bytes") == LINEAR_WEIGHTS * 2
    assert total(found, "flops") == LINEAR_WEIGHTS * 2


def test_more_rows_read_the_same_weights_and_multiply_the_flops() -> None:
    shape = ModelShape.from_config(CONFIG)
    one = linears(operations(shape, Step(1, 1, 512, 1), "fp32"))
    many = linears(operations(shape, Step(8, 4, 512, 4), "fp32"))
    assert total(many, "read_bytes") == total(one, "read_bytes")
    assert total(many, "flops") == 32 * total(one, "flops")


def test_prefill_computes_one_row_of_logits() -> None:
    found = operations(ModelShape.from_config(CONFIG), Step(1, 128, 384, 1), "bf16")
    lm_head = next(operation for operation in found if operation.name == "lm_head")
    assert lm_head.flops == 2 * 32000 * 768


def test_attention_reads_the_live_positions_of_the_live_rows() -> None:
    grouped = ModelShape.from_config({**CONFIG, "num_key_value_heads": 3})
    found = attention(operations(grouped, Step(8, 1, 512, 1), "bf16"))
    assert found.read_bytes == 8 * 513 * 2 * (3 * 64) * 2
    assert found.flops == 8 * 4 * 513 * (12 * 64)


def test_a_token_attends_to_itself_and_what_is_before_it() -> None:
    found = attention(operations(ModelShape.from_config(CONFIG), Step(1, 3, 10, 1), "fp32"))
    assert found.flops == 4 * (11 + 12 + 13) * (12 * 64)
    assert found.read_bytes == 13 * 2 * (12 * 64) * 4


def test_int8_has_int8_weights_and_a_bfloat16_cache() -> None:
    found = operations(ModelShape.from_config(CONFIG), Step(1, 1, 0, 1), "int8")
    assert total(linears(found), "read_bytes") == LINEAR_WEIGHTS
    assert {operation.precision for operation in linears(found)} == {"int8"}
    assert attention(found).precision == "bf16"


def test_each_operation_takes_the_limit_that_it_meets_first() -> None:
    reading = Operation("reads", 2, read_bytes=3e9, flops=1e9, precision="fp32")
    computing = Operation("computes", 1, read_bytes=1e9, flops=8e9, precision="bf16")
    assert reading.seconds(MACHINE) == 6.0
    assert computing.seconds(MACHINE) == 4.0
    assert floor_seconds([reading, computing], MACHINE) == 10.0


def test_the_config_may_say_the_head_size() -> None:
    assert ModelShape.from_config(CONFIG).head_dim == 64
    assert ModelShape.from_config({**CONFIG, "head_dim": 128}).head_dim == 128


def test_the_floor_of_a_known_machine() -> None:
    """128 live sequences at position 512: 26 ms of products and 12.2 ms of keys and values."""
    machine = Machine(33e9, {"bf16": 430e9})
    found = operations(ModelShape.from_config(CONFIG), Step(128, 1, 512, 1), "bf16")
    assert floor_seconds(found, machine) * 1e3 == pytest.approx(38.2, abs=0.2)
