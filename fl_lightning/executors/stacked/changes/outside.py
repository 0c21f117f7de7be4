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

from fl_lightning.executors.stacked.changes.module_state import ModuleState
from fl_lightning.object_attributes import attributes_of
from fl_lightning.parts.guards.changes_in_place import version_of
from fl_lightning.surroundings import is_users

_MISSING = object()
#: Puts back what was kept.
PutBack = Callable[[], object]


class Outside:
    """What the methods of a module can reach: containers, objects, tensors, classes, globals, variables of closures.

    What cannot be put back is how far iterators and generators have come.

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
        self._entries = [_names(names) for names in namespaces.values()]
        self._entries += [kept_attributes(kind, dict(vars(kind))) for kind in classes]
        self._entries += [kept_attributes(function, attributes_of(function)) for function in functions]
        self._entries += [_cell(cell) for cell in cells.values()]
        for value in reached:
            with suppress(Exception):  # whatever an object raises when it is looked at
                if id(value) not in inside and (entry := kept_content(value)) is not None:
                    self._entries.append(entry)

    def put_back(self) -> None:
        """Put back what has changed since."""
        for entry in self._entries:
            with suppress(Exception):  # such as of an object that cannot be written to
                entry()


def _functions(classes: Iterable[type]) -> Iterator[FunctionType]:
    """Yield the functions that classes define."""
    for member in (member for kind in classes for member in vars(kind).values()):
        for function in (member, *(getattr(member, name, None) for name in ("__func__", "fget", "fset"))):
            if type(function) is FunctionType:
                yield function


def kept_content(value: Any) -> PutBack | None:
    """Return what puts the content of an object back; ``None`` if it has none."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        saved = value.copy()
        return lambda: np.copyto(value, saved)
    if isinstance(value, type):
        return kept_attributes(value, dict(vars(value)))
    if isinstance(value, random.Random):
        state = value.getstate()
        return lambda: value.setstate(state)
    if isinstance(value, torch.Generator):
        own = value.get_state()
        return lambda: value.set_state(own)
    parts = [kept_attributes(value, attributes_of(value))] if attributes_of(value) else []
    if isinstance(value, dict):
        parts.append(_entries(value))
    for kind in (list, deque, set, bytearray):
        if isinstance(value, kind):
            parts.append(_items(value, kind))
    return (lambda: [part() for part in parts]) if parts else None


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


def kept_attributes(value: Any, saved: dict[str, Any]) -> PutBack:
    """Return what puts an object's attributes back."""
    write = type.__setattr__ if isinstance(value, type) else object.__setattr__
    delete = type.__delattr__ if isinstance(value, type) else object.__delattr__

    def put_back() -> None:
        present = dict(vars(value)) if isinstance(value, type) else attributes_of(value)
        for key in saved.keys() | present.keys():
            if key not in saved:
                delete(value, key)
            elif present.get(key, _MISSING) is not saved[key]:
                write(value, key, saved[key])

    return put_back


def _cell(cell: Any) -> PutBack:
    try:
        saved = cell.cell_contents
    except ValueError:  # it is empty
        return lambda: None

    def put_back() -> None:
        cell.cell_contents = saved

    return put_back
