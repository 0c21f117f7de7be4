"""Torch's threads, and memory that is freed, in a fit."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fl_lightning.clients.step_counts import StepCounts

#: Floating-point operations of a client's step from which arithmetic, not calls, takes most of the time on a CPU.
LARGE_STEP = 3e8


class Threads:
    """One thread for all that a fit computes on a CPU, or all of torch's if a client's step has much arithmetic.

    With all cores small networks train more slowly even on an idle machine, and many times more slowly on a busy one,
    where threads wait for each other. A number that the user has set stays.

    Attributes:
        chosen: The number, part of a checkpoint; ``None`` before a client has trained.
    """

    def __init__(self) -> None:
        self.chosen: int | None = None
        #: Torch's own number, of which may be chosen in the fit under way.
        self._all: int | None = None

    @contextmanager
    def of_fit(self, device: torch.device) -> Iterator[None]:
        """Train with the chosen number of threads, with one until it is chosen; give torch its threads back."""
        with using_threads(self.chosen or 1, device) as self._all:
            yield

    @property
    def of_evaluation(self) -> int | None:
        """The number for evaluations after the fit; ``None`` leaves torch its own."""
        if self._all is None:
            return self.chosen
        # Stacks choose none, and have one.
        return self.chosen or 1

    def choose(self, counts: StepCounts | None, processes: int) -> None:
        """Choose by what the first step of the first client computed, once that is known."""
        if self._all is not None and self.chosen is None and counts is not None:
            is_large = counts.flops >= LARGE_STEP and processes == 1
            self.chosen = self._all if is_large else 1
            torch.set_num_threads(self.chosen)

    def __str__(self) -> str:
        if self._all is None:
            return ""
        number = self.chosen or 1
        threads = "1 thread" if number == 1 else f"{number} threads"
        return f" Torch uses {threads}."


@contextmanager
def using_threads(number: int | None, device: torch.device) -> Iterator[int | None]:
    """Compute with a number of threads if the device is a CPU and the user has set none.

    Args:
        number: The number; ``None`` leaves torch its own.
        device: Where is computed.

    Yields:
        Torch's own number; ``None`` if it is left alone.
    """
    usual = _default_number() if device.type == "cpu" else None
    if number is None or usual is None:
        yield None
        return
    torch.set_num_threads(number)
    try:
        yield usual
    finally:
        torch.set_num_threads(usual)


def _default_number() -> int | None:
    """Return torch's number of threads if it is the default of several, ``None`` if the user has set it."""
    if any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
        return None
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        # Those that this process may use.
        cores = len(os.sched_getaffinity(0))
    present = torch.get_num_threads()
    return present if present > 1 and present in (cores, cores // 2) else None


#: Options of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
#: The C library maps what is larger than this by itself, always.
_LARGEST = 32 << 20
_KEPT = 512 << 20
_SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> None:
    """Let the C library keep freed memory: up to 512 MiB at the heap's end, and what lies below memory still in use.

    Activations of a convolutional network are allocated and freed at each step, and every page that comes anew from
    the system costs a fault: a sixth of the step's time for 32 images. It is set for the process; nothing happens on
    systems without glibc, and where the environment configures ``malloc``.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _SET_BY_USER):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
