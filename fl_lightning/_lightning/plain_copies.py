"""Copies of tensors, arrays and containers of them, in which all other objects stay themselves; and comparisons."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def plain_copy(value: Any, *, of_parameters: bool = True) -> Any:
    """Return a copy of a tensor, an array, or a list, deque, tuple, dict or set, with what is in it.

    Containers keep their types. A tuple in which nothing is copied stays itself.

    Args:
        value: The value; any other object is returned as it is.
        of_parameters: Whether parameters are copied, too; otherwise they stay themselves.
    """
    if isinstance(value, nn.Parameter) and not of_parameters:
        return value
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        copy = value.copy()
        copy.update({key: plain_copy(item, of_parameters=of_parameters) for key, item in value.items()})
        return copy
    if isinstance(value, (list, deque)):
        items = value.copy()
        for place, item in enumerate(value):
            items[place] = plain_copy(item, of_parameters=of_parameters)
        return items
    if type(value) is tuple:
        copies = tuple(plain_copy(item, of_parameters=of_parameters) for item in value)
        return value if all(new is old for new, old in zip(copies, value, strict=True)) else copies
    return value.copy() if isinstance(value, set) else value


def same_content(before: Any, now: Any) -> bool:
    """Return whether two values are of one type and hold the same; of other objects, whether they are one."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(now, Tensor):
        strided = before.layout is now.layout is torch.strided
        return strided and before.dtype == now.dtype and torch.equal(before, now)
    if isinstance(now, np.ndarray):
        return before.dtype == now.dtype and np.array_equal(before, now)
    if isinstance(now, dict):
        return list(before) == list(now) and all(map(same_content, before.values(), now.values()))
    if isinstance(now, (list, tuple, deque)):
        return len(before) == len(now) and all(map(same_content, before, now))
    return isinstance(now, (set, int, float, complex, str, bytes)) and bool(before == now)
