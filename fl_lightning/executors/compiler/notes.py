"""Logs and calls of metric objects as nodes of a step's graph.

While a step is captured, ``self.log`` and the metric objects note what they are given instead of acting on it. The
line ``self.log("loss", loss)`` of the worked example becomes one node of the graph, and a metric object two::

    logged("loss", loss, {})

    value = metric_call(0, "forward", scores, y)   # self.log("acc", self.accuracy(scores, y))
    logged("acc", value, {})

A metric object stays the very object that it is, of a subclass of its own class, so that a step which asks what it is
gets the right answer. All that it holds is hidden: its state is one for all clients, and its other attributes may be
changed by each ``update``. A step that reads any of it is not captured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.watching import become, watched_class

MetricObject = Metric | MetricCollection

#: The functions by which Lightning makes one number of those of several batches, by their names.
REDUCTIONS = {"mean": torch.mean, "sum": torch.sum, "max": torch.max, "min": torch.min}
#: The arguments of ``self.log`` after its name and value, in their order.
_ARGUMENTS = tuple(inspect.signature(pl.LightningModule.log).parameters)[3:]
#: What every module has: torch needs it to call a module, and to go through the parts of one.
_OF_TORCH = frozenset((*dir(nn.Module()), *vars(nn.Module())))


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def logged(name: str, value: Any, options: dict[str, Any], of_metric: bool) -> None:
    """Stand for a call of ``self.log``; a metric object is named by its number."""


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def metric_call(metric: str, method: str, *args: Any, **kwargs: Any) -> Tensor:
    """Stand for a call of a metric object, and return what stands for its value."""
    return torch.zeros(())


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def part_of_value(value: Tensor, key: str) -> Tensor:
    """Stand for one of the values that a collection of metrics returns."""
    return torch.zeros(())


NOTES = (logged, metric_call, part_of_value)


@contextmanager
def logging_to(module: nn.Module, log: Callable[..., None]) -> Iterator[None]:
    """Let a module log to a function, as inside ``training_step``; Lightning lets no module in it log."""
    attributes = vars(module)
    own_log = attributes.get("log")
    hook = attributes["_current_fx_name"]
    attributes["log"] = log
    attributes["_current_fx_name"] = "training_step"
    try:
        yield
    finally:
        attributes["_current_fx_name"] = hook
        if own_log is None:
            del attributes["log"]
        else:
            attributes["log"] = own_log


def note_log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    """Note what is logged, in the place of ``self.log``."""
    # PyTorch calls no methods of a text that keeps the numbers it is made of, which is no name.
    name = name.strip("")
    options = dict(zip(_ARGUMENTS, args, strict=False))
    options.update(kwargs)
    given = options.get("reduce_fx", "mean")
    if not isinstance(given, str):
        options["reduce_fx"] = ""
        for reduction, function in REDUCTIONS.items():
            if given is function:
                options["reduce_fx"] = reduction
    if isinstance(value, MetricObject):
        logged(name, value._number_in_step, options, True)
    else:
        logged(name, value, options, False)


class WatchedMetrics:
    """The metric objects of a module, which note what a step gives them.

    Args:
        module: The module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        #: All metric objects that were ever found; a metric object's number is its place here.
        self.known: list[MetricObject] = []
        self._numbers: dict[int, int] = {}
        # What the module has now, by identity: since `==` of two metrics is a metric.
        self._present: dict[int, MetricObject] = {}
        self._members: dict[int, dict[str, MetricObject]] = {}

    def find(self) -> None:
        """Look which metric objects the module has, and what is in its collections.

        Raises:
            CannotVectorize: If one has forward hooks.
        """
        self._present.clear()
        self._members.clear()
        for metric in metric_objects(self._module):
            self._present[id(metric)] = metric
            if isinstance(metric, MetricCollection):
                members = metric.items(keep_base=False, copy_state=False)
                self._members[id(metric)] = {str(name): member for name, member in members}
        for members_by_name in self._members.values():
            for member in members_by_name.values():
                self._present[id(member)] = member
        for identity, metric in self._present.items():
            if metric._forward_hooks or metric._forward_pre_hooks:
                raise CannotVectorize(
                    "a metric object has forward hooks, which a stack would call once for all clients"
                )
            if identity not in self._numbers:
                self._numbers[identity] = len(self.known)
                self.known.append(metric)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Let the metric objects note what they are given."""
        before: list[tuple[Any, Any, dict[str, Any]]] = []
        for metric in self._present.values():
            before.append((metric, type(metric), dict(vars(metric))))
        for metric, kind, attributes in before:
            shown = {name: value for name, value in attributes.items() if name in _OF_TORCH}
            # Dynamo keeps a string as it is; a number that has changed would become an input of the graph.
            shown["_number_in_step"] = str(self._numbers[id(metric)])
            shown["_members_in_step"] = self._members.get(id(metric), {})
            become(metric, _watched(kind), shown)
        try:
            yield
        finally:
            for metric, kind, attributes in before:
                # A mode that the step sets is looked at afterwards, with those of all modules.
                attributes["training"] = metric.training
                become(metric, kind, attributes)


def metric_objects(module: nn.Module) -> list[MetricObject]:
    """Return the metric objects of a module that are in no others, each once."""
    found: dict[int, MetricObject] = {}
    for child in module.children():
        own = [child] if isinstance(child, MetricObject) else metric_objects(child)
        for metric in own:
            found[id(metric)] = metric
    return list(found.values())


# ---- what watched metric objects do ----


class _Watched(Protocol):
    """A watched metric object: its number, and of a collection its members by name."""

    _number_in_step: str
    _members_in_step: dict[str, Any]


def _forward(self: _Watched, *args: Any, **kwargs: Any) -> Any:
    return _by_member(self, metric_call(self._number_in_step, "forward", *args, **kwargs))


def _compute(self: _Watched) -> Any:
    return _by_member(self, metric_call(self._number_in_step, "compute"))


def _reset(self: _Watched) -> None:
    metric_call(self._number_in_step, "reset")


def _by_member(self: _Watched, value: Tensor) -> Any:
    """Return what stands for a value; of a collection of metrics one for each."""
    if not self._members_in_step:
        return value
    return {name: part_of_value(value, name) for name in self._members_in_step}


def _update(self: _Watched, *args: Any, **kwargs: Any) -> None:
    metric_call(self._number_in_step, "update", *args, **kwargs)


def _items(self: _Watched, *args: Any, **kwargs: Any) -> Any:
    return self._members_in_step.items()


def _hash(self: _Watched) -> int:
    return int(self._number_in_step)


@cache
def _watched(kind: Any) -> type:
    """Return the subclass of a metric's class that notes what it is given, and shows nothing else."""
    members: dict[str, Any] = {
        "forward": _forward,
        "update": _update,
        "compute": _compute,
        "reset": _reset,
        "__hash__": _hash,
        "__setattr__": _set,
    }
    if issubclass(kind, MetricCollection):
        # Lightning's `log_dict` asks whether metrics share states, and goes through all of them in any case.
        members.update(items=_items, _enable_compute_groups=True)
        for name in ("__len__", "__iter__", "__getitem__", "__contains__"):
            members[name] = _refused(name)
    return watched_class(kind, _read, members, leave=_OF_TORCH)


def _read(self: Any, name: str) -> Any:
    # It is no exception, which code of the user's own could catch.
    torch._dynamo.graph_break(msg=f"`training_step` reads `{name}` of a metric object")
    raise AttributeError(name)


def _set(self: Any, name: str, value: Any) -> None:
    if name != "training":
        torch._dynamo.graph_break(msg=f"`training_step` sets `{name}` of a metric object")
    object.__setattr__(self, name, value)


def _refused(name: str) -> Callable[..., Any]:
    return lambda self, *args: _read(self, name)
