"""Builds the files of a cpu program; imported only by a compile, which needs transformers and a C++ compiler."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, fx
from transformers import PreTrainedModel

from polybatch.errors import CompilerError, UnsupportedModelError
from polybatch.kv_layout import KVLayout
from polybatch.models.export import export_step
from polybatch.targets.base import BuildRequest, BuildResult
from polybatch.targets.cpu.calibration import observe_inputs
from polybatch.targets.cpu.float_results import keep_float_results
from polybatch.targets.cpu.fusion import fuse_rotary
from polybatch.targets.cpu.gating import fuse_gates
from polybatch.targets.cpu.graph import compile_graph
from polybatch.targets.cpu.isa import Isa, available_isas, missing_features, resolve_isa
from polybatch.targets.cpu.native import KernelLibrary, build_kernels, compiler_version, soname
from polybatch.targets.cpu.norms import fuse_norms
from polybatch.targets.cpu.passes import is_batch_invariant, pack_weights
from polybatch.targets.cpu.residuals import fuse_residuals
from polybatch.targets.cpu.runner import GRAPH, KERNELS, WEIGHTS, cache_layout, open_graph
from polybatch.targets.cpu.weight_formats import WEIGHT_PLANS
from polybatch.weights import write_safetensors


def build_program(request: BuildRequest, folder: Path) -> BuildResult:
    """Write graph.so, kernels.so and the packed weights. Raises CompilerError and UnsupportedModelError."""
    isa = _isa_of_this_machine(request.isa)
    request.progress("building kernels")
    kernels = KernelLibrary(build_kernels(isa, folder / KERNELS))
    request.progress("exporting the graph")
    layout = cache_layout(request.cache)
    graph, inputs = _export(request.model, layout)
    plan = WEIGHT_PLANS[request.weights]
    examples = {} if request.text is None else observe_inputs(request.model, request.text)
    request.progress("packing weights")
    fuse_rotary(graph)
    rounded = pack_weights(graph, plan, examples)
    keep_float_results(graph)
    if kernels.has_gates:
        fuse_gates(graph)
    fuse_residuals(graph)
    fuse_norms(graph)
    request.progress("compiling the graph")
    constants = compile_graph(graph, inputs, isa, folder / KERNELS, soname(isa), folder / GRAPH)
    request.progress("storing weights")
    compiled, _ = open_graph(folder)
    wanted = compiled.get_constant_names_to_original_fqns()
    write_safetensors(folder / WEIGHTS, {name: constants[fqn] for name, fqn in wanted.items()})
    return BuildResult(
        isa=isa.name,
        cpu_features=isa.cpu_features,
        compiler=compiler_version(),
        batch_invariant=is_batch_invariant(graph),
        bytes_per_slot=layout.slot_elements * request.model.dtype.itemsize,
        rounded=rounded,
    )


def _export(model: PreTrainedModel, layout: KVLayout) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    try:
        return export_step(model, layout)
    except Exception as error:  # torch.export raises many kinds, most of them internal
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UnsupportedModelError(
            f"{type(model).__name__} is not supported: its forward pass cannot be exported ({reason})"
        ) from error


def _isa_of_this_machine(name: str) -> Isa:
    """Programs are checked where they are compiled, so the machine must be able to run them."""
    isa = resolve_isa(name)
    missing = missing_features(isa)
    if missing:
        best = available_isas()[0].name
        raise CompilerError(
            f"isa={isa.name} needs {', '.join(missing)}, which this machine lacks, so the program could not be checked "
            f"here; compile on a machine that has it, or with isa={best}"
        )
    return isa
