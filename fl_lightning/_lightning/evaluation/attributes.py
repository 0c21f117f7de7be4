"""The attributes of a module that are no tensors: counters, lists and generators, which a step may change."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torchmetrics import Metric

from fl_lightning._lightning.contents import same_content

#: Attributes that every module has; tensors, submodules and hooks are in them.
_OF_TORCH = frozenset(vars(nn.Module()))


class Held(NamedTuple):
    """An attribute's object, and a copy of what is in it if it can change in place."""

    value: Any
    content: Any


def ids_of_metrics(module: nn.Module) -> set[int]:
    """Return the ``id`` of each torchmetrics object in a module, and of all parts of it."""
    ids: set[int] = set()
    for metric in module.modules():
        if isinstance(metric, Metric):
            ids.update(id(part) for part in metric.modules())
    return ids


class Attributes:
    """Reads and writes the attributes of a module and its submodules, but for tensors, metric objects and modes.

    Lists, dicts and sets are read with their entries, and generators with their states. Other objects that change in
    place are beyond its reach.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        of_metrics = ids_of_metrics(module)
        #: The module and its submodules.
        self.parts = [part for part in module.modules() if id(part) not in of_metrics]

    def read(self) -> list[dict[str, Held]]:
        """Return what the attributes hold."""
        state = []
        for part in self.parts:
            held: dict[str, Held] = {}
            for name, value in vars(part).items():
                if name not in _OF_TORCH:
                    held[name] = Held(value, _content(value))
            state.append(held)
        return state

    def changed_since(self, state: list[dict[str, Held]]) -> list[tuple[nn.Module, str]]:
        """Return the module and name of each attribute that is another, or holds something else.

        Args:
            state: What :meth:`read` returned.
        """
        changed = []
        for part, before, now in zip(self.parts, state, self.read(), strict=True):
            for name in sorted(before.keys() | now.keys()):
                if not _is_as_before(before.get(name), now.get(name)):
                    changed.append((part, name))
        return changed

    def write(self, state: list[dict[str, Held]]) -> None:
        """Put back what :meth:`read` returned."""
        for part, held in zip(self.parts, state, strict=True):
            attributes = vars(part)
            for name in set(attributes) - set(held) - _OF_TORCH:
                del attributes[name]
            for name, (value, content) in held.items():
                attributes[name] = value
                _put_back(value, content)


def _is_as_before(before: Held | None, now: Held | None) -> bool:
    if before is None or now is None:
        return before is now
    return before.value is now.value and same_content(before.content, now.content)


def _content(value: Any) -> Any:
    if type(value) in (list, dict, set):
        return value.copy()
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    return None


def _put_back(value: Any, content: Any) -> None:
    if type(value) is list:
        value[:] = content
    elif type(value) in (dict, set):
        value.clear()
        value.update(content)
    elif isinstance(value, torch.Generator):
        value.set_state(content)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = content
    elif isinstance(value, random.Random):
        value.setstate(content)
