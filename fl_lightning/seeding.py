"""Seeds derived from what a random choice is for, never from what was drawn before it.

Every client's work is seeded by (seed, round, client) and every round's draw of clients by (seed, round). User-defined
parts that draw from the global generators find them seeded, too. So results do not depend on the order in which clients
are trained, on the executor or on the number of processes, and a resumed run draws what the uninterrupted one would
have drawn.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import numpy as np
import torch

#: The types of devices that have generators.
_WITH_GENERATORS = ("cuda", "mps", "xpu")


class Stream(IntEnum):
    """What a seed is for; keeps the streams of one (seed, round) apart."""

    SAMPLING = 0
    CLIENT = 1
    SHUFFLE = 2
    SERVER = 3
    PARTICIPATION = 4
    SCORE = 5
    TWIN = 6
    CLOCK = 7
    COMPRESSION = 8
    PRIVACY = 9
    ATTACK = 10
    SECURE_AGGREGATION = 11
    HOOKS = 12
    ROUND = 13
    PARTS = 14
    BUCKETS = 15
    CONTRIBUTION = 16


def default_seed() -> int:
    """Return the seed given to ``lightning.seed_everything``, or 0 when there was none."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


def a_seed_was_given() -> bool:
    """Return whether ``lightning.seed_everything`` was given a seed."""
    return "PL_GLOBAL_SEED" in os.environ


def derive_seed(seed: int, stream: Stream, *parts: int) -> int:
    """Return a 63-bit seed that depends on all arguments; nearby arguments give unrelated seeds.

    A zero as the last of one or two ``parts`` changes nothing, if ``seed`` is below ``2**32``.
    """
    [state] = _sequence(seed, stream, *parts).generate_state(1, np.uint64)
    return int(state) >> 1


def numpy_generator(seed: int, stream: Stream, *parts: int) -> np.random.Generator:
    """Return a numpy generator for one purpose."""
    return np.random.default_rng(_sequence(seed, stream, *parts))


def torch_generator(seed: int, stream: Stream, *parts: int) -> torch.Generator:
    """Return a CPU torch generator for one purpose."""
    return torch.Generator().manual_seed(derive_seed(seed, stream, *parts))


def seed_global_generators(seed: int, stream: Stream, *parts: int) -> None:
    """Seed the generators that user code draws from: torch's (CPU and GPU), numpy's and Python's global ones."""
    seed_generators(derive_seed(seed, stream, *parts))


def seed_generators(value: int) -> None:
    """Seed the generators that user code draws from with one number."""
    # `torch.manual_seed` would cost 0.1 to 0.4 ms, a large part of a small client's work.
    torch.default_generator.manual_seed(value)
    for module in (torch.cuda, torch.xpu):
        if module.is_initialized():
            module.manual_seed_all(value)
    # MPS cannot be used in a forked process.
    if torch.backends.mps.is_available() and not torch.mps._is_in_bad_fork():
        torch.mps.manual_seed(value)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)


def global_states(device: torch.device | None) -> tuple[Any, ...]:
    """Return the states of the generators that user code draws from: torch's (CPU and a device), numpy's, Python's."""
    module = _module_of(device)
    of_device = None if module is None else module.get_rng_state(device)
    # The state as a dict takes half the time.
    of_numpy = np.random.get_state(legacy=False)
    return torch.get_rng_state(), of_device, of_numpy, random.getstate()


def set_global_states(states: tuple[Any, ...], device: torch.device) -> None:
    """Put back what :func:`global_states` returned."""
    of_torch, of_device, of_numpy, of_python = states
    torch.set_rng_state(of_torch)
    if of_device is not None:
        _module_of(device).set_rng_state(of_device, device)
    np.random.set_state(of_numpy)
    random.setstate(of_python)


def _module_of(device: torch.device | None) -> Any:
    """Return torch's module with the generators of a device; ``None`` if there is none, as for the CPU."""
    if device is None or device.type not in _WITH_GENERATORS:
        return None
    return getattr(torch, device.type)


@contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Put the global generators back at the end."""
    states = global_states(device)
    try:
        yield
    finally:
        set_global_states(states, device)


@contextmanager
def seeded(seed: int, stream: Stream, *parts: int, device: torch.device) -> Iterator[None]:
    """Seed the generators that user code draws from; afterwards they go on as before."""
    with preserved_generators(device):
        seed_global_generators(seed, stream, *parts)
        yield


def changed_generators(before: tuple[Any, ...], after: tuple[Any, ...]) -> set[str]:
    """Return of which packages' generators two results of :func:`global_states` differ: torch, numpy, random."""
    torch_before, device_before, numpy_before, python_before = before
    torch_after, device_after, numpy_after, python_after = after
    changed = set()
    if not torch.equal(torch_before, torch_after):
        changed.add("torch")
    if device_before is not None and not torch.equal(device_before, device_after):
        changed.add("torch")
    if not _same_state(numpy_before, numpy_after):
        changed.add("numpy")
    if python_before != python_after:
        changed.add("random")
    return changed


def _same_state(one: Any, other: Any) -> bool:
    if not isinstance(one, dict):
        return bool(np.array_equal(one, other))
    return all(_same_state(value, other[key]) for key, value in one.items())


def _sequence(seed: int, stream: Stream, *parts: int) -> np.random.SeedSequence:
    numbers = (seed, int(stream), *parts)
    if max(numbers) >= 2**32:
        return np.random.SeedSequence(numbers)
    # Numpy mixes an array of words as it mixes the numbers, at half the cost, and every client is seeded.
    return np.random.SeedSequence(np.array(numbers, np.uint32))
