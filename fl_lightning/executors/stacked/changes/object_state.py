"""State of objects beside the module, such as a counter or a random generator of the data's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback

from fl_lightning.data.client_datasets import ClientDatasetsModule
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.source import Source
from fl_lightning.executors.stacked.changes.comparison import ByIdentity, same
from fl_lightning.executors.stacked.changes.module_state import Snapshotter
from fl_lightning.executors.stacked.surroundings import add_named, name_in_code, surroundings
from fl_lightning.partitioners import Partition
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.part import Part

_NODES = 20_000  # objects that are looked at
#: Attributes that Lightning sets, and those of every part.
_HIDDEN = ("log", "log_dict", "trainer", "_federation", "_guarded_calls", "_arguments_given")
_OF_CLIENTS = "_sets"  # clients' data sets in a ClientDatasetsModule, which are looked at apart


class ObjectState:
    """The state of objects that all clients share: data sets, functions, the data module, callbacks.

    Of a long list only the length is looked at, of a large tensor the shape, of a large dictionary nothing.

    Args:
        roots: The objects.
        samples: Whether samples of large tensors are looked at, too.
        names: What is looked at of callbacks, data modules and parts; ``None`` for everything.
    """

    def __init__(self, *roots: Any, samples: bool = False, names: Collection[str] | None = None) -> None:
        self._roots, self._samples, self._names = roots, samples, names
        self.look()

    def look(self) -> None:
        """Look at the objects: later looks are compared with this one."""
        self._before = self._snapshot()

    def changed(self, *clients: int, fills: bool = False) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is.

        Args:
            clients: The clients whose numbers may be the keys of changed entries: they are their own.
            fills: Whether what is only filled in counts, too: new entries of a dictionary, new attributes, and what was
                ``None``. It does not depend on the order of clients, unless other methods read it.
        """
        return _Comparison(clients, fills).change(self._before, self._snapshot(), "")

    def _snapshot(self) -> Any:
        contents: dict[str, list[Any]] = {}
        for root in self._roots:
            held, names = contents_of(root), self._names
            if names is not None and isinstance(held, dict):
                held = {key: value for key, value in held.items() if name_in_code(key) in names}
            contents.setdefault(type(root).__name__, []).append(held)
        return _Snapshotter(set(), True, _NODES, self._samples).snapshot(contents)


def contents_of(root: Any) -> Any:
    """Return what a callback, a data module or a part holds by name, anything else as it is."""
    if not isinstance(root, (Callback, LightningDataModule, Part)):
        return root
    hidden = {*_HIDDEN, _OF_CLIENTS} if isinstance(root, ClientDatasetsModule) else _HIDDEN
    own = {key: v for key, v in vars(root).items() if key not in hidden}
    held = surroundings(type(root))
    add_named(held, own, type(root).__qualname__)  # new attributes come last
    return held


class SharedSnapshotter(Snapshotter):
    """A snapshotter that looks neither into modules nor into how samples are shared out.

    Modules and clients' own data sets are looked at apart.
    """

    def _snapshot_of(self, value: Any) -> Any:
        if isinstance(value, (LightningModule, FederatedSplit, Partition, Source)):
            return ByIdentity.of(value)
        return super()._snapshot_of(value)


class _Snapshotter(SharedSnapshotter):
    def _snapshot_of(self, value: Any) -> Any:
        if isinstance(value, (Part, ClientVectors, Federation)):  # other parts are looked at apart
            return ByIdentity.of(value)
        if isinstance(value, Callback):
            return type(value), self.snapshot(contents_of(value))
        return super()._snapshot_of(value)

    def _long(self, value: Any) -> Any:
        return type(value) if isinstance(value, dict) else super()._long(value)


@dataclass(frozen=True)
class _Comparison:
    """Compares two snapshots.

    Attributes:
        clients: The clients whose numbers may be the keys of changed entries.
        fills: Whether new entries, new attributes, and what was ``None`` count.
    """

    clients: Collection[int]
    fills: bool

    def change(self, before: Any, after: Any, path: str) -> str | None:
        """Return the path to what is another in a later snapshot, ``None`` if nothing is."""
        if same(before, after) or (before is None and not self.fills):
            return None
        if isinstance(before, type) and issubclass(before, Mapping):  # it was empty
            if not isinstance(after, tuple) or after[0] not in (before, "seen"):
                return path
            return self._change_of_entries([], after[1], path) if after[0] is before else None
        if type(before) is not type(after) or isinstance(before, ByIdentity) or not isinstance(before, (tuple, list)):
            return path
        if not before or not after:  # something was filled or emptied
            return path
        is_mapping = isinstance(before[0], type) and issubclass(before[0], Mapping) and isinstance(before[1], list)
        if is_mapping and before[0] is after[0]:
            return self._change_of_entries(before[1], after[1], path)
        if isinstance(before[0], str) and before[0] == "seen":  # numbered in the order of looks, which entries shift
            return None
        if len(before) != len(after):
            return path
        return next((found for a, b in zip(before, after, strict=True) if (found := self.change(a, b, path))), None)

    def _change_of_entries(self, before: list[tuple[Any, Any]], after: list[tuple[Any, Any]], path: str) -> str | None:
        """Return the path to an entry that is another; later snapshots may have more entries at their ends."""
        for place, (key, value) in enumerate(before):
            own = _path(path, key)
            if place >= len(after) or not same(key, after[place][0]):
                return own
            if self._is_own(key):
                continue
            if found := self.change(value, after[place][1], own):
                return found
        new = [key for key, _ in after[len(before) :] if not self._is_own(key)]
        return _path(path, new[0]) if new and self.fills else None

    def _is_own(self, key: Any) -> bool:
        return type(key) is int and key in self.clients


def _path(path: str, key: Any) -> str:
    return f"{path}.{key}".lstrip(".") if isinstance(key, str) else f"{path}[{key!r}]"
