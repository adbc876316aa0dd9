"""The exported graph: its contract with the compiler, and its logits in every specialization."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from targets.qaic.conftest import SHAPES
from targets.qaic.graph_runs import assert_equal_steps, open_both

from polybatch import Program
from polybatch.specialization import build_table

STATIC = {"batch_size": 3, "ctx_len": 64, "prefill_seq_len": 8}
CCL = {"comp_ctx_lengths_prefill": [16, 60], "comp_ctx_lengths_decode": [32, 64]}


@pytest.mark.parametrize("name", ["gemma2", "qwen3", "mixtral"])
def test_every_specialization_gives_the_logits_of_the_eager_target(name: str) -> None:
    table = build_table(**SHAPES)
    assert_equal_steps(*open_both(name, table), table)


def test_attention_over_a_compute_context_length_with_speculation() -> None:
    table = build_table(**STATIC, **CCL, num_speculative_tokens=3)
    assert_equal_steps(*open_both("llama", table), table, rounds=12)


@pytest.fixture(scope="module")
def graph(exported: Program) -> onnx.ModelProto:
    return onnx.load(exported.path / "model.onnx", load_external_data=False)


def test_names_types_and_dimensions_are_those_of_the_contract(graph: onnx.ModelProto) -> None:
    cache = "float [full_batch_size, 2, ctx_len, 16]"
    assert _described(graph.graph.input) == {
        "input_ids": "int64 [batch_size, seq_len]",
        "position_ids": "int64 [batch_size, seq_len]",
        "past_key.0": cache,
        "past_value.0": cache,
        "past_key.1": cache,
        "past_value.1": cache,
        "batch_index": "int64 [batch_size, 1]",
        "num_logits_to_keep": "int64 [num_logits_to_keep, 1]",
    }
    assert _described(graph.graph.output) == {
        "logits": "float [batch_size, num_logits_to_keep, 256]",
        "past_key.0_RetainedState": cache,
        "past_value.0_RetainedState": cache,
        "past_key.1_RetainedState": cache,
        "past_value.1_RetainedState": cache,
    }
    assert list(_described(graph.graph.input))[:3] == ["input_ids", "position_ids", "past_key.0"]


def test_the_cache_and_the_norms_are_functions_of_the_vendors_domains(graph: onnx.ModelProto) -> None:
    cloud, norms = "com.qualcomm.cloud", "com.qti.aisw.onnx"
    functions = {(function.domain, function.name) for function in graph.functions}
    assert functions == {(cloud, "CtxScatterCB"), (cloud, "CtxGatherCB"), (norms, "CustomRMSNorm")}
    assert {entry.domain: entry.version for entry in graph.opset_import} == {"": 18, cloud: 1, norms: 1}
    called = [node.op_type for node in graph.graph.node if node.domain]
    assert sorted(called) == ["CtxGatherCB"] * 4 + ["CtxScatterCB"] * 4 + ["CustomRMSNorm"] * 5
    (epsilon,) = {node.attribute[0].f for node in graph.graph.node if node.op_type == "CustomRMSNorm"}
    assert epsilon == pytest.approx(1e-6)


def test_the_graph_names_no_file_of_the_machine_that_exported_it(exported: Program) -> None:
    for name in ("model.onnx", "qaic.json", "compile.sh", "custom_io.yaml"):
        data = (exported.path / name).read_bytes()
        assert str(Path(onnx.__file__).parent).encode() not in data
        assert str(exported.path.parent).encode() not in data


def _described(values: object) -> dict[str, str]:
    found = {}
    for value in values:  # type: ignore[attr-defined]
        tensor = value.type.tensor_type
        kind = {onnx.TensorProto.FLOAT: "float", onnx.TensorProto.INT64: "int64"}[tensor.elem_type]
        dims = [dim.dim_param or str(dim.dim_value) for dim in tensor.shape.dim]
        found[value.name] = f"{kind} [{', '.join(dims)}]"
    return found


def test_onnx_runtime_is_made_to_drop_writes_outside_the_context(tmp_path: Path) -> None:
    """On a graph of the two operations alone, so that what the other tests lean on is itself tested."""
    import onnxruntime
    from onnx import TensorProto, helper

    from polybatch.targets.qaic.device_semantics import load_with_device_semantics

    cache = helper.make_tensor_value_info("past_key.0", TensorProto.FLOAT, [2, 1, "ctx_len", 1])
    at = helper.make_tensor_value_info("at", TensorProto.INT64, [2, 1, 1, 3])
    new = helper.make_tensor_value_info("new", TensorProto.FLOAT, [2, 1, 1, 1])
    state = helper.make_tensor_value_info("past_key.0_RetainedState", TensorProto.FLOAT, [2, 1, "ctx_len", 1])
    read = helper.make_tensor_value_info("read", TensorProto.FLOAT, [2, 1, 1, 1])
    nodes = [
        helper.make_node("ScatterND", ["past_key.0", "at", "new"], ["past_key.0_RetainedState"]),
        helper.make_node("GatherND", ["past_key.0_RetainedState", "at"], ["read"]),
    ]
    graph = helper.make_graph(nodes, "g", [cache, at, new], [state, read])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(load_with_device_semantics(tmp_path))
    indices = np.array([[[[0, 0, 2]]], [[[1, 0, 2**31 - 1]]]])
    feeds = {"past_key.0": np.zeros((2, 1, 3, 1), np.float32), "at": indices, "new": np.ones((2, 1, 1, 1), np.float32)}
    written, seen = session.run(["past_key.0_RetainedState", "read"], feeds)
    assert written.ravel().tolist() == [0, 0, 1, 0, 0, 0]
    assert seen[0].item() == 1
    assert np.isnan(seen[1].item())
