"""The model with the weights that a quantized program holds: what such a program's logits are checked against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from polybatch.targets.base import RoundedWeight

aten = torch.ops.aten

# Products of x and a weight; the weight comes right after x.
_PRODUCTS = (aten.linear, aten.mm, aten.addmm, aten.bmm, aten.baddbmm)
_LARGEST = 127.0
_KEPT = 2  # parameters that are kept widened: the two projections of an expert layer take turns


@dataclass(frozen=True)
class _Block:
    """A weight that lies ``offset`` elements from the start of its parameter."""

    offset: int
    weight: RoundedWeight


class RoundedModel:
    """Which parameters of a model have been rounded, and to what; found by where their memory lies."""

    def __init__(self, model: PreTrainedModel, rounded: Sequence[RoundedWeight]) -> None:
        self._model = model
        self._blocks: dict[str, list[_Block]] = defaultdict(list)
        parameters = dict(model.named_parameters())
        for weight in rounded:
            for name, parameter in parameters.items():
                if _lies_in(weight.source, parameter):
                    self._blocks[name].append(_Block(_offset(weight.source, parameter), weight))

    @contextmanager
    def active(self) -> Iterator[None]:
        """The model's matrix products use the rounded weights, in float32 and each result in the model's dtype.

        Other uses of a parameter are left alone, such as an embedding that is tied to the output projection. Nothing
        in the model changes; widened weights exist a few at a time.
        """
        if not self._blocks:
            yield
            return
        before = self._model.config._experts_implementation
        self._model.set_experts_implementation("eager")  # the one that is made of plain products
        try:
            with _RoundedProducts(dict(self._model.named_parameters()), self._blocks):
                yield
        finally:
            self._model.set_experts_implementation(before)


class _RoundedProducts(TorchDispatchMode):
    def __init__(self, parameters: dict[str, Tensor], blocks: dict[str, list[_Block]]) -> None:
        super().__init__()
        self._parameters = {name: parameters[name].detach() for name in blocks}
        self._blocks = blocks
        self._widened: dict[str, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = self._find(args) if func.overloadpacket in _PRODUCTS else None
        if found is None:
            return func(*args, **(kwargs or {}))
        at, name = found
        dtype = args[at].dtype
        wide = [arg.float() if isinstance(arg, Tensor) else arg for arg in args]
        offset = _offset(args[at], self._parameters[name])
        wide[at] = self._rounded(name).as_strided(args[at].shape, args[at].stride(), offset)
        if self._blocks[name][0].weight.rounds_inputs:
            wide[at - 1] = _round_rows(wide[at - 1])
        return func(*wide, **(kwargs or {})).to(dtype)

    def _find(self, args: tuple[Any, ...]) -> tuple[int, str] | None:
        for at, arg in enumerate(args):
            for name, parameter in self._parameters.items():
                if at > 0 and isinstance(arg, Tensor) and _lies_in(arg, parameter):
                    return at, name
        return None

    def _rounded(self, name: str) -> Tensor:
        """The parameter in float32 with its rounded weights in place."""
        if name not in self._widened:
            while len(self._widened) >= _KEPT:
                del self._widened[next(iter(self._widened))]
            wide = self._parameters[name].to(torch.float32, copy=True)
            for block in self._blocks[name]:
                source = block.weight.source
                wide.as_strided(source.shape, source.stride(), block.offset).copy_(block.weight.value())
            self._widened[name] = wide
        return self._widened[name]


def _lies_in(tensor: Tensor, parameter: Tensor) -> bool:
    start = parameter.data_ptr()
    return start <= tensor.data_ptr() < start + parameter.nbytes


def _offset(tensor: Tensor, parameter: Tensor) -> int:
    return (tensor.data_ptr() - parameter.data_ptr()) // parameter.element_size()


def _round_rows(x: Tensor) -> Tensor:
    """Each row of x as integers of at most 127, times a scale of its own, as the int8 kernels do it."""
    largest = x.abs().amax(dim=-1, keepdim=True)
    factor = torch.where(largest > 0, _LARGEST / largest, 0.0)
    return (x * factor).round() * (largest / _LARGEST)
