"""The vector instructions that Inductor may use, pinned to an :class:`Isa`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._inductor import cpu_vec_isa

from polybatch.targets.cpu.isa import Isa


class _Pinned:
    """Answers for a torch class of vectors: usable, and compiled with the flags of one ``Isa`` only.

    Left alone, Inductor asks the machine that compiles: it adds -mavx512bf16 or -mavx512vnni where it finds them, so
    that a program could need more than its recorded CPU features, and refuses what the machine cannot run itself.
    """

    flags = ""

    def __bool__(self) -> bool:
        return True

    def build_arch_flags(self) -> str:
        return self.flags


class _Avx512(_Pinned, cpu_vec_isa.VecAVX512):  # type: ignore[misc]  # torch caches its __bool__
    pass


class _Avx2(_Pinned, cpu_vec_isa.VecAVX2):
    pass


_VECTORS: dict[int, type[_Avx512] | type[_Avx2]] = {512: _Avx512, 256: _Avx2}


@contextmanager
def only_vectors_of(isa: Isa) -> Iterator[None]:
    """While this is open, Inductor generates vector code for ``isa`` and nothing else (scalar code if it has none)."""
    vectors = []
    if isa.inductor_simdlen in _VECTORS:
        pinned = _VECTORS[isa.inductor_simdlen]()
        pinned.flags = " ".join(isa.compile_flags)
        vectors.append(pinned)
    before = cpu_vec_isa.valid_vec_isa_list
    setattr(cpu_vec_isa, "valid_vec_isa_list", lambda: vectors)  # noqa: B010
    try:
        yield
    finally:
        setattr(cpu_vec_isa, "valid_vec_isa_list", before)  # noqa: B010
