"""Options of ``polybatch compile --target qaic``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from polybatch.targets.qaic.options import QaicOptions

_PANEL = "Options of target qaic"


def _option(name: str, help: str, **more: Any) -> Any:
    return typer.Option(name, help=help, show_default=False, rich_help_panel=_PANEL, **more)


NumCores = Annotated[int | None, _option("--num-cores", "Cores of each device; default: 16.")]
NumDevices = Annotated[int | None, _option("--num-devices", "Devices that matrices are sliced over; default: 1.")]
Mxfp6Matmul = Annotated[bool, _option("--mxfp6-matmul", "Weights of matrix products in 6 bits.")]
Mxint8KvCache = Annotated[bool, _option("--mxint8-kv-cache", "KV cache in 8 bits instead of float16.")]
Mos = Annotated[int | None, _option("--mos", "Effort to keep data on the chip; default: the compiler's choice.")]
DepthFirst = Annotated[bool, _option("--aic-enable-depth-first", "Schedule depth first.")]
FlatSpecializations = Annotated[
    bool, _option("--flat-specializations", "specializations.json without names, for older SDKs.")
]
PlainOnnx = Annotated[bool, _option("--plain-onnx", "Standard operators only in the graph.")]
Hardware = Annotated[str | None, _option("--hardware", "ai100 (default) or ai200.")]
ExtraFlags = Annotated[
    list[str] | None,
    _option("--extra-flag", "Another flag for qaic-compile, such as --extra-flag=-qpc-crc; repeatable.", metavar="F"),
]


def device_options(target: str, **given: Any) -> QaicOptions | None:
    """The options that were given (not None and not False); None where there are none. ValueError and TypeError."""
    from polybatch.targets import check_qaic_options
    from polybatch.targets.qaic.options import QaicOptions

    chosen = {name: value for name, value in given.items() if value is not None and value is not False}
    if "extra_flags" in chosen:
        chosen["extra_flags"] = tuple(chosen["extra_flags"])
    options = QaicOptions(**chosen) if chosen else None
    check_qaic_options(target, options)
    return options
