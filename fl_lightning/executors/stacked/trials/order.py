"""Whether clients that begin together begin as those that train one after the other do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_
from typing import Any

from fl_lightning.executors.stacked.changes.object_state import ObjectState
from fl_lightning.executors.stacked.surroundings import names_reached

#: What a trainer and a module tell that changes with each client's training.
COUNTED = frozenset(
    [
        "global_step",
        "total_batch_idx",
        "batch_idx",
        "batch_progress",
        "optim_progress",
        "optimizer_progress",
        "callback_metrics",
        "logged_metrics",
        "progress_bar_metrics",
        "_results",
        "_logger_connector",
    ]
)


class Readable:
    """The state of objects that some methods may read, to see whether other methods change it.

    Args:
        objects: Callbacks, or parts of an algorithm.
        names: The names that the methods' code uses, as :func:`names_read` finds them.
    """

    def __init__(self, objects: Sequence[Any], names: set[str] | None) -> None:
        self.names, self._objects = names, objects
        self._state = ObjectState(*objects, samples=True, names=names)
        self._whole: ObjectState | None = None  # the dictionaries of which more than a client's own entry is read

    def look(self) -> None:
        """Look at it: later looks are compared with this one."""
        self._state.look()
        if self._whole is not None:
            self._whole.look()

    def changed(self, *clients: int, fills: bool = True) -> str | None:
        """Return the name of something that is another now, ``None`` if nothing is.

        Args:
            clients: Their entries in dictionaries may be new or others, where the methods read none but a client's own.
            fills: Whether what is only filled in counts, too; see :meth:`ObjectState.changed`.
        """
        whole = None if self._whole is None else self._whole.changed(fills=fills)
        return whole or self._state.changed(*clients, fills=fills)

    @contextmanager
    def noticing(self, client: int) -> Iterator[None]:
        """Notice of which dictionaries the methods read more than the client's own entry."""
        places = [
            (held, name, value)
            for held in (each.__dict__ for each in self._objects)
            for name, value in held.items()
            if type(value) in _NOTING and (self.names is None or name in self.names)
        ]
        noting = [_NOTING[type(value)](value, client) for _, _, value in places]
        for (held, name, _), note in zip(places, noting, strict=True):
            held[name] = note
        try:
            yield
        finally:
            for (held, name, value), note in zip(places, noting, strict=True):
                if held.get(name) is note:
                    held[name] = value
                if list(value) != list(dict.keys(note)) or not all(map(is_, value.values(), dict.values(note))):
                    value.clear()
                    value.update(dict.items(note))
        if read := {name for (_, name, _), note in zip(places, noting, strict=True) if note.reads_others}:
            self._whole = ObjectState(*self._objects, samples=True, names=read)


def names_read(methods: Sequence[Callable[..., Any]]) -> set[str] | None:
    """Return the names that the code of methods uses; ``None`` if it does not tell them."""
    reached = [names_reached(method) for method in methods]
    return None if None in reached else {name for own in reached for name in own or ()}


class _Notes(dict[Any, Any]):
    """A dictionary that notes whether anything but one client's entry is read."""

    def __init__(self, held: dict[Any, Any], client: int) -> None:
        super().__init__(held)
        self.client, self.reads_others = client, False


class _NotesDefault(defaultdict[Any, Any]):
    """The same, of a dictionary with a default."""

    def __init__(self, held: defaultdict[Any, Any], client: int) -> None:
        super().__init__(held.default_factory, held)
        self.client, self.reads_others = client, False


_NOTING: dict[type, Any] = {dict: _Notes, defaultdict: _NotesDefault}


def _of_entry(name: str) -> Callable[..., Any]:
    def method(self: Any, key: Any, *args: Any) -> Any:
        self.reads_others |= not (type(key) is int and key == self.client)
        return getattr(super(type(self), self), name)(key, *args)

    return method


def _of_all(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any) -> Any:
        self.reads_others = True
        return getattr(super(type(self), self), name)(*args)

    return method


for _kind in _NOTING.values():
    for _name in ("__getitem__", "__contains__", "get", "pop", "setdefault"):
        setattr(_kind, _name, _of_entry(_name))
    for _name in ("__iter__", "__len__", "__reversed__", "__eq__", "__or__", "__ror__"):
        setattr(_kind, _name, _of_all(_name))
    for _name in ("keys", "values", "items", "copy", "popitem"):
        setattr(_kind, _name, _of_all(_name))
