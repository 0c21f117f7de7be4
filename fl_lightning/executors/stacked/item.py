"""The number that ``tensor.item()`` returns, where there is one for each client of a stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.recording import CannotVectorize


class Item:
    """Stands for a number of each client: it may be computed with and logged; other uses raise ``CannotVectorize``.

    Args:
        tensor: The numbers, as the tensor of one client, in double precision.
        kind: What the number is.
    """

    __slots__ = ("kind", "tensor")

    def __init__(self, tensor: Tensor, kind: type = float) -> None:
        self.tensor, self.kind = tensor, kind

    @classmethod
    def of(cls, tensor: Tensor) -> Item:
        """Return what ``tensor.item()`` returns."""
        kind = float if tensor.is_floating_point() else bool if tensor.dtype is torch.bool else int
        return cls(tensor.detach().double(), kind)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type of the number, for ``isinstance``."""
        return self.kind

    def detach(self) -> Tensor:
        """Return the tensor: what takes a tensor to log it takes an item, too."""
        return self.tensor

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute with the tensor."""
        return function(*map(_tensor, args), **{key: _tensor(value) for key, value in (kwargs or {}).items()})

    def _use(self, *args: Any, **kwargs: Any) -> Any:
        raise CannotVectorize("`training_step` uses what `.item()` returns, of which there is one for each client")

    __bool__ = __index__ = __int__ = __float__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = _use
    __str__ = __repr__ = __format__ = __hash__ = __reduce_ex__ = __divmod__ = _use  # type: ignore[assignment]


def _tensor(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_tensor, value))
    return value.tensor if type(value) is Item else value


def _by_tensor(name: str) -> Callable[..., Any]:
    def compute(self: Item, *others: Any) -> Any:
        result = getattr(self.tensor, name)(*map(_tensor, others))
        if any(isinstance(other, Tensor) for other in others) or not isinstance(result, Tensor):
            return result
        if name in _COMPARISONS:
            return Item(result, bool)
        is_float = "truediv" in name or any(isinstance(number, float) for number in (self, *others))
        return Item(result, float if is_float else int)

    return compute


_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_ARITHMETIC = [f"__{part}{name}__" for name in _BINARY for part in ("", "r")] + ["__neg__", "__abs__"]
_COMPARISONS = ["__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"]
for _name in (*_ARITHMETIC, *_COMPARISONS):
    setattr(Item, _name, _by_tensor(_name))
