"""States of metric objects, to be put back later."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import nn
from torchmetrics import MetricCollection, SumMetric

from fl_lightning._lightning.metric_calls import AnyMetric, without_graphs

#: Attributes that every metric object has, beside its states.
_STOCK = (vars(SumMetric()).keys() | vars(MetricCollection({})).keys()) - {"sum_value", "nan_strategy", "state_name"}
#: Of these, attributes that are not state.
_PASSING = {"_computed", "_state_is_copy", "training"}
_KEPT = {"_forward_cache", "_groups"}
_PLAIN = (bool, int, float, str)

MetricStates = dict[str, dict[str, Any]]


class NotCopied:
    """Stands for something that a metric object holds and that cannot be copied."""


def _state_of(metric: AnyMetric) -> dict[str, Any]:
    """Return what a metric object holds of its own, beside what torchmetrics needs to run it."""
    defaults = getattr(metric, "_defaults", {})
    return {
        key: value
        for key, value in vars(metric).items()
        if key not in _PASSING and (key in defaults or key not in _STOCK or key in _KEPT or isinstance(value, _PLAIN))
    }


def metric_states(module: nn.Module) -> MetricStates:
    """Return copies of what each metric object of a module holds, by the object's name."""
    return _copied(
        {name: _state_of(metric) for name, metric in module.named_modules() if isinstance(metric, AnyMetric)},
        {**_shared(module, module), **without_graphs(module)},
    )


def _copied(states: MetricStates, memo: dict[int, Any]) -> MetricStates:
    """Return copies of states; what they share they share afterwards, too.

    Args:
        states: The states.
        memo: What stands for some objects, by id: a memo of ``deepcopy``.
    """
    copies: MetricStates = {}
    for name, state in states.items():
        copies[name] = {}
        for key, value in state.items():
            try:
                copies[name][key] = deepcopy(value, memo)
            except Exception:  # whatever an object raises
                copies[name][key] = NotCopied()
    return copies


def _shared(origin: nn.Module, module: nn.Module) -> dict[int, Any]:
    """Return what stands for objects that states may refer to and that are not copied with them, by id."""
    trainers = {id(getattr(origin, "_trainer", None)): getattr(module, "_trainer", None)}
    return {**{id(theirs): own for theirs, own in zip(origin.modules(), module.modules(), strict=True)}, **trainers}


def restore_metric_states(module: nn.Module, states: MetricStates, origin: nn.Module | None = None) -> None:
    """Give the metric objects of a module what :func:`metric_states` returned.

    Args:
        module: The module.
        states: The states, which are copied again.
        origin: The module of which they are, where this one is a copy of it.
    """
    metrics = dict(module.named_modules())
    for name, state in _copied(states, _shared(module if origin is None else origin, module)).items():
        held = metrics[name].__dict__
        for key in _state_of(metrics[name]).keys() - state.keys():
            del held[key]
        held.update({key: value for key, value in state.items() if not isinstance(value, NotCopied)})
        held["_computed"] = None
