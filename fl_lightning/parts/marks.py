"""Small marks of values, which differ, nearly always, if the values do."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fl_lightning.parts.federation import accumulator
from fl_lightning.parts.part import Part
from fl_lightning.super_calls import is_of_library

_PLAIN = (bool, int, float, complex, str, bytes)
_DEPTH = 3  # of attributes of attributes


def mark(value: Any, depth: int = _DEPTH) -> Any:
    """Return something small that differs, nearly always, if a value does; of what lies too deep only the type."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiubc":
        return value.shape, str(value.dtype), hashlib.sha1(np.ascontiguousarray(value).tobytes()).hexdigest()
    if isinstance(value, Tensor) and value.layout is torch.strided:
        return tuple(value.shape), str(value.dtype), *_sums(value.detach())
    if isinstance(value, dict):
        return {repr(key): mark(item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [mark(item, depth) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if value is None or isinstance(value, _PLAIN):
        return repr(value)
    state = _generator_state(value)
    if isinstance(value, nn.Module):
        state = {**dict(value.named_parameters()), **dict(value.named_buffers())}
    closed = (type, ModuleType, FunctionType, Part)  # other parts are looked at by themselves
    if state is None and depth and not isinstance(value, closed) and not is_of_library(type(value)):
        state = getattr(value, "__dict__", None)
    return type(value).__name__ if state is None else mark(state, depth - 1)


def _generator_state(value: Any) -> Any:
    """Return where a random generator, or an iterator of ``itertools``, has come to; ``None`` for anything else."""
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    if isinstance(value, random.Random):
        return value.getstate()
    return repr(value.__reduce__()) if type(value).__module__ == "itertools" else None


def _sums(value: Tensor) -> tuple[str, ...]:
    if not value.is_floating_point():
        return (repr(value.sum().item()),)
    kind = accumulator(value)
    sums = value.sum(dtype=kind), torch.linalg.vector_norm(value, dtype=kind)
    return tuple(repr(each.item()) for each in sums)
