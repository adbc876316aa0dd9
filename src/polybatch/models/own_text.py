"""Text that a model writes by itself: calibration data that needs no data set and no tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

_SEQUENCES, _TOKENS = 8, 64


def own_text(model: PreTrainedModel, sequences: int = _SEQUENCES, length: int = _TOKENS) -> Tensor:
    """Token ids [sequences, length], sampled at temperature 1 after random first tokens.

    The same on every call with the same number of threads. Shorter where the model's positions end.
    """
    config = model.config.get_text_config()
    length = min(length, getattr(config, "max_position_embeddings", None) or length)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, int(config.vocab_size), (sequences, 1), generator=generator)
    cache: Any = None
    with plain_attention(model), torch.no_grad():
        while tokens.shape[1] < length:
            out = model(input_ids=tokens[:, -1:], cache=cache, use_cache=True)
            cache = out.cache
            probabilities = torch.softmax(out.logits[:, -1].float(), dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(probabilities, 1, generator=generator)], dim=1)
    return tokens


@contextmanager
def plain_attention(model: PreTrainedModel) -> Iterator[None]:
    """transformers' own eager attention and experts for a while: everything is made of plain products."""
    before = (model.config._attn_implementation, model.config._experts_implementation)
    try:
        model.set_attn_implementation("eager")
        model.set_experts_implementation("eager")
        yield
    finally:
        model.set_attn_implementation(before[0])
        model.set_experts_implementation(before[1])
