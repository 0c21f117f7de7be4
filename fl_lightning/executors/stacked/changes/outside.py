"""What a step on a copy of a module changes outside of the copy is put back."""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.tensor_bytes import version_of
from fl_lightning.executors.stacked.changes.module_state import ModuleState
from fl_lightning.executors.stacked.object_attributes import attributes_of
from fl_lightning.executors.stacked.surroundings import is_users

_MISSING = object()
#: Puts back what was kept.
PutBack = Callable[[], object]


class Kept:
    """The contents and attributes of objects, which are put back later."""

    def __init__(self) -> None:
        self._entries: list[PutBack] = []

    def add(self, *entries: PutBack) -> None:
        """Add functions that put something back."""
        self._entries += entries

    def add_contents(self, values: Iterable[Any]) -> None:
        """Keep what objects hold."""
        for value in values:
            with suppress(Exception):  # whatever an object raises when it is looked at
                if (entry := _content(value)) is not None:
                    self._entries.append(entry)

    def put_back(self) -> None:
        """Put back what has changed since."""
        for entry in self._entries:
            with suppress(Exception):  # such as of an object that cannot be written to
                entry()


class Outside(Kept):
    """What the methods of a module can reach: containers, objects, tensors, classes, globals, variables of closures.

    Iterators and generators stay as far as they have come, and writes that torch does not count, as by ``.data``, stay.

    Args:
        state: What a copy of the module holds.
    """

    def __init__(self, state: ModuleState) -> None:
        module = state.vector.module
        inside = {id(part) for part in (*module.modules(), *module.parameters(), *module.buffers())}
        reached = state.reached()
        classes = {base for part in module.modules() for base in type(part).__mro__ if is_users(base.__module__)}
        functions = [*_functions(classes), *(value for value in reached if type(value) is FunctionType)]
        namespaces = {id(function.__globals__): function.__globals__ for function in functions}
        for names in list(namespaces.values()):
            held = (value for value in names.values() if type(value) is ModuleType and is_users(value.__name__))
            namespaces |= {id(vars(value)): vars(value) for value in held}
        cells = {id(cell): cell for function in functions for cell in function.__closure__ or ()}
        super().__init__()
        self.add(*map(_names, namespaces.values()))
        self.add(*map(kept_attributes, [*classes, *functions]))
        self.add(*map(_cell, cells.values()))
        self.add_contents(value for value in reached if id(value) not in inside)


def _functions(classes: Iterable[type]) -> Iterator[FunctionType]:
    """Yield the functions that classes define."""
    for member in (member for kind in classes for member in vars(kind).values()):
        for function in (member, *(getattr(member, name, None) for name in ("__func__", "fget", "fset"))):
            if type(function) is FunctionType:
                yield function


def _content(value: Any) -> PutBack | None:
    """Return what puts the content of an object back; ``None`` if it has none."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, type):
        return kept_attributes(value)
    if isinstance(value, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    if isinstance(value, np.random.Generator):
        held = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", held)
    if isinstance(value, torch.Generator):
        own = value.get_state()
        return lambda: value.set_state(own)
    parts = [kept_attributes(value)] if hasattr(value, "__dict__") or attributes_of(value) else []
    if isinstance(value, dict):
        parts.append(_entries(value))
    for kind in (list, deque, set, bytearray):
        if isinstance(value, kind):
            parts.append(_items(value, kind))
    return (lambda: [part() for part in parts]) if parts else None


def _array(array: Any) -> PutBack:
    saved = array.copy()

    def put_back() -> None:
        if array.tobytes() != saved.tobytes():  # others may write to it meanwhile
            np.copyto(array, saved)

    return put_back


def _tensor(tensor: Tensor) -> PutBack:
    saved, version = tensor.detach().clone(), version_of(tensor)

    def put_back() -> None:
        if version_of(tensor) != version:
            with torch.no_grad():
                tensor.copy_(saved)

    return put_back


def _names(names: dict[str, Any]) -> PutBack:
    """Return what puts back the names of a file, which other threads may use meanwhile."""
    saved = dict(names)

    def put_back() -> None:
        for name in names.keys() - saved.keys():
            del names[name]
        for name, value in saved.items():
            if names.get(name, _MISSING) is not value:
                names[name] = value

    return put_back


def _entries(value: dict[Any, Any]) -> PutBack:
    saved = list(dict.items(value))
    kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict

    def put_back() -> None:
        present = [(id(key), id(item)) for key, item in dict.items(value)]
        if present != [(id(key), id(item)) for key, item in saved]:
            kind.clear(value)
            for key, item in saved:
                kind.__setitem__(value, key, item)

    return put_back


def _items(value: Any, kind: Any) -> PutBack:
    saved = list(kind.__iter__(value))

    def put_back() -> None:
        present = list(kind.__iter__(value))
        if list(map(id, present)) != list(map(id, saved)):
            kind.clear(value)
            (kind.update if kind is set else kind.extend)(value, saved)

    return put_back


def kept_attributes(value: Any) -> PutBack:
    """Return what puts an object's or a class's attributes back; no code of the user's own, such as a setter, runs."""
    is_class = isinstance(value, type)
    own = None if is_class else getattr(value, "__dict__", None)
    saved = dict(vars(value)) if is_class else attributes_of(value)
    in_dictionary = set(own) if isinstance(own, dict) else set()

    def put_back() -> None:
        present = dict(vars(value)) if is_class else attributes_of(value)
        for key in (*saved, *(key for key in present if key not in saved)):
            before = saved.get(key, _MISSING)
            if present.get(key, _MISSING) is before:
                continue
            with suppress(Exception):  # such as of an attribute that is computed; the others are put back
                if isinstance(own, dict) and (key in own or key in in_dictionary):
                    _put_entry(own, key, before)
                else:
                    _put_attribute(value, key, before)

    return put_back


def _put_entry(held: dict[str, Any], key: str, before: Any) -> None:
    if before is _MISSING:
        del held[key]
    else:
        held[key] = before


def _put_attribute(value: Any, key: str, before: Any) -> None:
    kind = type if isinstance(value, type) else object
    if before is _MISSING:
        kind.__delattr__(value, key)
    else:
        kind.__setattr__(value, key, before)


def _cell(cell: Any) -> PutBack:
    try:
        saved = cell.cell_contents
    except ValueError:  # it is empty
        return lambda: None

    def put_back() -> None:
        cell.cell_contents = saved

    return put_back
