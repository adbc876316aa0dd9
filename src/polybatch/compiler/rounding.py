"""The model with the weights that a quantized program holds: what such a program's logits are checked against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polybatch.models.products import ParameterProducts, Product, lies_in, offset_in
from polybatch.models.reference import plain_attention
from polybatch.ops import rounded_rows
from polybatch.targets.base import RoundedWeight

_KEPT = 2  # parameters that are kept widened: the two projections of an expert layer take turns


@dataclass(frozen=True)
class _Block:
    """A weight that lies ``offset`` elements from the start of its parameter."""

    offset: int
    weight: RoundedWeight


class RoundedModel:
    """A model whose products are computed as a program does it that holds some of the weights rounded."""

    def __init__(self, model: PreTrainedModel, rounded: Sequence[RoundedWeight]) -> None:
        self.model = model
        self.rounds_inputs = any(weight.rounds_inputs for weight in rounded)
        self._blocks: dict[str, list[_Block]] = defaultdict(list)
        for weight in rounded:
            for name, parameter in model.named_parameters():
                if lies_in(weight.source, parameter):
                    self._blocks[name].append(_Block(offset_in(weight.source, parameter), weight))

    @contextmanager
    def active(self, round_inputs: bool = True) -> Iterator[None]:
        """While active, the model computes with the rounded weights, in float32, results in its own dtype.

        ``round_inputs`` False leaves their inputs as they are. Nothing in the model changes; only a few widened weights
        exist at a time.
        """
        with plain_attention(self.model):
            if not self._blocks:
                yield
                return
            parameters = dict(self.model.named_parameters())
            blocks = {parameters[name].data_ptr(): found for name, found in self._blocks.items()}
            rounded = _RoundedProducts(blocks, round_inputs)
            with ParameterProducts((parameters[name] for name in self._blocks), rounded.compute):
                yield


class _RoundedProducts:
    """Products with rounded weights, which are known by the address of their parameter."""

    def __init__(self, blocks: dict[int, list[_Block]], round_inputs: bool) -> None:
        self._blocks = blocks
        self._round_inputs = round_inputs
        self._widened: dict[int, Tensor] = {}

    def compute(self, product: Product) -> Tensor:
        rounded = self._blocks[product.parameter.data_ptr()][0].weight
        change, x, original = rounded.change, product.x.float(), product.weight
        if change is not None:
            x = (x - change.shift) / change.scale
        if rounded.rounds_inputs and self._round_inputs:
            x = rounded_rows(x)
        offset = offset_in(original, product.parameter)
        weight = self._rounded(product.parameter).as_strided(original.shape, original.stride(), offset)
        result = product.run_with(x, weight)
        if change is not None:
            result = result + change.shift @ original.float()
        return result.to(original.dtype)

    def _rounded(self, parameter: Tensor) -> Tensor:
        """The parameter in float32 with its rounded weights in place."""
        key = parameter.data_ptr()
        if key not in self._widened:
            while len(self._widened) >= _KEPT:
                del self._widened[next(iter(self._widened))]
            wide = parameter.to(torch.float32, copy=True)
            for block in self._blocks[key]:
                source = block.weight.source
                wide.as_strided(source.shape, source.stride(), block.offset).copy_(block.weight.value())
            self._widened[key] = wide
        return self._widened[key]
