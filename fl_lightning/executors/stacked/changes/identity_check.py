"""A quick look at objects that were looked at in full: whether they hold the very same things as then."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from functools import partial
from operator import is_
from random import Random
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.tensor_bytes import version_of
from fl_lightning.executors.stacked.changes.comparison import same
from fl_lightning.executors.stacked.changes.contents import BRIEF_VALUES
from fl_lightning.executors.stacked.changes.module_state import Snapshotter

#: What has attributes, and more to it.
_OTHERS = (
    *(type, FunctionType, MethodType, staticmethod, classmethod, property, partial),
    *(Random, np.random.Generator, torch.Generator, io.IOBase, Iterator, Mapping, tuple, set, frozenset),
)


class IdentityCheck:
    """Compares what containers and objects hold by identity: many times faster than to take snapshots and compare them.

    Where things are not the very same ones they may be equal even so, which only snapshots tell.

    Args:
        snapshotter: The snapshotter that has taken snapshots of the objects.
        make_snapshotter: Makes another one, for the few objects of other kinds, such as functions and generators.
    """

    def __init__(self, snapshotter: Snapshotter, make_snapshotter: Callable[[], Snapshotter]) -> None:
        self._make_snapshotter = make_snapshotter
        self._dicts: list[tuple[Mapping[Any, Any], list[Any], list[Any]]] = []
        self._lists: list[tuple[Sequence[Any], list[Any]]] = []
        self._long: list[tuple[Sized, int]] = []
        self._written: list[tuple[Tensor, int]] = []
        self._arrays: list[tuple[np.ndarray, bytes]] = []
        self._others: list[Any] = []
        for value in snapshotter.visited:
            self._add(value)
        self._snapshots = make_snapshotter().snapshot(self._others)

    def _add(self, value: Any) -> None:
        if type(value) is tuple:  # what it holds has been visited, too
            return
        if isinstance(value, Tensor):
            self._written.append((value, version_of(value)))
        elif isinstance(value, np.ndarray):
            self._arrays.append((value, _bytes(value)))
        elif isinstance(value, (dict, list, deque)):
            self._add_container(value)
        elif isinstance(value, _OTHERS) or _has_slots(value) or not hasattr(value, "__dict__"):
            self._others.append(value)
        else:
            self._add_container(value.__dict__)

    def _add_container(self, value: Any) -> None:
        if len(value) > BRIEF_VALUES:
            self._long.append((value, len(value)))
        elif isinstance(value, dict):
            self._dicts.append((value, list(value), list(value.values())))
        else:
            self._lists.append((value, list(value)))

    def same(self) -> bool:
        """Whether everything holds what it held."""
        return (
            all(_are_same(held, keys) and _are_same(held.values(), values) for held, keys, values in self._dicts)
            and all(_are_same(held, before) for held, before in self._lists)
            and all(len(held) == number for held, number in self._long)
            and all(version_of(tensor) == version for tensor, version in self._written)
            and all(_bytes(array) == values for array, values in self._arrays)
            and same(self._snapshots, self._make_snapshotter().snapshot(self._others))
        )


def _are_same(now: Collection[Any], before: Collection[Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now, before))


def _has_slots(value: Any) -> bool:
    return any(base.__dict__.get("__slots__") for base in type(value).__mro__)


def _bytes(array: np.ndarray) -> bytes:
    """Return an array's values; of a large one some, of a file's and of objects none."""
    if array.dtype.hasobject or isinstance(array, np.memmap):
        return b""
    return (array if array.size <= BRIEF_VALUES else array.flat[:: array.size // BRIEF_VALUES]).tobytes()
