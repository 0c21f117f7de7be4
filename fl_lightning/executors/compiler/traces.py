"""The traces that a step leaves when it runs as it is: logs, calls of metric objects, attributes of the module."""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.evaluation.attributes import Attributes
from fl_lightning._lightning.stacks.log_replay import call_metric
from fl_lightning._lightning.stacks.recording import (
    Keeper,
    Listener,
    Logged,
    MetricCall,
    logged_type,
    with_texts,
)
from fl_lightning.executors.compiler.causes import changes
from fl_lightning.executors.compiler.notes import logging_to, metric_objects
from fl_lightning.executors.compiler.told import Listeners, ToldCalls

_SIGNATURE = inspect.signature(pl.LightningModule.log)
#: What torchmetrics puts on each metric object, bound to that object.
_BOUND = {"update", "compute", "_update_signature"}
#: A number in a text, which rounding may change.
_NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?")


class Traces:
    """The traces of one step of a module, with its own metric objects and trainer.

    Args:
        module: The module before the step.
        values: Gets the names and values that the step logs.
        told: Gets what it tells others.
    """

    def __init__(self, module: nn.Module, values: list[tuple[str, Any]], told: ToldCalls) -> None:
        self._metrics = metric_objects(module)
        self._before = copy.deepcopy(self._metrics)
        self._attributes = Attributes(module)
        self._held = self._attributes.read()
        self._values = values
        self._told = told

    def compare(self, logged: Logged, tensors: Sequence[Tensor], bound: float) -> None:
        """Compare the traces with what a captured step notes.

        Args:
            logged: The notes.
            tensors: The client's tensors that the notes name.
            bound: How far values may differ, relative to their size.

        Raises:
            CannotVectorize: If anything differs.
        """
        kept = [call for call in logged.metric_calls if isinstance(call.metric, Keeper)]
        self._compare_attributes(kept)
        if [call.name for call in logged.calls] != [name for name, _ in self._values]:
            raise CannotVectorize("`training_step` logs other names in a stack")
        for call, (name, value) in zip(logged.calls, self._values, strict=True):
            if not isinstance(call.value, int):
                continue
            found = tensors[call.value]
            if found.dtype != value.dtype:
                raise CannotVectorize(f"what is logged as {name!r} is of another type in a stack")
            same(f"what is logged as {name!r}", value, found, bound, 1.0)
        self._compare_metrics(logged, tensors, bound)
        self._compare_kept(kept, tensors, bound)
        self._compare_told(logged, tensors, bound)

    def _compare_attributes(self, kept: Sequence[MetricCall]) -> None:
        """Raise if the step has set attributes, or changed what is in them, other than those that keep something."""
        keepers = {(id(call.metric.part), call.metric.name) for call in kept if isinstance(call.metric, Keeper)}
        for part, name in self._attributes.changed_since(self._held):
            if (id(part), name) not in keepers and not isinstance(part, MetricCollection):
                raise CannotVectorize(changes([f"self.{name}"]))

    def _compare_kept(self, kept: Sequence[MetricCall], tensors: Sequence[Tensor], bound: float) -> None:
        """Compare what attributes hold with what they would hold after a stack."""
        found: dict[Keeper, Any] = {}
        for call in kept:
            assert isinstance(call.metric, Keeper)
            found[call.metric] = copy.copy(call.metric.value)
        self._attributes.write(self._held)
        for call in kept:
            call_metric(call, tensors, call.metric)
        for keeper, value in found.items():
            _compare_values(f"what `self.{keeper.name}` holds", value, keeper.value, bound)

    def _compare_told(self, logged: Logged, tensors: Sequence[Tensor], bound: float) -> None:
        """Compare what others are told."""
        found = [call for call in logged.metric_calls if isinstance(call.metric, Listener)]
        if len(found) != len(self._told):
            raise CannotVectorize("`training_step` prints, or tells loggers, something else in a stack")
        for call, (path, arguments) in zip(found, self._told, strict=True):
            _compare_values(f"what `{path}` is given", arguments, _arguments(call, tensors), bound)

    def _compare_metrics(self, logged: Logged, tensors: Sequence[Tensor], bound: float) -> None:
        """Make the noted calls on metric objects as they were before, and compare what the objects hold."""
        pairs = self._with_copies(copy.deepcopy(self._before))
        twins = {id(part): twin for part, twin in pairs}
        for call in logged.metric_calls:
            if not isinstance(call.metric, (Keeper, Listener)):
                call_metric(call, tensors, twins[id(call.metric)])
        for part, twin in pairs:
            _compare_metric(part, twin, bound)

    def undo(self) -> None:
        """Put the metric objects and the attributes back."""
        for part, before in self._with_copies(self._before):
            attributes = vars(part)
            kept = {name: attributes[name] for name in ("_modules", *_BOUND) if name in attributes}
            attributes.clear()
            attributes.update(vars(before))
            attributes.update(kept)
        self._attributes.write(self._held)

    def _with_copies(self, copies: Sequence[nn.Module]) -> list[tuple[nn.Module, Any]]:
        """Return the metric objects, and all that is in them, each with its copy."""
        pairs: list[tuple[nn.Module, Any]] = []
        for metric, copied in zip(self._metrics, copies, strict=True):
            pairs += zip(metric.modules(), copied.modules(), strict=True)
        return pairs


