"""Random generators of the data's own, whose numbers depend on the order in which clients read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

_NODES = 2_000  # objects that are looked at
_GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)


class DataDraws:
    """The random generators that a client's data set, its collate function and the data module hold.

    Args:
        roots: What is looked at, and what it holds.
    """

    def __init__(self, *roots: Any) -> None:
        self._generators = list(_generators(roots))
        self._states = [_state(generator) for generator in self._generators]

    def drew(self) -> bool:
        """Return whether one of them has drawn something since."""
        return any(_state(g) != before for g, before in zip(self._generators, self._states, strict=True))


def _generators(roots: Any) -> Iterator[Any]:
    waiting, seen = list(roots), set[int]()
    while waiting and len(seen) < _NODES:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, _GENERATORS):
            yield thing
        else:
            waiting += _within(thing)


def _within(thing: Any) -> list[Any]:
    """Return what an object holds; nothing of tensors and arrays, and nothing of what trains."""
    if isinstance(thing, (torch.Tensor, np.ndarray, str, bytes, type, pl.Trainer, pl.LightningModule)):
        return []
    if isinstance(thing, dict):
        return list(thing.values())
    if isinstance(thing, (list, tuple, set, frozenset)):
        return list(thing)
    if isinstance(thing, MethodType):
        return [thing.__self__]
    if isinstance(thing, FunctionType):
        cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
        used = [thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__]
        return [*cells, *(thing.__defaults__ or ()), *(value for value in used if isinstance(value, _GENERATORS))]
    return list(getattr(thing, "__dict__", {}).values())


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return [part.tobytes() if isinstance(part, np.ndarray) else part for part in generator.get_state()]
    return str(generator.bit_generator.state)
