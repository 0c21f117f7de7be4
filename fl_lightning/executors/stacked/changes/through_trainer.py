"""What a step on a copy of a module changes in objects that it gets from its trainer: found out, and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from lightning.pytorch import LightningDataModule
from torch import Tensor

from fl_lightning._lightning.copies import WatchedTrainer
from fl_lightning.executors.stacked.changes.comparison import ByIdentity, changed_name
from fl_lightning.executors.stacked.changes.object_state import SharedSnapshotter, contents_of
from fl_lightning.executors.stacked.changes.outside import PutBack, kept_attributes, kept_content
from fl_lightning.object_attributes import attributes_of

_NODES = 2_000  # objects of the data module that are looked at
_LARGE = 2**20  # bytes of a tensor or array whose values are not kept
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ThroughTrainer:
    """Objects that the trainer of a copy gives to it, such as the data module: there is one for all clients.

    Of the data module the attributes and what they hold are looked at, of other objects the attributes alone.

    Args:
        watched: The trainer of the copy.
    """

    def __init__(self, watched: WatchedTrainer) -> None:
        self._watched = watched
        self._given: dict[str, Any] = {}
        self._before: dict[str, dict[str, Any]] = {}
        self._entries: list[PutBack] = []

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Look at what is given from now on; put back at the end what has changed."""
        self._given, self._before, self._entries = {}, {}, []
        self._watched.tell(self._look)
        try:
            yield
        finally:
            self._watched.tell(None)
            for put_back in self._entries:
                with suppress(Exception):  # such as of an object that cannot be written to
                    put_back()

    def changed(self) -> str | None:
        """Return the name of something that is another than when it was given, ``None`` if nothing is."""
        for path, value in self._given.items():
            if found := changed_name(self._before[path], _snapshot(path, value)[0]):
                return found
        return None

    def _look(self, name: str, value: Any) -> None:
        parts = [(name, value)]
        if isinstance(value, (list, tuple)):
            parts += [(f"{name}[{place}]", part) for place, part in enumerate(value)]
        for path, part in parts:
            if isinstance(part, (*_PLAIN, Tensor)) or self._given.get(path) is part:
                continue
            self._given[path] = part
            self._before[path], visited = _snapshot(path, part)
            kept = (kept_content(held) for held in visited if not _is_large(held))
            self._entries += [entry for entry in kept if entry is not None]
            self._entries.append(kept_attributes(part, attributes_of(part)))


def _snapshot(path: str, value: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return a snapshot of an object's attributes, by name, and the objects into which it looks."""
    if not isinstance(value, LightningDataModule):
        held = attributes_of(value)
        named = {key: part if isinstance(part, _PLAIN) else ByIdentity.of(part) for key, part in held.items()}
        return {f"trainer.{path}.{key}": part for key, part in named.items()}, []
    snapshotter = SharedSnapshotter(set(), brief=True, nodes=_NODES, samples=True)
    snapshots = {key: snapshotter.snapshot(part) for key, part in contents_of(value).items()}
    return {f"trainer.{path}.{key}": part for key, part in snapshots.items()}, snapshotter.visited


def _is_large(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray)) and value.nbytes > _LARGE