@contextmanager
def without_trace(module: nn.Module, listeners: Listeners) -> Iterator[Traces]:
    """Let a step run as it is, but for what it logs and tells others; put back what it changes beside tensors."""
    values = list[tuple[str, Any]]()
    with logging_to(module, partial(_take, values)), listeners.recording() as told:
        # The attributes that are put back include the functions for logs and prints.
        traces = Traces(module, values, told)
        try:
            yield traces
        finally:
            traces.undo()


def _take(values: list[tuple[str, Any]], name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    """Take what a step logs, in the place of ``self.log``."""
    _SIGNATURE.bind(None, name, value, *args, **kwargs)
    if isinstance(value, Tensor):
        # The step may go on to write to it.
        value = value.detach().clone()
    elif isinstance(value, (int, float)):
        value = torch.as_tensor(value, dtype=logged_type())
    values.append((name, value))


def _compare_values(what: str, one: Any, other: Any, bound: float) -> None:
    """Raise if two values, in containers, are of another form or differ by more than a bound."""
    leaves, spec = pytree.tree_flatten(one)
    other_leaves, other_spec = pytree.tree_flatten(other)
    if spec != other_spec or list(map(_type_of, leaves)) != list(map(_type_of, other_leaves)):
        raise CannotVectorize(f"{what} is of another form in a stack")
    for mine, theirs in zip(leaves, other_leaves, strict=True):
        if isinstance(mine, (Tensor, int, float)):
            same(what, torch.as_tensor(mine), torch.as_tensor(theirs), bound, 1.0)
        elif isinstance(mine, str):
            # Rounding may show in a text's numbers, which were compared where they are logged.
            if _NUMBER.sub("", mine) != _NUMBER.sub("", theirs):
                raise CannotVectorize(f"{what} differs in a stack")
        elif mine != theirs:
            raise CannotVectorize(f"{what} differs in a stack")


class _Arguments:
    """Returns what it is told."""

    def tell(self, path: str, *args: Any, **kwargs: Any) -> Any:
        return with_texts((args, kwargs))


def _arguments(call: MetricCall, tensors: Sequence[Tensor]) -> Any:
    """Return the arguments that a listener gets."""
    taker: Any = _Arguments()
    return call_metric(call, tensors, taker)


def _type_of(value: Any) -> Any:
    """Return a value's type; of a tensor its shape and type."""
    return (value.shape, value.dtype) if isinstance(value, Tensor) else type(value)


def _compare_metric(one: Any, other: Any, bound: float) -> None:
    """Raise if two metric objects hold something else."""
    if not isinstance(one, (Metric, MetricCollection)):
        return
    kind = type(one).__name__
    own = vars(one)
    others = vars(other)
    names = own.keys() - _BOUND
    if names != others.keys() - _BOUND:
        raise CannotVectorize(f"`training_step` sets attributes of a metric object ({kind})")
    for name in sorted(names):
        numbers = _numbers(own[name])
        expected = _numbers(others[name])
        if len(numbers) != len(expected):
            raise CannotVectorize(f"a metric object ({kind}) is given something else in a stack")
        for mine, theirs in zip(numbers, expected, strict=True):
            same(f"what a metric object ({kind}) holds", mine, theirs, bound, 1.0)


def _numbers(value: Any) -> list[Tensor]:
    """Return the numbers that an attribute holds, as tensors."""
    if isinstance(value, (bool, int, float, Tensor)):
        return [torch.as_tensor(value)]
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        return []
    found: list[Tensor] = []
    for each in value:
        found += _numbers(each)
    return found


def same(what: str, one: Tensor, other: Tensor, bound: float, size: float) -> None:
    """Raise ``CannotVectorize`` if two tensors differ by more than a bound.

    Args:
        what: What they are.
        one: The tensor of a client alone.
        other: The tensor of the stack, of as many values in any shape.
        bound: The bound, relative to the largest value plus ``size``.
        size: What else a difference is compared with; NaN counts as 0.
    """
    if one.numel() != other.numel():
        raise CannotVectorize(f"{what} has {one.numel()} values alone and {other.numel()} in a stack")
    if not one.numel():
        return
    one = one.detach().double().reshape(-1)
    other = other.detach().double().reshape(-1)
    largest = float(one.nan_to_num().abs().max())
    if not math.isnan(size):
        largest += size
    difference = (one - other).abs()
    are_nan = one.isnan() & other.isnan()
    # Two infinities are equal, and their difference is not a number.
    is_same = (difference <= bound * largest) | are_nan | (one == other)
    if not bool(is_same.all()):
        place = int(is_same.logical_not().int().argmax())
        raise CannotVectorize(
            f"{what} is {float(one[place]):.6g} alone and {float(other[place]):.6g} in a stack, where an operation of "
            "the step computes something else"
        )
