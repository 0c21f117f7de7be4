"""Reads the contents of objects: their memory, and what a copy of them is made of."""

from __future__ import annotations

import copyreg
import gc
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from mmap import mmap
from types import BuiltinFunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from fl_lightning.data.tensor_bytes import version_of

#: Tensors up to this size may be settings.
BRIEF_VALUES = 1_000
_METHODS = (BuiltinFunctionType, MethodType)
_TABLES = {name for name, value in vars(nn.Module()).items() if isinstance(value, OrderedDict)}  # of hooks


def parts_of(value: Any) -> Any:
    """Return what a copy of an object without attributes is made of, or the methods that it calls; else ``None``."""
    with suppress(Exception):
        parts = value.__reduce_ex__(4)
        stateless = parts[:3] == (copyreg.__newobj__, (type(value),), None)  # type: ignore[attr-defined]
        return None if stateless else parts
    return [held for held in gc.get_referents(value) if isinstance(held, _METHODS)]  # as a `csv.writer` its file's


def hooks_by_place(held: Mapping[str, Any]) -> dict[str, Any]:
    """Return a module's tables of hooks, those that have entries, with places as keys.

    Torch's own keys number all hooks of a process, so that another process may have other ones.

    Args:
        held: The module's attributes.
    """
    tables = {}
    for name in _TABLES & held.keys():
        if table := held[name]:
            places = {key: place for place, key in enumerate(held[name.partition("_hooks")[0] + "_hooks"])}
            tables[name] = {places.setdefault(key, len(places)): entry for key, entry in table.items()}
    return tables


def sample_of(tensor: Tensor) -> Any:
    """Return some values of a large tensor, and how often it has been written to."""
    step = tensor.numel() // BRIEF_VALUES
    values = tensor.detach().view(-1)[::step].clone() if tensor.is_contiguous() else None
    return version_of(tensor), values


def memory_of(value: Any) -> memoryview | None:
    """Return the memory of something that is made of it alone, such as a number of ``ctypes``; else ``None``.

    Memory that belongs to a file is not looked at.
    """
    if isinstance(value, mmap):
        return None
    try:
        return memoryview(value)
    except (TypeError, ValueError, BufferError):
        return None
