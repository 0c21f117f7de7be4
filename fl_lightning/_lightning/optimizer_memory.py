"""The state and the attributes of optimizers, which every client gets anew."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fl_lightning._lightning.plain_copies import plain_copy

#: What every optimizer has; learning-rate schedules wrap `step` and set `_opt_called`.
_COMMON = {*vars(SGD([torch.zeros(1)])), "step", "_opt_called", "_warned_capturable_if_run_uncaptured"}

State = dict[Any, Any]


class OptimizerMemory:
    """The state of an optimizer at a moment, and of those that it wraps, such as SAM and Lookahead do.

    Also attributes of classes that are not torch's: numbers, tensors, and containers of them.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        first, *inner = with_wrapped(optimizer)
        shared = {id(group) for group in first.param_groups}
        self._optimizers = [first, *inner]
        self._states = [copied_state(each.state) for each in self._optimizers]
        # the options of the outer optimizer's groups are those of the round
        self._options = [
            (group, options_of(group)) for each in inner for group in each.param_groups if id(group) not in shared
        ]
        self._attributes = [
            {name: (value, _copied(value)) for name, value in _own_attributes(each)} for each in self._optimizers
        ]

    @property
    def state(self) -> State:
        """A copy of the state of the outer optimizer, by parameter."""
        return copied_state(self._states[0])

    def restore(self) -> None:
        """Put everything back as it was."""
        for optimizer, attributes in zip(self._optimizers, self._attributes, strict=True):
            for name in [name for name, _ in _own_attributes(optimizer) if name not in attributes]:
                del vars(optimizer)[name]
            for name, (value, before) in attributes.items():
                vars(optimizer)[name] = _put_back(value, before)
        for group, options in self._options:
            set_options(group, options)
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(copied_state(state))


def with_wrapped(optimizer: Optimizer) -> list[Optimizer]:
    """Return an optimizer and those that it holds in attributes, itself first."""
    found = [optimizer]
    for each in found:
        if _is_of_torch(each):
            continue
        held = [value for name, value in vars(each).items() if name not in _COMMON]
        inner = [part for value in held for part in (value if isinstance(value, (list, tuple)) else [value])]
        found += [part for part in inner if isinstance(part, Optimizer) and not any(part is known for known in found)]
    return found


def copied_state(state: Mapping[Any, Any]) -> State:
    """Return a copy of an optimizer's state, by the same parameters."""
    return {parameter: copy.deepcopy(held) for parameter, held in state.items()}


def _is_of_torch(optimizer: Optimizer) -> bool:
    return type(optimizer).__module__.startswith("torch.optim")


def _own_attributes(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    if not _is_of_torch(optimizer):
        yield from ((name, value) for name, value in vars(optimizer).items() if name not in _COMMON)


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return what a parameter group holds besides its parameters, as :func:`own_options` does."""
    return own_options({key: value for key, value in group.items() if key != "params"})


def own_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return options whose tensors nobody else changes: schedules set a learning rate in a tensor in place."""
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in options.items()}


def set_options(group: dict[str, Any], options: dict[str, Any]) -> None:
    """Give a parameter group these options and no others: some optimizers count their steps in a new one."""
    for name in group.keys() - options.keys() - {"params"}:
        del group[name]
    group.update(own_options(options))


def _copied(value: Any) -> Any:
    return plain_copy(value, of_parameters=False)


def _put_back(value: Any, before: Any) -> Any:
    """Return an attribute's value with the content that it had: containers may be shared with others."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        with torch.no_grad():
            return value.copy_(before) if value.shape == before.shape else before.clone()
    if isinstance(value, (dict, set)):
        value.clear()
        value.update(_copied(before))
        return value
    if isinstance(value, (list, deque)):
        value.clear()
        value.extend(_copied(before))
        return value
    return before
