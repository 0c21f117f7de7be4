"""State of objects beside the module, such as a counter or a random generator of the data's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback

from fl_lightning.data.workers import BatchWorkers
from fl_lightning.executors.stacked.module_state import At, Camera, same
from fl_lightning.executors.stacked.surroundings import surroundings

_NODES = 20_000  # objects that are looked at
_LIGHTNINGS = ("log", "log_dict", "trainer")  # attributes that Lightning sets


class HeldState:
    """The state of objects that all clients share: data sets, functions, the data module, callbacks.

    Of a long list only the length is looked at, of a large tensor the shape, of a large dictionary nothing.

    Args:
        roots: The objects.
    """

    def __init__(self, *roots: Any) -> None:
        self._roots = roots
        self.look()

    def look(self) -> None:
        """Look at the objects: later looks are compared with this one."""
        self._before = self._image()

    def changed(self) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is.

        What is only filled in does not count, since it does not depend on the order of clients: new entries of a
        dictionary, new attributes, and what was ``None``.
        """
        return _change(self._before, self._image(), "")

    def _image(self) -> Any:
        contents: dict[str, list[Any]] = {}
        for root in self._roots:
            contents.setdefault(type(root).__name__, []).append(_contents(root))
        return _Camera(set(), brief=True, nodes=_NODES).image(contents)


def _contents(root: Any) -> Any:
    if not isinstance(root, (Callback, LightningDataModule)):
        return root
    own = {key: value for key, value in vars(root).items() if key not in _LIGHTNINGS}
    own = {key: value for key, value in own.items() if not isinstance(value, BatchWorkers)}
    return {**surroundings(type(root)), **own}  # new attributes come last


class _Camera(Camera):
    def _image_of(self, value: Any) -> Any:
        if isinstance(value, LightningModule):
            return At.of(value)
        return super()._image_of(value)

    def _long(self, value: Any) -> Any:
        return type(value) if isinstance(value, dict) else super()._long(value)


def _change(before: Any, after: Any, path: str) -> str | None:
    """Return the path to what is another in a later image, ``None`` if nothing is."""
    if before is None or same(before, after):
        return None
    if isinstance(before, type) and issubclass(before, Mapping):  # it was empty
        return None if isinstance(after, tuple) and after[0] in (before, "seen") else path
    if type(before) is not type(after) or isinstance(before, At) or not isinstance(before, (tuple, list)):
        return path
    if isinstance(before[0], type) and issubclass(before[0], Mapping) and before[0] is after[0]:
        return _change_of_entries(before[1], after[1], path)
    if isinstance(before[0], str) and before[0] == "seen":  # numbered in the order of looks, which entries shift
        return None
    if len(before) != len(after):
        return path
    return next((found for a, b in zip(before, after, strict=True) if (found := _change(a, b, path))), None)


def _change_of_entries(before: list[tuple[Any, Any]], after: list[tuple[Any, Any]], path: str) -> str | None:
    """Return the path to an entry that is another; later images may have more entries at their ends."""
    for place, (key, value) in enumerate(before):
        own = f"{path}.{key}".lstrip(".") if isinstance(key, str) else f"{path}[{key!r}]"
        if place >= len(after) or not same(key, after[place][0]):
            return own
        if found := _change(value, after[place][1], own):
            return found
    return None
