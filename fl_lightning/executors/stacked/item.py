"""The number that ``tensor.item()`` returns, where there is one for each client of a stack."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C import _functorch

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.stand_ins import register_stand_in
from fl_lightning.executors.stacked.decisions import DECIDES, Decisions, PerClient

_KINDS = (bool, int, float)
_DTYPES = {int: torch.int64, float: torch.float64}


class ItemsOfStep(NamedTuple):
    """What the items of a mapped step have in common.

    Attributes:
        one: Makes the tensor of one client of a tensor of all clients' numbers, shape ``(K,)``.
        decide: Decides by the clients' numbers.
    """

    one: Callable[[Tensor], Tensor]
    decide: Decisions


class Item:
    """Stands for a number of each client, to compute with, compare and log; other uses raise ``CannotVectorize``.

    Python computes with the numbers of each client, and so do stacks: where it raises an exception for one of them, or
    returns another kind of number, such as a complex one, the clients have to train one by one. Comparisons decide.

    Args:
        kind: What the number is.
        tensor: The numbers, as the tensor of one client; made of ``rows`` if ``None``.
        rows: The clients' numbers; ``None`` while a step is traced, where nobody knows them.
        step: What the items of a mapped step have in common.
    """

    __slots__ = ("__weakref__", "_step", "_tensor", "kind", "rows")

    def __init__(
        self,
        kind: type,
        tensor: Tensor | None = None,
        rows: list[Any] | None = None,
        step: ItemsOfStep | None = None,
    ) -> None:
        self.kind, self.rows, self._tensor, self._step = kind, rows, tensor, step
        register_stand_in(self, lambda item: item.kind() if item.rows is None else item.rows[0])

    @classmethod
    def of(cls, tensor: Tensor, decide: Decisions) -> Any:
        """Return what ``tensor.item()`` returns under ``vmap``: a number, if it is the same for all clients.

        Args:
            tensor: The tensor of one client.
            decide: Decides by the clients' numbers.
        """
        found = PerClient.of(tensor, "calls `.item()`")
        level = found.level
        if level is None or tensor.numel() != 1:
            return found.values[0].item()  # which raises what it raises for one client
        device = found.values.device

        def one(numbers: Tensor) -> Tensor:
            return _functorch._add_batch_dim(numbers.to(device), 0, level)

        return cls._of_rows(found.values.reshape(-1).tolist(), ItemsOfStep(one, decide))

    @classmethod
    def traced(cls, tensor: Tensor) -> Item:
        """Return what ``tensor.item()`` returns while a step is traced.

        Raises:
            CannotVectorize: If it is a truth value.
        """
        if tensor.dtype is torch.bool:
            raise CannotVectorize(DECIDES)
        kind = float if tensor.is_floating_point() else int
        return cls(kind, tensor.detach().double())

    @classmethod
    def _of_rows(cls, rows: list[Any], step: ItemsOfStep) -> Any:
        kinds = {next((kind for kind in _KINDS if isinstance(row, kind)), None) for row in rows}
        kind = kinds.pop()
        if kinds or kind is None:
            raise CannotVectorize("`training_step` computes other kinds of numbers for some clients than for others")
        if kind is bool:  # decided at once: nobody sees `number is True`
            return step.decide(rows)
        return cls(kind, rows=rows, step=step)

    @property
    def tensor(self) -> Tensor:
        """The numbers, as the tensor of one client."""
        if self._tensor is None:
            assert self.rows is not None and self._step is not None
            try:
                self._tensor = self._step.one(torch.tensor(self.rows, dtype=_DTYPES[self.kind]))
            except (OverflowError, RuntimeError) as error:
                raise CannotVectorize("`training_step` computes with whole numbers of many digits") from error
        return self._tensor

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The type of the number, for ``isinstance``."""
        return self.kind

    def detach(self) -> Tensor:
        """Return the tensor in double precision: what takes a tensor to log it takes an item, too."""
        return self.tensor.double()

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute with the tensor."""
        return function(*map(_tensor, args), **{key: _tensor(value) for key, value in (kwargs or {}).items()})

    def _use(self, *args: Any, **kwargs: Any) -> Any:
        raise CannotVectorize("`training_step` uses what `.item()` returns, of which there is one for each client")

    def __bool__(self) -> bool:
        """Decide by the number."""
        if self.rows is None or self._step is None:
            raise CannotVectorize(DECIDES)
        return self._step.decide(self.rows)

    __index__ = __int__ = __float__ = __complex__ = __array__ = _use
    __str__ = __repr__ = __format__ = __hash__ = __reduce_ex__ = _use
    __divmod__ = __rdivmod__ = _use
    real = imag = numerator = denominator = property(_use)
    conjugate = is_integer = as_integer_ratio = hex = bit_length = bit_count = to_bytes = _use
    __array_ufunc__ = None  # numpy's numbers leave operators to this class


def _tensor(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_tensor, value))
    return value.tensor if type(value) is Item else value


def _rows(value: Any) -> Any:
    return value.rows if type(value) is Item else repeat(value)


def _computed(name: str, function: Callable[..., Any], reflected: bool = False) -> Callable[..., Any]:
    """Return an operator of items: Python's for each client, or torch's beside a tensor."""

    def compute(self: Item, *others: Any) -> Any:
        if any(isinstance(other, Tensor) for other in others):
            return getattr(self.tensor, name)(*others)
        if self.rows is None:
            return _of_trace(name, self, others)
        sides: list[Iterable[Any]] = [self.rows, *map(_rows, others)]
        try:
            rows = [function(*row) for row in zip(*(reversed(sides) if reflected else sides), strict=False)]
        except Exception as error:
            raise CannotVectorize(
                f"`training_step` computes with what `.item()` returns, and for some clients Python raises "
                f"{type(error).__name__} ({error})"
            ) from error
        assert self._step is not None  # as the rows are known
        return Item._of_rows(rows, self._step)

    return compute


def _of_trace(name: str, item: Item, others: tuple[Any, ...]) -> Any:
    """Compute with an item of a traced step: only what Python computes for all numbers."""
    if name in _COMPARISONS:
        raise CannotVectorize(DECIDES)
    divides = name == "__truediv__"
    if (not divides and name not in _TRACED) or (divides and (type(others[0]) is Item or not others[0])):
        raise CannotVectorize(f"whether `{name}` of what `.item()` returns raises an exception depends on values")
    result = getattr(item.tensor, name)(*map(_tensor, others))
    if not isinstance(result, Tensor):
        return result
    return Item(float if divides or any(isinstance(value, float) for value in (item, *others)) else int, result)


_COMPARISONS = [f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge")]
_TRACED = ["__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__neg__", "__abs__"]
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "lshift", "rshift")
_BINARY_FUNCTIONS = {name: getattr(operator, name) for name in _BINARY}
_BINARY_FUNCTIONS |= {"pow": pow, "and": operator.and_, "or": operator.or_, "xor": operator.xor}
_UNARY_FUNCTIONS = {"neg": operator.neg, "pos": operator.pos, "abs": abs, "invert": operator.invert}
_UNARY_FUNCTIONS |= {"round": round, "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil}
for _name, _function in {**_BINARY_FUNCTIONS, **_UNARY_FUNCTIONS}.items():
    setattr(Item, f"__{_name}__", _computed(f"__{_name}__", _function))
for _name, _function in _BINARY_FUNCTIONS.items():
    setattr(Item, f"__r{_name}__", _computed(f"__r{_name}__", _function, reflected=True))
for _name in _COMPARISONS:
    setattr(Item, _name, _computed(_name, getattr(operator, _name)))
