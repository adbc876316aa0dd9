"""Text that a model writes by itself: calibration data that needs no data set and no tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polybatch.models.reference import plain_attention, widened

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
    # In float32, because torch packs a bfloat16 weight again for every product of a few rows.
    with plain_attention(model), widened(model), torch.no_grad():
        while tokens.shape[1] < length:
            out = model(input_ids=tokens[:, -1:], cache=cache, use_cache=True)
            cache = out.cache
            probabilities = torch.softmax(out.logits[:, -1].float(), dim=-1)
            tokens = torch.cat([tokens, torch.multinomial(probabilities, 1, generator=generator)], dim=1)
    return tokens
