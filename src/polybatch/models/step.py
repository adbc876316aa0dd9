"""One step of a causal LM over the retained cache, as a module that can be run eagerly or exported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polybatch.kv_layout import KVLayout
from polybatch.models.attention import StepContext, running


class StepModule(nn.Module):
    """``logits = step(input_ids, position_ids, batch_index, logits_index, cache)``.

    ``input_ids`` and ``position_ids`` are int64 [b, s] (-1 = padding), ``batch_index`` int64 [b, 1] names each row's
    slot, ``logits_index`` int64 [b, n] the columns whose logits are wanted, ``cache`` [slots, elements] is changed in
    place. Returns float32 [b, n, vocab]. Only the wanted columns pass through the output projection.
    """

    def __init__(self, model: PreTrainedModel, layout: KVLayout) -> None:
        super().__init__()
        self.model = model
        self.layout = layout
        self._logits_index: Tensor | None = None
        model.get_output_embeddings().register_forward_pre_hook(self._keep_wanted_columns)

    def _keep_wanted_columns(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._logits_index is None:
            return None
        hidden: Tensor = args[0]
        index = self._logits_index[:, :, None].expand(-1, -1, hidden.shape[-1])
        return (torch.gather(hidden, 1, index), *args[1:])

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, batch_index: Tensor, logits_index: Tensor, cache: Tensor
    ) -> Tensor:
        self._logits_index = logits_index
        try:
            with running.use(StepContext(cache, batch_index, position_ids, self.layout)):
                out = self.model(input_ids=input_ids, position_ids=position_ids.clamp(min=0), use_cache=False)
        finally:
            self._logits_index = None
        logits: Tensor = out.logits.float()
        return logits
