"""Keeps torch's optimizers from looking for a GPU in each step where there is none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

_BY_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"


_there_is_one = cache(torch.cuda.is_available)


@contextmanager
def no_search_for_gpus() -> Iterator[None]:
    """Take back, for a while, what Lightning asks of torch: to look for GPUs by the driver's library.

    Optimizers of torch look for a GPU in each step. Where there is none, the driver's library is not found, which
    takes 0.1 ms each time. Where there is one, nothing is taken back: the other way to look would begin to use it.
    """
    asked = os.environ.get(_BY_DRIVER)
    if asked is None or _there_is_one():
        yield
        return
    del os.environ[_BY_DRIVER]
    try:
        yield
    finally:
        os.environ[_BY_DRIVER] = asked
