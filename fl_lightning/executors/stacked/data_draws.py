"""Random generators of the data's own, whose numbers depend on the order in which clients read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch

from fl_lightning.executors.stacked.module_state import globals_of, held_by, image_of, same

_NODES = 2_000  # objects that are looked at
_GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)


class DataDraws:
    """The random generators that a client's data set, its collate function and the data module hold.

    Args:
        roots: What is looked at, and what it holds.
    """

    def __init__(self, *roots: Any) -> None:
        self._generators = list(_generators(roots))
        self._before = image_of(self._generators)

    def drew(self) -> bool:
        """Return whether one of them has drawn something since."""
        return not same(self._before, image_of(self._generators))


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
        used = globals_of(thing.__code__, thing.__globals__).values()
        return [*held_by(thing).values(), *(value for value in used if isinstance(value, _GENERATORS))]
    return list(getattr(thing, "__dict__", {}).values())
