"""Small fingerprints of values, which differ, nearly always, if the values do."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import deque
from collections.abc import Iterator
from operator import length_hint
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fl_lightning.object_attributes import attributes_of
from fl_lightning.parts.federation import accumulator
from fl_lightning.parts.part import Part
from fl_lightning.super_calls import is_of_library
from fl_lightning.surroundings import is_users

_PLAIN = (bool, int, float, complex, str, bytes)
_DEPTH = 3  # of attributes of attributes


def fingerprint(value: Any, depth: int = _DEPTH) -> Any:
    """Return something small that differs, nearly always, if a value does; of what lies too deep only the type."""
    if isinstance(value, (np.ndarray, np.generic)) or _is_of_pandas(value):
        values = np.asarray(value)
        if values.dtype.hasobject:
            return fingerprint(values.tolist(), depth)
        return values.shape, str(values.dtype), hashlib.sha1(np.ascontiguousarray(values).tobytes()).hexdigest()
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return tuple(value.shape), str(value.dtype), *_sums(value.detach())
    if isinstance(value, dict):
        return {repr(key): fingerprint(item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [fingerprint(item, depth) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (bytearray, array)):
        return hashlib.sha1(value).hexdigest()
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    state = _generator_state(value)
    if isinstance(value, nn.Module):
        state = _module_state(value)
    closed = (type, ModuleType, FunctionType, Part)  # other parts are looked at by themselves
    if state is None and depth and not isinstance(value, closed) and not is_of_library(type(value)):
        state = _attributes(value)
    return type(value).__name__ if state is None else fingerprint(state, depth - 1)


def _is_of_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "__array__")


def _attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes of an object; ``None`` if it can have none.

    Slots count in classes of users. In others they hold caches, too, such as those of a path.
    """
    return attributes_of(value, lambda base: is_users(base.__module__)) or getattr(value, "__dict__", None)


def _module_state(module: nn.Module) -> dict[str, Any]:
    """Return parameters and buffers, and what metric objects have counted, which is neither."""
    state: dict[str, Any] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, part in module.named_modules():
        counted = getattr(part, "metric_state", None)  # of torchmetrics
        state |= {f"{name}.{key}": kept for key, kept in counted.items()} if isinstance(counted, dict) else {}
    return state


def _generator_state(value: Any) -> Any:
    """Return where a random generator or an iterator has come to; ``None`` for anything else."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, GeneratorType):
        return None if value.gi_frame is None else {**value.gi_frame.f_locals, "": value.gi_frame.f_lasti}
    if isinstance(value, Iterator) and type(value).__module__ == "builtins":
        return repr(length_hint(value))
    return repr(value.__reduce__()) if type(value).__module__ == "itertools" else None


def _sums(value: Tensor) -> tuple[str, ...]:
    if not value.is_floating_point():
        return (repr(value.sum().item()),)
    kind = accumulator(value)
    sums = value.sum(dtype=kind), torch.linalg.vector_norm(value, dtype=kind)
    return tuple(repr(each.item()) for each in sums)
