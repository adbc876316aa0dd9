"""torch.export of the step: one graph, symbolic in batch, tokens, wanted logits and cache size."""

from __future__ import annotations

import warnings

import torch
from torch import fx
from torch.export import Dim
from transformers import PreTrainedModel

from polybatch.kv_layout import KVLayout
from polybatch.models.guard import routed
from polybatch.models.step import StepModule

# Upper bounds of the symbolic sizes; they only bound what the graph may assume, nothing is sized by them.
_MAX_ROWS = 1 << 16
_MAX_TOKENS = 1 << 20
_MAX_CACHE = 1 << 40
# Example sizes: small, all different and none 0 or 1, so that no size is mistaken for another or specialized.
_EXAMPLE_ROWS, _EXAMPLE_TOKENS, _EXAMPLE_LOGITS, _EXAMPLE_SLOTS, _EXAMPLE_ELEMENTS = 3, 8, 5, 4, 64


def export_step(model: PreTrainedModel, layout: KVLayout) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """The step's graph (ATen ops plus polybatch's own) and example inputs with symbolic shapes.

    Inputs in order: input_ids, position_ids, batch_index, logits_index, cache (see :class:`StepModule`).
    Parameters stay attributes of the graph module. The example cache is tiny: a full one would be cloned by export.
    """
    dtype = next(model.parameters()).dtype
    rows, tokens = Dim("batch", min=1, max=_MAX_ROWS), Dim("tokens", min=1, max=_MAX_TOKENS)
    logits = Dim("logits", min=1, max=_MAX_TOKENS)
    slots, elements = Dim("slots", min=1, max=_MAX_ROWS), Dim("slot_elements", min=1, max=_MAX_CACHE)
    step = (_EXAMPLE_ROWS, _EXAMPLE_TOKENS)
    inputs = (
        torch.ones(step, dtype=torch.long),
        torch.arange(_EXAMPLE_TOKENS).repeat(_EXAMPLE_ROWS, 1),
        torch.arange(_EXAMPLE_ROWS)[:, None].clone(),
        torch.arange(_EXAMPLE_LOGITS).repeat(_EXAMPLE_ROWS, 1),
        torch.zeros(_EXAMPLE_SLOTS, _EXAMPLE_ELEMENTS, dtype=dtype),
    )
    shapes = (
        {0: rows, 1: tokens},
        {0: rows, 1: tokens},
        {0: rows},
        {0: rows, 1: logits},
        {0: slots, 1: elements},
    )
    with torch.no_grad(), routed(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecations
        exported = torch.export.export(StepModule(model, layout), inputs, dynamic_shapes=shapes, strict=False)
    graph = exported.module(check_guards=False)
    return graph, tuple(exported.example_inputs[0])
