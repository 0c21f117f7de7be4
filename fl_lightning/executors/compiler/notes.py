"""Logs and calls of metric objects as nodes of a step's graph.

While a step is captured, ``self.log`` and the metric objects note what they are given instead of acting on it::

    self.log("acc", self.accuracy(scores, y))     # as the user writes it
    value = _metric_call(0, "forward", scores, y)  # as the graph has it
    _logged("acc", value, {})

A metric object stays the very object that it is, of a subclass of its own class, so that a step which asks what it is
gets the right answer. All that it holds is hidden: its state is one for all clients, and its other attributes may be
changed by each ``update``. A step that reads any of it is not captured.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.watching import become, watched_class

MetricObject = Metric | MetricCollection

REDUCTIONS = ("mean", "sum", "max", "min")
_FUNCTIONS = (torch.mean, torch.sum, torch.max, torch.min)
#: The arguments of ``self.log`` after its name and value, in their order.
_ARGUMENTS = tuple(inspect.signature(pl.LightningModule.log).parameters)[3:]
#: What every module has: torch needs it to call a module, and to go through the parts of one.
_OF_TORCH = frozenset((*dir(nn.Module()), *vars(nn.Module())))


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def logged(name: str, value: Any, options: dict[str, Any], of_metric: bool) -> None:
    """Stand for a call of ``self.log``; a metric object is named by its number."""


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def metric_call(metric: int, method: str, *args: Any, **kwargs: Any) -> Tensor:
    """Stand for a call of a metric object, and return what stands for its value."""
    return torch.zeros(())


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def part_of_value(value: Tensor, key: str) -> Tensor:
    """Stand for one of the values that a collection of metrics returns."""
    return torch.zeros(())


NOTES = (logged, metric_call, part_of_value)


@contextmanager
def logging_to(module: nn.Module, log: Callable[..., None]) -> Iterator[None]:
    """Let a module, and the modules in it, log to a function, as inside ``training_step``."""
    held: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in module.modules():
        if isinstance(part, pl.LightningModule):
            own = vars(part)
            held.append((own, {name: own.get(name) for name in ("log", "_current_fx_name")}))
            own.update(log=log, _current_fx_name="training_step")
    try:
        yield
    finally:
        for own, before in held:
            own.update(before)
            if before["log"] is None:
                del own["log"]


def note_log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
    """Note what is logged, in the place of ``self.log``."""
    options = dict(zip(_ARGUMENTS, args, strict=False))
    options.update(kwargs)
    reduction = options.get("reduce_fx", "mean")
    if not isinstance(reduction, str):
        found = [text for text, function in zip(REDUCTIONS, _FUNCTIONS, strict=True) if reduction is function]
        options["reduce_fx"] = found[0] if found else ""
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
        #: All metric objects that were found, in the order of their numbers.
        self.known: list[MetricObject] = []
        self._held: list[MetricObject] = []

    def find(self) -> None:
        """Look which metric objects the module has, and what is in its collections.

        Raises:
            CannotVectorize: If one has forward hooks.
        """
        found = list({id(metric): metric for metric in metric_objects(self._module)}.values())
        self._parts: dict[int, dict[str, MetricObject]] = {}
        for metric in found:
            if isinstance(metric, MetricCollection):
                parts = metric.items(keep_base=False, copy_state=False)
                self._parts[id(metric)] = {str(name): part for name, part in parts}
        in_others = [part for parts in self._parts.values() for part in parts.values()]
        self._held = list({id(metric): metric for metric in (*found, *in_others)}.values())
        for metric in self._held:
            if metric._forward_hooks or metric._forward_pre_hooks:
                raise CannotVectorize(
                    "a metric object has forward hooks, which a stack would call once for all clients"
                )
            if not any(metric is known for known in self.known):
                self.known.append(metric)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Let the metric objects note what they are given."""
        numbers = {id(metric): number for number, metric in enumerate(self.known)}
        before: list[tuple[Any, Any, dict[str, Any]]] = []
        for metric in self._held:
            before.append((metric, type(metric), dict(vars(metric))))
        for metric, kind, attributes in before:
            shown = {name: value for name, value in attributes.items() if name in _OF_TORCH}
            shown["_number_in_step"] = numbers[id(metric)]
            shown["_parts_in_step"] = self._parts.get(id(metric), {})
            become(metric, _watched(kind), shown)
        try:
            yield
        finally:
            for metric, kind, attributes in before:
                # A mode that the step sets is looked at afterwards, with those of all modules.
                attributes["training"] = metric.training
                become(metric, kind, attributes)


def metric_objects(module: nn.Module) -> Iterator[MetricObject]:
    """Yield the metric objects of a module that are in no others."""
    for child in module.children():
        if isinstance(child, MetricObject):
            yield child
        else:
            yield from metric_objects(child)


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    value = metric_call(self._number_in_step, "forward", *args, **kwargs)
    if not self._parts_in_step:
        return value
    return {name: part_of_value(value, name) for name in self._parts_in_step}


def _update(self: Any, *args: Any, **kwargs: Any) -> None:
    metric_call(self._number_in_step, "update", *args, **kwargs)


def _items(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self._parts_in_step.items()


def _hash(self: Any) -> int:
    number: int = self._number_in_step
    return number


@cache
def _watched(kind: Any) -> type:
    """Return the subclass of a metric's class that notes what it is given, and shows nothing else."""
    members: dict[str, Any] = {"forward": _forward, "update": _update, "__hash__": _hash, "__setattr__": _set}
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
