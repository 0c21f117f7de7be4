"""The settings that a cell may change for its whole process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager
from functools import partial
from typing import Any

import torch
from torch.backends import cudnn

_STATES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (lambda: cudnn.benchmark, partial(setattr, cudnn, "benchmark")),
)


@contextmanager
def process_state_kept() -> Iterator[None]:
    """Put back the working folder and torch's global settings, such as its default type.

    The next cell of the process then has the result that it would have in a process of its own.
    """
    before = [get() for get, _ in _STATES]
    try:
        with chdir(os.getcwd()):
            yield
    finally:
        for (get, put), value in zip(_STATES, before, strict=True):
            if get() != value:
                put(value)
