"""Graph pass: results that the graph turns into float32 at once are never rounded to bfloat16.

The output projection's are: of two logits that bfloat16 cannot tell apart, the larger one wins.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from polybatch.ops import PACKED_LINEARS

_to_dtype = torch.ops.aten.to.dtype


def keep_float_results(graph: fx.GraphModule) -> int:
    """Let packed linears return float32 where nothing else is made of them, in place; how many do."""
    kept = 0
    for node in graph.graph.nodes:
        if node.target in PACKED_LINEARS and len(node.users) == 1 and _widens(user := next(iter(node.users))):
            node.kwargs = {**node.kwargs, "float_result": True}
            node.meta["val"] = user.meta["val"]
            user.replace_all_uses_with(node)
            graph.graph.erase_node(user)
            kept += 1
    graph.recompile()
    return kept


def _widens(node: Any) -> bool:
    return node.target == _to_dtype and tuple(node.args[1:]) == (torch.float32,) and not node.kwargs
