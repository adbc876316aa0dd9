"""What can be chosen for the device besides the table; checked when it is made. Pure code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

MANAGED_FLAGS = {
    "-aic-hw": "target='qaic' always passes it",
    "-aic-hw-version": "pass hardware=",
    "-m": "the compile writes the model",
    "-mdp-load-partition-config": "pass num_devices=",
    "-retained-state": "target='qaic' always passes it",
    "-convert-to-fp16": "it follows from hardware= and the model's dtype",
    "-aic-num-cores": "pass num_cores=",
    "-mxfp6-matmul": "pass mxfp6_matmul=True",
    "-mos": "pass mos=",
    "-aic-enable-depth-first": "pass aic_enable_depth_first=True",
    "-network-specialization-config": "the compile writes the table",
    "-custom-IO-list-file": "pass mxint8_kv_cache=",
    "-aic-binary-dir": "the result belongs into the program",
    "-compile-only": "the compiler no longer takes it",
}
"""Flags of the compiler that :func:`polybatch.targets.qaic.argv.compiler_argv` decides on, and what to do instead."""

_HARDWARE = ("ai100", "ai200")
_MAX_CORES = 64


@dataclass(frozen=True)
class QaicOptions:
    """Options of ``compile(target="qaic")``.

    * ``num_cores``: cores of each device that the program takes.
    * ``num_devices``: devices over which every matrix is sliced.
    * ``mxfp6_matmul``: weights of matrix products in 6 bits with shared exponents.
    * ``mxint8_kv_cache``: the KV cache in 8 bits with shared exponents, instead of float16.
    * ``mos``: the compiler's effort to keep data on the chip (None: its own choice).
    * ``aic_enable_depth_first``: schedule depth first.
    * ``extra_flags``: passed to the compiler as they are, such as ``-allocator-dealloc-delay=2``; a flag that is
      decided on otherwise is refused.
    * ``flat_specializations``: ``specializations.json`` in the form of SDKs that take no named entries.
    * ``plain_onnx``: standard operators only, instead of the cache functions of the vendor's domain.
    * ``hardware``: ``ai100``, or ``ai200``, which keeps a bfloat16 model in bfloat16.

    Raises TypeError and ValueError.
    """

    num_cores: int = 16
    num_devices: int = 1
    mxfp6_matmul: bool = False
    mxint8_kv_cache: bool = False
    mos: int | None = None
    aic_enable_depth_first: bool = False
    extra_flags: tuple[str, ...] = ()
    flat_specializations: bool = False
    plain_onnx: bool = False
    hardware: str = "ai100"

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type == "bool" and not isinstance(getattr(self, field.name), bool):
                raise TypeError(f"{field.name} must be a bool, not {getattr(self, field.name)!r}")
        _require_int("num_cores", self.num_cores, 1)
        _require_int("num_devices", self.num_devices, 1)
        if self.num_cores > _MAX_CORES:
            raise ValueError(f"num_cores={self.num_cores} is more than any device has; pass 1 to {_MAX_CORES}")
        if self.mos is not None:
            _require_int("mos", self.mos, 0)
        if self.hardware not in _HARDWARE:
            raise ValueError(f"unknown hardware {self.hardware!r}; pass one of {', '.join(_HARDWARE)}")
        object.__setattr__(self, "extra_flags", _checked_flags(self.extra_flags))

    def to_json(self) -> dict[str, Any]:
        """The fields as a plain dict."""
        return {**asdict(self), "extra_flags": list(self.extra_flags)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> QaicOptions:
        """The options that :meth:`to_json` wrote."""
        return cls(**{**data, "extra_flags": tuple(data["extra_flags"])})


def _require_int(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {value!r}")
    if value < least:
        raise ValueError(f"{name}={value} is too small; pass {least} or more")


def _checked_flags(flags: object) -> tuple[str, ...]:
    if not isinstance(flags, (tuple, list)) or not all(isinstance(flag, str) for flag in flags):
        raise TypeError(f"extra_flags must be a tuple of strings, not {flags!r}")
    seen: set[str] = set()
    for flag in flags:
        # One and two dashes are the same to the compiler's parser.
        name = "-" + flag.partition("=")[0].lstrip("-")
        if not flag.startswith("-") or name == "-" or any(c.isspace() or ord(c) < 32 for c in flag):
            raise ValueError(f"extra flag {flag!r} is no compiler flag; write it as -name or -name=value")
        if name in MANAGED_FLAGS:
            raise ValueError(f"extra flag {flag!r} clashes with what the compile passes itself: {MANAGED_FLAGS[name]}")
        if name in seen:
            raise ValueError(f"extra flag {name} is given twice; leave one out")
        seen.add(name)
    return tuple(flags)
