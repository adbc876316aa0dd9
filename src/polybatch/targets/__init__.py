"""The targets by name; each is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybatch.targets.base import Target
    from polybatch.targets.qaic.options import QaicOptions

_WEIGHTS = ("int8", "int8-weight-only")
_TARGETS = {
    "cpu": "polybatch.targets.cpu.target",
    "eager": "polybatch.targets.eager.target",
    "qaic": "polybatch.targets.qaic.target",
}


def target_names() -> tuple[str, ...]:
    """The names that ``compile(target=...)`` takes."""
    return tuple(_TARGETS)


def check_weights(target: str, weights: str | None) -> None:
    """ValueError for a weight format that does not exist or that the target does not have; the target is known."""
    if weights is not None and weights not in _WEIGHTS:
        raise ValueError(
            f"unknown weights {weights!r}; pass one of {', '.join(_WEIGHTS)}, or none to keep the model's dtype"
        )
    if weights is not None and target == "eager":
        raise ValueError(
            f"target eager runs the model as it is, without weights={weights!r}; leave weights out or pass target='cpu'"
        )
    if weights is not None and target == "qaic":
        raise ValueError(
            f"target qaic has no weights={weights!r}; leave weights out, and choose mxfp6_matmul for 6-bit weights"
        )


def check_qaic_options(target: str, options: QaicOptions | None) -> None:
    """ValueError for options of the device with another target."""
    if options is not None and target != "qaic":
        raise ValueError(f"target {target} takes no options for the device; leave them out or pass target='qaic'")


def exports_float32(target: str, options: QaicOptions | None) -> bool:
    """Whether the target takes a bfloat16 model in float32."""
    return target == "qaic" and (options is None or options.hardware == "ai100")


def get_target(name: str) -> Target:
    """The target of that name; ValueError lists the valid ones."""
    if name not in _TARGETS:
        raise ValueError(f"unknown target {name!r}; pass one of {', '.join(_TARGETS)}")
    target: Target = import_module(_TARGETS[name]).TARGET
    return target
