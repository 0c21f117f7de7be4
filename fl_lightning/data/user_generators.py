"""Random generators that data sets, transforms and collate functions keep for themselves."""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from fl_lightning.data.same_batches import same_bits
from fl_lightning.data.surroundings import names_in, seen_by

_OBJECTS = 10_000  # that are looked at of each root
_ITEMS = 32  # of a container: of a list of samples some are enough
_LIBRARIES = {"abc", "builtins", "collections", "fl_lightning", "functools", "lightning", "numpy", "torch", "typing"}
_Generators = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
_LEAVES = (torch.Tensor, np.ndarray, str, bytes, int, float, complex, ModuleType, CodeType, type(None))


class OwnGenerators:
    """The generators that some objects hold or whose code names them; not the global ones, which are seeded.

    A transform that is applied to one sample in ten draws for all ten: its generator tells more than a few samples.

    Args:
        *roots: The objects.
    """

    def __init__(self, *roots: Any) -> None:
        self._found = list(_generators_in(roots))
        self._before = [_state(generator) for generator in self._found]

    def have_drawn(self) -> bool:
        """Return whether one has another state now."""
        return not same_bits([_state(generator) for generator in self._found], self._before)


def _generators_in(roots: tuple[Any, ...]) -> Iterator[Any]:
    everyones: list[Any] = [torch.default_generator]
    for function in (np.random.rand, random.random):  # methods of the global ones
        everyones.append(function.__self__)  # type: ignore[attr-defined]
    seen = {id(generator): generator for generator in everyones}
    for root in roots:
        waiting, most = deque([root]), len(seen) + _OBJECTS
        while waiting and len(seen) < most:
            value = waiting.popleft()
            if isinstance(value, _LEAVES) or id(value) in seen:
                continue
            seen[id(value)] = value  # keeps it, so that no other gets its number
            if isinstance(value, _Generators):
                yield value
            else:
                waiting.extend(_held_by(value))


def _held_by(value: Any) -> Iterator[Any]:
    """Yield what an object holds; runs no code of its own."""
    if isinstance(value, (FunctionType, type)) and str(value.__module__).split(".")[0] in _LIBRARIES:
        return
    if isinstance(value, dict):
        yield from islice(value.values(), _ITEMS)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from islice(value, _ITEMS)
    elif isinstance(value, type):
        yield from vars(value).values()
        yield from value.__bases__
    elif isinstance(value, FunctionType):
        held = seen_by(value).values()
        yield from held
        for module in held:
            if isinstance(module, ModuleType):  # an installed package's, too
                yield from (vars(module)[name] for name in names_in(value.__code__) if name in vars(module))
    else:
        yield from gc.get_referents(value)  # its class among them


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state() if generator.device.type == "cpu" else None
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return None if isinstance(generator, random.SystemRandom) else generator.getstate()
