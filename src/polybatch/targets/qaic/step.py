"""One step as the module whose ONNX graph the device compiler takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from polybatch.models.guard import routed
from polybatch.targets.qaic import attention, experts
from polybatch.targets.qaic.attention import CacheContext, running


class QaicStep(nn.Module):
    """(input_ids, position_ids, past, ...) -> (logits, past after the step), with the names' contract of ``names``.

    ``past`` is a list of [keys, values] per layer, [slots, kv_heads, ctx_len, dim]. Of ``comp_ctx_lengths`` [L] and
    ``num_logits_to_keep`` [n, 1] only the lengths count. Without ``batch_index`` row b is slot b. Logits are float32
    [b, n, vocab] of the n columns that end at each row's last live token (with fewer, of the first n columns).
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        past: list[list[Tensor]],
        comp_ctx_lengths: Tensor | None = None,
        batch_index: Tensor | None = None,
        num_logits_to_keep: Tensor | None = None,
    ) -> tuple[Tensor, list[list[Tensor]]]:
        length = past[0][0].shape[2] if comp_ctx_lengths is None else comp_ctx_lengths.shape[0]
        context = CacheContext([list(layer) for layer in past], position_ids, batch_index, length)
        columns = _wanted_columns(position_ids, 1 if num_logits_to_keep is None else num_logits_to_keep.shape[0])
        with running.use(context), _keep_columns(self.model.get_output_embeddings(), columns):
            out = self.model(input_ids=input_ids, position_ids=position_ids.clamp(min=0), use_cache=False)
        return out.logits.float(), context.past


@contextmanager
def device_graph(model: PreTrainedModel) -> Iterator[None]:
    """Route the model's attention and experts through this target's functions for a while."""
    with routed(model, attention.IMPLEMENTATION):
        model.set_experts_implementation(experts.IMPLEMENTATION)
        yield


def _wanted_columns(position_ids: Tensor, count: int) -> Tensor:
    """[b, count]: the columns whose logits are returned."""
    # ONNX Runtime has no ArgMax of int64.
    last = position_ids.to(torch.int32).argmax(dim=1, keepdim=True)
    start = torch.where(last < count, 0, last + 1 - count)
    return start + torch.arange(count)[None, :]


@contextmanager
def _keep_columns(head: nn.Module, columns: Tensor) -> Iterator[None]:
    """Let only these columns of the hidden states through the output projection."""

    def keep(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden: Tensor = args[0]
        return (torch.gather(hidden, 1, columns[:, :, None].expand(-1, -1, hidden.shape[-1])), *args[1:])

    handle = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        handle.remove()
