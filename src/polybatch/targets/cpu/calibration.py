"""What the linears of a model are multiplied with, seen while it reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polybatch.models.products import ParameterProducts, Product
from polybatch.models.reference import plain_attention

SeenInputs = Mapping[int, list[Tensor]]
"""Rows [tokens, k] that a weight was multiplied with, by the address of the weight."""


def observe_inputs(model: PreTrainedModel, text: Tensor) -> SeenInputs:
    """The inputs of every linear while the model reads token ids [sequences, tokens].

    Those of experts, who see a part of the tokens each, are left out.
    """
    seen: dict[int, list[Tensor]] = defaultdict(list)

    def note(product: Product) -> Tensor:
        seen[product.weight.data_ptr()].append(product.x.detach())
        return product.run()

    linears = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    with plain_attention(model), torch.no_grad(), ParameterProducts(linears, note):
        for tokens in text:
            model(input_ids=tokens[None], use_cache=False)
    return dict(seen)
