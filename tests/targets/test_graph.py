"""Compiled graphs and their instruction sets: what a program may use, and two sets in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_kernels import assert_same_bits, seeded
from torch import Tensor, nn
from torch._inductor import cpu_vec_isa

from polybatch import ops  # noqa: F401  registers the operators
from polybatch.targets.cpu.graph import compile_graph
from polybatch.targets.cpu.isa import ISAS, Isa, available_isas
from polybatch.targets.cpu.native import KernelLibrary, build_kernels, soname
from polybatch.targets.cpu.packing import pack_linear
from polybatch.targets.cpu.runner import GRAPH, KERNELS, open_graph
from polybatch.targets.cpu.vector_isa import only_vectors_of

COLUMNS, WIDTH = 70, 600


@pytest.mark.parametrize("isa", ISAS.values(), ids=ISAS)
def test_generated_code_is_compiled_for_the_isa_and_nothing_more(isa: Isa) -> None:
    with only_vectors_of(isa):
        vectors = cpu_vec_isa.valid_vec_isa_list()
    assert all(vectors)  # whatever machine compiles
    assert [vector.build_arch_flags() for vector in vectors] in ([], [" ".join(isa.compile_flags)])
    assert [vector.bit_width() for vector in vectors] == [isa.inductor_simdlen] * (isa.name != "portable")


class Product(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.polybatch.packed_linear(x, self.weight, None, COLUMNS)


def compiled(isa: Isa, x: Tensor, weight: Tensor, folder: Path) -> Path:
    folder.mkdir()
    build_kernels(isa, folder / KERNELS)
    graph = torch.export.export(Product(weight), (x,)).module()
    compile_graph(graph, (x,), isa, folder / KERNELS, soname(isa), folder / GRAPH)
    return folder


@pytest.mark.skipif(len(available_isas()) < 2, reason="this machine has one instruction set")
def test_two_isas_in_one_process_keep_to_their_own_kernels(tmp_path: Path) -> None:
    x = seeded(3, WIDTH)
    weight = pack_linear(seeded(COLUMNS, WIDTH, seed=1))
    best, *_, plainest = available_isas()
    folders = [compiled(isa, x, weight, tmp_path / isa.name) for isa in (best, plainest)]
    graphs = [open_graph(folder)[0] for folder in folders]
    for graph in graphs:
        (name,) = graph.get_constant_names_to_original_fqns()
        graph.update_constant_buffer({name: weight}, False, True, True)
    results = [graph.run([x])[0] for graph in graphs]
    for folder, result in zip(folders, results, strict=True):
        assert_same_bits(result, KernelLibrary(folder / KERNELS).packed_linear(x, weight, None, COLUMNS))
    assert not torch.equal(*results)  # or the test could not tell the kernels apart
