"""State of objects beside the module, such as a counter or a random generator of the data's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback

from fl_lightning.data.client_datasets import ClientDatasetsModule
from fl_lightning.data.federated_split import FederatedSplit
from fl_lightning.data.source import Source
from fl_lightning.data.workers import BatchWorkers
from fl_lightning.executors.stacked.changes.comparison import ByIdentity, same
from fl_lightning.executors.stacked.changes.module_state import Snapshotter
from fl_lightning.partitioners import Partition
from fl_lightning.surroundings import add_named, name_in_code, surroundings

_NODES = 20_000  # objects that are looked at
_LIGHTNINGS = ("log", "log_dict", "trainer")  # attributes that Lightning sets
_OF_CLIENTS = "_sets"  # clients' data sets in a ClientDatasetsModule, which are looked at apart


class ObjectState:
    """The state of objects that all clients share: data sets, functions, the data module, callbacks.

    Of a long list only the length is looked at, of a large tensor the shape, of a large dictionary nothing.

    Args:
        roots: The objects.
        samples: Whether samples of large tensors are looked at, too.
        names: What is looked at of callbacks and data modules; ``None`` for everything.
    """

    def __init__(self, *roots: Any, samples: bool = False, names: Collection[str] | None = None) -> None:
        self._roots, self._samples, self._names = roots, samples, names
        self.look()

    def look(self) -> None:
        """Look at the objects: later looks are compared with this one."""
        self._before = self._snapshot()

    def changed(self, client: int | None = None) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is.

        What is only filled in does not count, since it does not depend on the order of clients: new entries of a
        dictionary, new attributes, and what was ``None``.

        Args:
            client: The client whose number may be the key of changed entries: they are its own.
        """
        return _change(self._before, self._snapshot(), "", client)

    def _snapshot(self) -> Any:
        contents: dict[str, list[Any]] = {}
        for root in self._roots:
            held, names = contents_of(root), self._names
            if names is not None and isinstance(held, dict):
                held = {key: value for key, value in held.items() if name_in_code(key) in names}
            contents.setdefault(type(root).__name__, []).append(held)
        return _Snapshotter(set(), True, _NODES, self._samples).snapshot(contents)


def contents_of(root: Any) -> Any:
    """Return what a callback or a data module holds by name, anything else as it is."""
    if not isinstance(root, (Callback, LightningDataModule)):
        return root
    hidden = {*_LIGHTNINGS, _OF_CLIENTS} if isinstance(root, ClientDatasetsModule) else _LIGHTNINGS
    own = {key: v for key, v in vars(root).items() if key not in hidden and not isinstance(v, BatchWorkers)}
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
    def _long(self, value: Any) -> Any:
        return type(value) if isinstance(value, dict) else super()._long(value)


def _change(before: Any, after: Any, path: str, client: int | None = None) -> str | None:
    """Return the path to what is another in a later snapshot, ``None`` if nothing is."""
    if before is None or same(before, after):
        return None
    if isinstance(before, type) and issubclass(before, Mapping):  # it was empty
        return None if isinstance(after, tuple) and after[0] in (before, "seen") else path
    if type(before) is not type(after) or isinstance(before, ByIdentity) or not isinstance(before, (tuple, list)):
        return path
    if not before or not after:  # something was filled or emptied
        return path
    is_mapping = isinstance(before[0], type) and issubclass(before[0], Mapping) and isinstance(before[1], list)
    if is_mapping and before[0] is after[0]:
        return _change_of_entries(before[1], after[1], path, client)
    if isinstance(before[0], str) and before[0] == "seen":  # numbered in the order of looks, which entries shift
        return None
    if len(before) != len(after):
        return path
    return next((found for a, b in zip(before, after, strict=True) if (found := _change(a, b, path, client))), None)


def _change_of_entries(
    before: list[tuple[Any, Any]], after: list[tuple[Any, Any]], path: str, client: int | None
) -> str | None:
    """Return the path to an entry that is another; later snapshots may have more entries at their ends."""
    for place, (key, value) in enumerate(before):
        own = f"{path}.{key}".lstrip(".") if isinstance(key, str) else f"{path}[{key!r}]"
        if place >= len(after) or not same(key, after[place][0]):
            return own
        if client is not None and type(key) is int and key == client:
            continue
        if found := _change(value, after[place][1], own, client):
            return found
    return None
