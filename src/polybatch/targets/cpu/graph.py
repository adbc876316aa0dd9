"""Ahead-of-time compilation of the packed graph with AOTInductor: one symbolic graph, one shared library."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from polybatch.errors import CompilerError
from polybatch.ops import NATIVE_OPS
from polybatch.targets.cpu.isa import Isa
from polybatch.targets.cpu.vector_isa import only_vectors_of

# How AOTInductor passes each type of argument to a C function that stands for an operator (its "C shim").
_C_TYPES = {
    "Tensor": "AtenTensorHandle",
    "Optional[Tensor]": "AtenTensorHandle*",
    "int": "int64_t",
    "float": "double",
    "bool": "int32_t",
}


def compile_graph(
    graph: fx.GraphModule, inputs: tuple[Tensor, ...], isa: Isa, kernels: Path, soname: str, output: Path
) -> dict[str, Tensor]:
    """Compile ``graph`` for ``isa`` into the shared library ``output``, linked to ``kernels`` by its ``soname``.

    Returns the constants that the library must be given at load, by name. Raises :class:`CompilerError`.
    """
    with tempfile.TemporaryDirectory(prefix="polybatch-graph-") as folder:
        work = Path(folder)
        shutil.copyfile(kernels, work / soname)
        options = _options(isa, work, soname)
        try:
            with _library_path(work), only_vectors_of(isa), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of its own deprecations
                built = torch._inductor.aot_compile(graph, inputs, options=options)
        except Exception as error:
            raise CompilerError(f"compiling the graph for isa={isa.name} failed: {_last_lines(error)}") from error
        shutil.copyfile(str(built), output)
    return _constants(graph)


def _options(isa: Isa, work: Path, soname: str) -> dict[str, Any]:
    return {
        "aot_inductor.output_path": str(work / "graph.so"),
        "aot_inductor.package_constants_in_so": False,
        "aot_inductor.custom_ops_to_c_shims": {op: [_c_shim(op)] for op in NATIVE_OPS},
        "aot_inductor.custom_op_libs": [f":{soname}"],
        "cpp.simdlen": isa.inductor_simdlen,
        "cpp.march": isa.march,
        "cpp.dynamic_threads": True,
    }


def _c_shim(op: torch._ops.OpOverload) -> str:
    """The declaration of the function in kernels.so (kernels/*_shims.cpp) that generated code calls for ``op``."""
    arguments = [f"{_C_TYPES[str(argument.type)]} {argument.name}" for argument in op._schema.arguments]
    name = op._schema.name.rpartition("::")[2]
    return f"AOTITorchError aoti_torch_cpu_{name}({', '.join(arguments)}, AtenTensorHandle* ret0)"


@contextmanager
def _library_path(folder: Path) -> Iterator[None]:
    """Let the linker find the kernels in ``folder``."""
    before = os.environ.get("LIBRARY_PATH")
    os.environ["LIBRARY_PATH"] = str(folder) if before is None else f"{folder}{os.pathsep}{before}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["LIBRARY_PATH"]
        else:
            os.environ["LIBRARY_PATH"] = before


def _constants(graph: fx.GraphModule) -> dict[str, Tensor]:
    named = [*graph.named_parameters(remove_duplicate=False), *graph.named_buffers(remove_duplicate=False)]
    return {name: tensor.detach() for name, tensor in named}


def _last_lines(error: Exception, lines: int = 8) -> str:
    return "\n".join(str(error).strip().splitlines()[-lines:])
