"""What graph passes ask of nodes."""

from __future__ import annotations

from typing import Any

from torch import fx


def call_args(node: Any, target: Any, count: int) -> tuple[Any, ...] | None:
    """The arguments of a call of ``target`` with that many of them and no others, else None."""
    if not isinstance(node, fx.Node) or node.op != "call_function" or node.target != target or node.kwargs:
        return None
    return node.args if len(node.args) == count else None


def only_user(node: fx.Node, target: Any) -> fx.Node | None:
    """The one node that reads ``node``, if it calls ``target``."""
    user = next(iter(node.users), None)
    return user if len(node.users) == 1 and user is not None and user.target == target else None
