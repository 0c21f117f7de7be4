"""A comparison of values by their contents: tensors, arrays, and containers of them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor


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
