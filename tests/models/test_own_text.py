"""Text that a model writes by itself."""

from __future__ import annotations

import pytest
import torch
from architectures import SUPPORTED, VOCAB, make_model

from polybatch.models.own_text import own_text


@pytest.mark.parametrize("name", SUPPORTED)
def test_it_is_the_same_every_time_and_leaves_the_model_as_it_was(name: str) -> None:
    model = make_model(SUPPORTED[name])
    before = (model.config._attn_implementation, model.config._experts_implementation)
    text = own_text(model, 3, 20)
    assert text.shape == (3, 20) and text.dtype == torch.int64 and 0 <= text.min() <= text.max() < VOCAB
    assert torch.equal(text, own_text(model, 3, 20))
    assert (model.config._attn_implementation, model.config._experts_implementation) == before


def test_tokens_come_from_the_models_own_distribution() -> None:
    model = make_model(SUPPORTED["llama"])
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.zeros_like(model.lm_head.weight))
        model.lm_head.bias = torch.nn.Parameter(torch.full((VOCAB,), -50.0))
        model.lm_head.bias[7] = 50.0
    assert (own_text(model, 2, 9)[:, 1:] == 7).all()


def test_it_ends_where_the_positions_end() -> None:
    assert own_text(make_model(SUPPORTED["gpt2"], n_positions=12), 2, 64).shape == (2, 12)
