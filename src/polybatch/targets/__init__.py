"""The targets by name; each is imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polybatch.targets.base import Target

_TARGETS = {"cpu": "polybatch.targets.cpu.target", "eager": "polybatch.targets.eager.target"}


def target_names() -> tuple[str, ...]:
    """The names that ``compile(target=...)`` takes."""
    return tuple(_TARGETS)


def get_target(name: str) -> Target:
    """The target of that name; ValueError lists the valid ones."""
    if name not in _TARGETS:
        raise ValueError(f"unknown target {name!r}; pass one of {', '.join(_TARGETS)}")
    target: Target = import_module(_TARGETS[name]).TARGET
    return target
