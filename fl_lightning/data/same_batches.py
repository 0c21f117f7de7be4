"""Comparison of two batches, bit for bit."""

from __future__ import annotations

import pickle
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl_lightning.data.object_attributes import attributes_of


def same_bits(one: Any, other: Any) -> bool:
    """Return whether two values are of one type and hold the same, NaN included.

    Objects of other classes are compared by ``==`` if it holds, and else by their attributes, whatever is in them.
    """
    return _same(one, other, set())


def _same(one: Any, other: Any, under_way: set[tuple[int, int]]) -> bool:
    pair = id(one), id(other)
    if one is other or pair in under_way:
        return True
    if type(one) is not type(other):
        return False
    under_way.add(pair)  # an object may hold itself
    try:
        return _same_within(one, other, under_way)
    finally:
        under_way.remove(pair)


def _same_within(one: Any, other: Any, under_way: set[tuple[int, int]]) -> bool:
    if isinstance(one, Tensor):
        return _same_tensors(one, other, under_way)
    if isinstance(one, (np.ndarray, np.generic)):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return _all_same(one.flat, other.flat, under_way) if one.dtype.hasobject else one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return _all_same(one, other, under_way) and _all_same(one.values(), other.values(), under_way)
    if isinstance(one, (list, tuple, deque)):
        return _all_same(one, other, under_way)
    if isinstance(one, weakref.ref):
        return _same(one(), other(), under_way)
    if isinstance(one, float):
        return one == other or (one != one and other != other)
    if one is None or isinstance(one, (str, bytes, bytearray, int, complex, type, Set)):
        return bool(one == other)
    return _same_objects(one, other, under_way)


def _all_same(ones: Iterable[Any], others: Iterable[Any], under_way: set[tuple[int, int]]) -> bool:
    firsts, seconds = list(ones), list(others)
    return len(firsts) == len(seconds) and all(
        _same(one, other, under_way) for one, other in zip(firsts, seconds, strict=True)
    )


def _same_tensors(one: Tensor, other: Tensor, under_way: set[tuple[int, int]]) -> bool:
    if (one.dtype, one.layout, one.device) != (other.dtype, other.layout, other.device):
        return False
    if one.is_nested:
        return _all_same(one.unbind(), other.unbind(), under_way)
    if one.shape != other.shape:
        return False
    if one.is_quantized:
        return torch.equal(one, other)
    if one.layout is not torch.strided:
        ones, others = (value.to_sparse_coo().coalesce() for value in (one, other))
        return _all_same((ones.indices(), ones.values()), (others.indices(), others.values()), under_way)
    ones, others = (value.detach().resolve_conj().resolve_neg().contiguous() for value in (one, other))
    return torch.equal(ones.view(-1).view(torch.uint8), others.view(-1).view(torch.uint8))


def _same_objects(one: Any, other: Any, under_way: set[tuple[int, int]]) -> bool:
    with suppress(Exception):  # such as that of an array's truth
        if bool(one == other):
            return True
    ones, others = attributes_of(one), attributes_of(other)
    if isinstance(one, Mapping):
        with suppress(Exception):
            ones, others = {**ones, "items": dict(one)}, {**others, "items": dict(other)}
    return _same(ones, others, under_way) if ones or others else _same_pickles(one, other)


def _same_pickles(one: Any, other: Any) -> bool:
    """Compare what processes would send; values that cannot be sent count as different."""
    try:
        return pickle.dumps(one) == pickle.dumps(other)
    except Exception:
        return False
