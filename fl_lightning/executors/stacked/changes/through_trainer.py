"""Finds changes that a step on a copy of a module makes in objects of its trainer, and puts them back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning._lightning.copies import WatchedTrainer
from fl_lightning.executors.stacked.changes.comparison import ByIdentity, changed_name, same
from fl_lightning.executors.stacked.changes.object_state import SharedSnapshotter, contents_of
from fl_lightning.executors.stacked.changes.outside import Kept, kept_attributes
from fl_lightning.executors.stacked.object_attributes import attributes_of

_NODES = 2_000  # objects of the data module that are looked at
_LARGE = 2**20  # bytes of a tensor or array whose values are not kept
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ThroughTrainer:
    """Objects that the trainer of a copy gives to it, such as the data module: there is one for all clients.

    Of the data module the attributes and what they hold are looked at, of other objects the attributes alone. Tensors
    and arrays of more than 1 MiB, and what lies beyond the first 2,000 objects, are not put back.

    Args:
        watched: The trainer of the copy.
    """

    def __init__(self, watched: WatchedTrainer) -> None:
        self._watched = watched
        self._given: dict[int, _Given] = {}  # by id of the object, which they hold

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Look at what is given from now on; put back at the end what has changed."""
        self._given = {}
        self._watched.tell(self._look)
        try:
            yield
        finally:
            self._watched.tell(None)
            for given in self._given.values():
                given.kept.put_back()

    def changed(self) -> str | None:
        """Return the name of something that is another than when it was given, ``None`` if nothing is."""
        return next((found for given in self._given.values() if (found := given.changed())), None)

    def _look(self, name: str, value: Any) -> None:
        parts = [(name, value)]
        if isinstance(value, (list, tuple)):
            parts += [(f"{name}[{place}]", part) for place, part in enumerate(value)]
        for path, part in parts:
            if not isinstance(part, (*_PLAIN, Tensor)) and id(part) not in self._given:
                self._given[id(part)] = _Given(f"trainer.{path}", part)


class _Given:
    """An object as it was when it was given."""

    def __init__(self, path: str, value: Any) -> None:
        self.path, self.value = path, value
        self._before, visited = self._snapshot()
        self._contents: list[tuple[Any, Any]] = []  # a brief look leaves out much of long containers and tensors
        self.kept = Kept()
        self.kept.add(kept_attributes(value))
        for held in visited:
            with suppress(Exception):  # whatever an object raises when it is looked at
                if not _is_large(held):
                    self.kept.add_contents([held])
                    self._contents.append((held, _content(held)))

    def changed(self) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is."""
        if found := changed_name(self._before, self._snapshot()[0]):
            return found
        if all(same(before, _content(held)) for held, before in self._contents):
            return None
        return f"something that `{self.path}` holds"

    def _snapshot(self) -> tuple[dict[str, Any], list[Any]]:
        """Return a snapshot of the attributes, by name, and the objects into which it looks."""
        if not isinstance(self.value, LightningDataModule):
            held = attributes_of(self.value)
            named = {key: part if isinstance(part, _PLAIN) else ByIdentity.of(part) for key, part in held.items()}
            return {f"{self.path}.{key}": part for key, part in named.items()}, []
        snapshotter = SharedSnapshotter(set(), brief=True, nodes=_NODES, samples=True)
        snapshots = {key: snapshotter.snapshot(part) for key, part in contents_of(self.value).items()}
        return {f"{self.path}.{key}": part for key, part in snapshots.items()}, snapshotter.visited


def _content(value: Any) -> Any:
    """Return what a container, a tensor or an array holds; things in containers are told by their identity."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy() if value.dtype != object else list(map(id, value.flat))
    if isinstance(value, dict):
        return [(id(key), id(held)) for key, held in dict.items(value)]
    return list(map(id, value)) if isinstance(value, (list, deque, set)) else None


def _is_large(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.nbytes > _LARGE
