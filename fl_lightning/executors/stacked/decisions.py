"""Where Python decides by the values of tensors, of which each client of a stack has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch

from fl_lightning._lightning.cannot_vectorize import CannotVectorize

DECIDES = "Python decides by a tensor's value (`if`, `while`, `and`, `assert`), and each client has its own"
_MOST = 64  # ways that are tried out for batches of one form, with their beginnings

#: What Python has found at each decision of a step so far.
Way = tuple[bool, ...]


def at(form: str, index: int) -> str:
    """Return the form of batches of one index: a step that uses ``batch_idx`` may do other things in the next."""
    return f"{form} in batch {index}"


class BrokenOff(CannotVectorize):
    """A step was broken off at a decision, and may begin again."""


@dataclass
class Tried:
    """What steps on copies of the module did: more of the same needs no other trial.

    Attributes:
        ways: The ways through ``training_step`` that they took, all beginnings of ways among them, for batches of each
            form: for any of them, or for those of one index.
        metrics: The names of the metric objects that they called.
    """

    ways: dict[str, set[Way]] = field(default_factory=dict)
    metrics: set[str] = field(default_factory=set)

    @property
    def decides(self) -> bool:
        """Whether Python decides by values."""
        return any(self.ways.values())

    def add(self, other: Tried) -> None:
        """Add what others did."""
        for form, ways in other.ways.items():
            self.add_ways(form, ways)
        self.metrics |= other.metrics

    def add_ways(self, form: str, ways: Iterable[Way]) -> None:
        """Add ways for batches of a form.

        Raises:
            CannotVectorize: If there are too many.
        """
        known = self.ways.setdefault(form, set())
        known.update(ways)
        if len(known) > _MOST:
            raise CannotVectorize(f"{DECIDES}; there are more ways through `training_step` than are tried out")

    def clear(self) -> None:
        """Forget everything."""
        self.ways.clear()
        self.metrics.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        return {"ways": {form: sorted(ways) for form, ways in self.ways.items()}, "metrics": sorted(self.metrics)}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Tried:
        """Return the ways and metrics of a state."""
        ways = {form: {tuple(way) for way in known} for form, known in state.get("ways", {}).items()}
        return cls(ways, set(state.get("metrics", ())))


class Decisions:
    """The decisions of one mapped step: all its clients must decide alike, and in a way that was tried out.

    Args:
        tried: What was tried out.
        form: The form of the clients' batches.
        index: Their index.
        is_trial: Whether this step is part of trying out. Then a new way is known from now on, and the step is broken
            off even so: what a step leaves behind that is broken off is seen by the trial.

    Attributes:
        expected: Whether Python is known to decide by values in some steps.
        differ: What each client has decided where they differ; ``None`` if they do not.
        way: What was decided so far, by all.
    """

    def __init__(self, tried: Tried, form: str, index: int, *, is_trial: bool) -> None:
        self._tried, self._is_trial, self._is_broken = tried, is_trial, False
        self._here, self._anywhere = at(form, index), form
        self.expected = tried.decides
        self.differ: list[bool] | None = None
        self.way: Way = ()

    @property
    def is_known(self) -> bool:
        """Whether the way so far was tried out."""
        return any(self.way in self._tried.ways.get(form, ()) for form in (self._anywhere, self._here))

    def __call__(self, values: Sequence[Any]) -> bool:
        """Return what all clients decide.

        Args:
            values: What each client decides by.

        Raises:
            BrokenOff: If they differ, or if the way is new.
        """
        if self._is_broken:  # code of the user's own has caught the exception
            raise BrokenOff(DECIDES)
        found = [bool(value) for value in values]
        if any(value is not found[0] for value in found):
            self.differ, self._is_broken = found, True
            raise BrokenOff(DECIDES)
        self.way = *self.way, found[0]
        if not self.is_known:
            self._is_broken = True
            if self._is_trial:
                self._tried.add_ways(self._here, [self.way])
            raise BrokenOff(DECIDES)
        return found[0]


@dataclass
class PerClient:
    """The values of a tensor for each client of a mapped step.

    Attributes:
        values: The tensors of all clients, the clients first; one of length 1 where they share it.
        level: Of ``vmap``; ``None`` where they share it.
    """

    values: Tensor
    level: int | None

    @classmethod
    def of(cls, tensor: Tensor, use: str) -> PerClient:
        """Return the values of one.

        Args:
            tensor: The tensor of one client.
            use: What it is for, to be named where that cannot be.
        """
        values, level, batched = tensor.detach(), None, 0
        while _functorch.is_functorch_wrapped_tensor(values):
            if _functorch.is_batchedtensor(values):
                level, place, batched = (
                    _functorch.maybe_get_level(values),
                    _functorch.maybe_get_bdim(values),
                    batched + 1,
                )
                values = _functorch.get_unwrapped(values).movedim(place, 0)
            else:
                values = _functorch.get_unwrapped(values)
        if batched > 1:
            raise CannotVectorize(f"`training_step` {use} in a `vmap` of its own")
        return cls(values if batched else values.unsqueeze(0), level)


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _contains(tensor: Tensor, element: Any) -> Tensor:
    return torch.eq(tensor, element).any()


def _equal(input: Tensor, other: Tensor) -> Any:
    return (input == other).all() if input.shape == other.shape else False


def _all_close(*args: Any, **kwargs: Any) -> Tensor:
    return torch.isclose(*args, **kwargs).all()


#: Functions of torch that return a truth value, and the tensor by which they decide.
DECIDED_BY: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero), _itself),
    Tensor.__contains__: _contains,
    **dict.fromkeys((torch.equal, Tensor.equal), _equal),
    **dict.fromkeys((torch.allclose, Tensor.allclose), _all_close),
}
