"""The contents of tensors, arrays and containers of them: to be put back later, and compared."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def remember(value: Any) -> Callable[[], Any]:
    """Return a function that gives a value its present content back, and returns it.

    It is put back in place, because others may hold the value too: a tensor, an array, or a list, deque, dict or set,
    with what is in it. Parameters and all other objects stay as they are then.
    """

    def put_back() -> Any:
        if isinstance(value, Tensor):
            with torch.no_grad():
                return value.copy_(before) if value.shape == before.shape else before.clone()
        if isinstance(value, np.ndarray):
            np.copyto(value, before)
        elif isinstance(value, dict):
            value.clear()
            value.update({key: content() for key, content in before.items()})
        elif isinstance(value, (list, deque)):
            value.clear()
            value.extend(content() for content in before)
        elif isinstance(value, set):
            value.clear()
            value.update(before)
        return value

    before: Any
    if isinstance(value, nn.Parameter):
        return lambda: value
    if isinstance(value, Tensor):
        before = value.detach().clone()
    elif isinstance(value, (np.ndarray, set)):
        before = value.copy()
    elif isinstance(value, dict):
        before = {key: remember(item) for key, item in value.items()}
    elif isinstance(value, (list, deque)):
        before = [remember(item) for item in value]
    elif type(value) is tuple:
        before = [remember(item) for item in value]
        return lambda: tuple(content() for content in before)
    return put_back


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
