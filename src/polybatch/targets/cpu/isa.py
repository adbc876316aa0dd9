"""The instruction sets that a program of the cpu target can be compiled for."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from polybatch.cpu_features import available_features

# The x86-64 psABI levels, as /proc/cpuinfo spells their features.
_LEVEL_3 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")
_LEVEL_4 = (*_LEVEL_3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True)
class Isa:
    """One instruction set: what the compiler is told and what the machine must have."""

    name: str
    march: str
    """Value of ``-march``; empty leaves the compiler's default, which every machine of the architecture runs."""
    extra_flags: tuple[str, ...]
    cpu_features: tuple[str, ...]
    """As in the ``flags`` line of /proc/cpuinfo."""
    inductor_simdlen: int
    """Vector width in bits of Inductor's generated code; 1 is a width that no set has, so it writes scalar loops."""

    @property
    def compile_flags(self) -> tuple[str, ...]:
        return ((f"-march={self.march}",) if self.march else ()) + self.extra_flags


ISAS: dict[str, Isa] = {
    isa.name: isa
    for isa in (
        Isa(
            "avx512_bf16",
            "x86-64-v4",
            ("-mavx512bf16", "-mavx512vnni"),
            (*_LEVEL_4, "avx512_bf16", "avx512_vnni"),
            512,
        ),
        Isa("avx512", "x86-64-v4", (), _LEVEL_4, 512),
        Isa("avx2", "x86-64-v3", (), _LEVEL_3, 256),
        Isa("portable", "", (), (), 1),
    )
}
"""Best first."""


def missing_features(isa: Isa) -> tuple[str, ...]:
    """The features that ``isa`` needs and this machine lacks."""
    present = available_features()
    return tuple(feature for feature in isa.cpu_features if feature not in present)


def available_isas() -> tuple[Isa, ...]:
    """What this machine can run, best first; ``portable`` is always among them."""
    return tuple(isa for isa in ISAS.values() if not missing_features(isa))


def resolve_isa(name: str) -> Isa:
    """The instruction set called ``name``; ``"native"`` is the best one that this machine has.

    Raises:
        ValueError: no such name. A set that this machine lacks is not an error: it can still be compiled for.
    """
    if name == "native":
        return available_isas()[0] if platform.machine() in ("x86_64", "AMD64") else ISAS["portable"]
    if name not in ISAS:
        raise ValueError(f"unknown isa {name!r}; choose native, {', '.join(ISAS)}")
    return ISAS[name]
