"""The model with the weights of a quantized program: the reference of the check that ends a compile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from architectures import SUPPORTED, make_model
from torch import Tensor

from polybatch.compiler.rounding import RoundedModel
from polybatch.targets.base import InputChange, RoundedWeight

TOKENS = torch.arange(1, 10)[None]


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS, use_cache=False).logits


def rounded_logits(model: Any, *weights: RoundedWeight, **options: bool) -> Tensor:
    with RoundedModel(model, weights).active(**options):
        return logits(model)


def test_a_rounded_weight_acts_as_if_the_model_had_it_and_the_model_keeps_its_own() -> None:
    model, other = make_model(SUPPORTED["llama"]), make_model(SUPPORTED["llama"])
    weight = model.model.layers[1].mlp.up_proj.weight
    before = logits(model)
    other.model.layers[1].mlp.up_proj.weight.data.mul_(1.5)
    produced = rounded_logits(model, RoundedWeight(weight.detach(), lambda: weight.detach() * 1.5, False))
    torch.testing.assert_close(produced, logits(other), atol=1e-5, rtol=0)
    assert torch.equal(logits(model), before) and not torch.allclose(produced, before, atol=1e-2)


def test_an_embedding_tied_to_a_rounded_projection_is_not_rounded() -> None:
    model = make_model(SUPPORTED["llama"], tie_word_embeddings=True)
    weight = model.lm_head.weight
    assert weight is model.model.embed_tokens.weight
    produced = rounded_logits(model, RoundedWeight(weight.detach(), lambda: weight.detach() * 2, False))
    torch.testing.assert_close(produced, logits(model) * 2, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "gpt_oss"])  # transposed; experts; transposed experts
def test_weights_are_found_however_the_model_stores_them(name: str) -> None:
    model = make_model(SUPPORTED[name])
    views = {
        "gpt2": lambda: model.transformer.h[0].mlp.c_fc.weight.T,
        "mixtral": lambda: model.model.layers[0].mlp.experts.down_proj,
        "gpt_oss": lambda: model.model.layers[0].mlp.experts.down_proj.transpose(1, 2),
    }
    view = views[name]().detach()
    value = view.clone()
    value[..., :5] *= 3
    produced = rounded_logits(model, RoundedWeight(view, lambda: value, False))
    view.copy_(value)
    torch.testing.assert_close(produced, logits(model), atol=1e-5, rtol=0)


def test_centred_and_scaled_inputs_give_the_same_logits() -> None:
    model = make_model(SUPPORTED["llama"])
    weight = model.model.layers[0].mlp.down_proj.weight.detach()
    change = InputChange(torch.randn(128), torch.exp2(torch.randint(-3, 4, (128,)).float()))
    produced = rounded_logits(model, RoundedWeight(weight, lambda: weight * change.scale, False, change))
    torch.testing.assert_close(produced, logits(model), atol=1e-4, rtol=0)


def test_inputs_are_rounded_where_the_program_rounds_them() -> None:
    model = make_model(SUPPORTED["llama"])
    weight = model.lm_head.weight.detach()
    rounded = RoundedWeight(weight, lambda: weight, True)
    difference = (rounded_logits(model, rounded) - logits(model)).abs().max()
    assert 1e-4 < difference < 0.1
    assert torch.equal(rounded_logits(model, rounded, round_inputs=False), rounded_logits(model))
