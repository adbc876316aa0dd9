"""Watching the matrix products of a running model with its parameters, whichever modules they come from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

# The products that linear layers end in; the weight comes right after x.
_PRODUCTS = (aten.mm, aten.addmm, aten.bmm, aten.baddbmm)


@dataclass(frozen=True)
class Product:
    """One product of x with ``weight`` [k, n], a view of ``parameter``."""

    function: Any
    args: tuple[Any, ...]
    options: dict[str, Any]
    at: int
    parameter: Tensor

    @property
    def x(self) -> Tensor:
        x: Tensor = self.args[self.at - 1]
        return x

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.args[self.at]
        return weight

    def run(self) -> Tensor:
        result: Tensor = self.function(*self.args, **self.options)
        return result

    def run_with(self, x: Tensor, weight: Tensor) -> Tensor:
        """The product of others, in float32."""
        wide = [arg.float() if isinstance(arg, Tensor) else arg for arg in self.args]
        wide[self.at - 1 : self.at + 1] = x, weight
        result: Tensor = self.function(*wide, **self.options)
        return result


class ParameterProducts(TorchDispatchMode):
    """While active, ``compute`` gives the result of every product with one of ``parameters``.

    Parameters are known by their memory: their data must not be replaced meanwhile. Other uses of them, such as an
    embedding that is tied to the output projection, are left alone.
    """

    def __init__(self, parameters: Iterable[Tensor], compute: Callable[[Product], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._compute = compute
        self._parameters = sorted((parameter.detach() for parameter in parameters), key=Tensor.data_ptr)
        self._starts = [parameter.data_ptr() for parameter in self._parameters]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in _PRODUCTS:
            at = len(args) - 1
            parameter = self._owner(args[at])
            if parameter is not None:
                return self._compute(Product(func, args, kwargs or {}, at, parameter))
        return func(*args, **(kwargs or {}))

    def _owner(self, tensor: Tensor) -> Tensor | None:
        at = bisect_right(self._starts, tensor.data_ptr()) - 1
        return self._parameters[at] if at >= 0 and lies_in(tensor, self._parameters[at]) else None


def lies_in(tensor: Tensor, parameter: Tensor) -> bool:
    """Whether a tensor is a view of a parameter."""
    start = parameter.data_ptr()
    return start <= tensor.data_ptr() < start + parameter.nbytes


def offset_in(tensor: Tensor, parameter: Tensor) -> int:
    """Elements from the start of a parameter to that of a view of it."""
    return (tensor.data_ptr() - parameter.data_ptr()) // parameter.element_size()
