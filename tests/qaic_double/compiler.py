"""A double of ``qaic-compile``.

Takes the same command line, refuses what the real one refuses, and keeps the graph for ONNX Runtime instead of
compiling it. What it writes is read by ``driver.py``.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from polybatch.targets.qaic.device_semantics import load_with_device_semantics

SUFFIX = "_RetainedState"
# Numbers of the element types, by those of ONNX and by the names of custom_io.yaml.
TYPES = {onnx.TensorProto.FLOAT: 0, onnx.TensorProto.INT64: 7, onnx.TensorProto.BFLOAT16: 11}
PRECISIONS = {"float16": 1, "bfloat16": 11, "mxint8": 8}
ITEM_BYTES = {0: 4, 1: 2, 7: 8, 8: 1, 11: 2}
BARE = {
    "-aic-hw", "-retained-state", "-convert-to-fp16", "-mxfp6-matmul", "-aic-enable-depth-first", "-qpc-crc",
}  # fmt: skip
VALUED = {
    "-aic-hw-version", "-m", "-aic-num-cores", "-mos", "-mdp-load-partition-config", "-network-specialization-config",
    "-custom-IO-list-file", "-aic-binary-dir", "-allocator-dealloc-delay",
}  # fmt: skip


def main(argv: list[str]) -> int:
    flags = _flags(argv)
    model = onnx.load(flags["-m"], load_external_data=False)
    graph = model.graph
    rows = _rows(Path(flags["-network-specialization-config"]))
    precision = _custom_io(Path(flags["-custom-IO-list-file"])) if "-custom-IO-list-file" in flags else {}
    tensors = [(entry, True) for entry in graph.input] + [(entry, False) for entry in graph.output]
    retained = _retained(tensors, precision)
    _require_one_cache_shape(tensors, retained, rows)
    allowed = [[_described(entry, row, precision) for entry, _ in tensors] for row in rows]
    bindings = []
    for index, ((entry, is_input), (kind, dims)) in enumerate(zip(tensors, allowed[0], strict=True)):
        size = int(np.prod(dims)) * ITEM_BYTES[kind]
        bindings.append(
            {"name": entry.name, "index": index, "type": kind, "dir": 0 if is_input else 1, "dims": dims, "size": size,
             "is_partial_buf_allowed": entry.name in retained and "-retained-state" in flags}
        )  # fmt: skip
    devices = 1
    if "-mdp-load-partition-config" in flags:
        partitions = json.loads(Path(flags["-mdp-load-partition-config"]).read_text())["partitions"]
        devices = len(partitions[0]["devices"])
    out = Path(flags["-aic-binary-dir"])
    if out.exists():
        raise SystemExit(f"{out} exists")
    out.mkdir()
    (out / "graph.onnx").write_bytes(load_with_device_semantics(Path.cwd()))
    shutil.copyfile("model.onnx.data", out / "model.onnx.data")
    described = {"bindings": bindings, "allowed_shapes": allowed if len(rows) > 1 else [], "devices": devices}
    (out / "programqpc.bin").write_text(json.dumps(described))
    print(f"compiled {len(rows)} specializations")
    return 0


def _flags(argv: list[str]) -> dict[str, str]:
    flags: dict[str, str] = {}
    for argument in argv:
        name, _, value = argument.partition("=")
        if name not in BARE | VALUED or (name in VALUED) != bool(value) or name in flags:
            raise SystemExit(f"bad argument {argument}")
        flags[name] = value
    missing = {"-aic-hw", "-m", "-network-specialization-config", "-aic-binary-dir", "-retained-state"} - flags.keys()
    if missing:
        raise SystemExit(f"missing {sorted(missing)}")
    return flags


def _rows(path: Path) -> list[dict[str, str]]:
    entries = json.loads(path.read_text())["specializations"]
    rows = [entry.get("symbols", entry) for entry in entries]
    if any(type(value) is not str for row in rows for value in row.values()):
        sys.exit(255)
    return rows


def _custom_io(path: Path) -> dict[str, str]:
    text = path.read_text()
    found = re.findall(r"^ - IOName: (\S+)\n   Precision: (\S+)\n\n", text, re.MULTILINE)
    if sum(len(f" - IOName: {name}\n   Precision: {kind}\n\n") for name, kind in found) != len(text):
        raise SystemExit(f"{path} cannot be read")
    return dict(found)


def _retained(tensors: list[tuple[Any, bool]], precision: dict[str, str]) -> set[str]:
    inputs = {entry.name for entry, is_input in tensors if is_input}
    outputs = {entry.name for entry, is_input in tensors if not is_input and entry.name.endswith(SUFFIX)}
    pairs = {name.removesuffix(SUFFIX) for name in outputs}
    if not pairs <= inputs:
        raise SystemExit(f"retained outputs without an input: {sorted(pairs - inputs)}")
    if precision and precision.keys() != pairs | outputs:
        raise SystemExit("custom IO does not list both sides of every retained pair")
    if any(precision[name] != precision[name + SUFFIX] for name in pairs & precision.keys()):
        raise SystemExit("custom IO gives a pair two precisions")
    return pairs | outputs


def _described(entry: Any, row: dict[str, str], precision: dict[str, str]) -> tuple[int, list[int]]:
    tensor = entry.type.tensor_type
    dims = [int(row[dim.dim_param]) if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
    return PRECISIONS.get(precision.get(entry.name, ""), TYPES[tensor.elem_type]), dims


def _require_one_cache_shape(tensors: list[tuple[Any, bool]], retained: set[str], rows: list[dict[str, str]]) -> None:
    for entry, _ in tensors:
        if entry.name in retained and len({str(_described(entry, row, {})) for row in rows}) > 1:
            raise SystemExit(f"{entry.name} has another shape in another specialization")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
