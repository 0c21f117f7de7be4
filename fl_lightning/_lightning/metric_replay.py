"""Metric objects of torchmetrics are given what the clients of a stack would have given them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy, deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection, SumMetric

from fl_lightning._lightning.recording import MetricCall, TensorPlace

AnyMetric = Metric | MetricCollection


class ClientCall(NamedTuple):
    """One client's call of a metric object: a row of a call of several clients.

    Attributes:
        call: The call of several clients.
        tensors: Their tensors, shape ``(K, ...)`` each.
        row: The client's.
    """

    call: MetricCall
    tensors: Sequence[Tensor]
    row: int

    def leaves(self) -> list[Any]:
        """Return the client's arguments, flattened."""
        own = self.call.leaves
        return [self.tensors[leaf.place][self.row] if isinstance(leaf, TensorPlace) else leaf for leaf in own]

    def arguments(self) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the client's arguments."""
        args, kwargs = pytree.tree_unflatten(self.leaves(), self.call.spec)
        return args, kwargs

    def make(self) -> Any:
        """Make the call, and return what it returns."""
        args, kwargs = self.arguments()
        metric: Any = self.call.metric
        return metric(*args, **kwargs) if self.call.method == "forward" else metric.update(*args, **kwargs)

    def batch_value(self, metric: Metric) -> Any:
        """Return the value of this call's batch alone, of the metric object or of one in the collection called."""
        args, kwargs = self.arguments()
        alone = deepcopy(metric, without_graphs(metric))
        for part in [module for module in alone.modules() if isinstance(module, Metric)]:
            part.sync_on_compute = False
        alone.reset()
        alone.update(*args, **(metric._filter_kwargs(**kwargs)))
        return alone.compute()

    def leave_batch_values(self) -> None:
        """Leave this call's values where ``forward`` leaves them."""
        if self.call.method == "forward":
            for metric in parts(self.call.metric):
                metric._forward_cache = self.batch_value(metric)


def make_jointly(calls: Sequence[ClientCall]) -> bool:
    """Update a metric object once with what several calls would have given it; return whether that could be.

    Batches are joined along their first dimension, single numbers become one tensor, and other arguments must be the
    same in all calls.
    """
    first = calls[0].call
    if any(len(other.call.leaves) != len(first.leaves) or other.call.spec != first.spec for other in calls):
        return False
    joined = []
    for values in zip(*(call.leaves() for call in calls), strict=True):
        leaf = _joined(values)
        if leaf is None:
            return False
        joined.append(leaf[0])
    args, kwargs = pytree.tree_unflatten(joined, first.spec)
    first.metric.update(*args, **kwargs)
    for part in parts(first.metric):
        part._update_count += len(calls) - 1
    return True


def _joined(values: Sequence[Any]) -> tuple[Any] | None:
    """Return one argument for all calls, in a tuple; ``None`` if there is none."""
    first = values[0]
    if not all(type(value) is type(first) for value in values):
        return None
    if isinstance(first, Tensor):
        if not first.dim():
            return (torch.stack(list(values)),)
        if any(value.shape[1:] != first.shape[1:] or value.dim() != first.dim() for value in values):
            return None
        return (torch.cat(list(values)),)
    if all(value is first or value == first for value in values):
        return (first,)
    return (torch.tensor(values),) if isinstance(first, (int, float)) else None


def parts(metric: AnyMetric) -> Iterable[Metric]:
    """Return the metric objects of a collection; a single one in a list."""
    return [metric] if isinstance(metric, Metric) else metric.values(copy_state=False)


def own_forwards(metric: AnyMetric) -> list[Metric]:
    """Return the metric objects whose class leaves values of single steps in its own way, if at all."""
    return [part for part in parts(metric) if type(part).forward is not Metric.forward]


# ---- their states ----


def without_graphs(module: torch.nn.Module) -> dict[int, Tensor]:
    """Return detached copies of what metric objects hold with a graph, by the tensors' ids: a memo of ``deepcopy``."""
    held = pytree.tree_leaves([vars(metric) for metric in module.modules() if isinstance(metric, Metric)])
    return {id(value): value.detach().clone() for value in held if isinstance(value, Tensor) and value.grad_fn}


#: Attributes that every metric object has, beside its states.
_STOCK = frozenset(vars(SumMetric())) - {"sum_value"}


def metric_states(module: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """Return what each metric object of a module holds, by the object's name."""
    return {
        name: {
            key: _image(value)
            for key, value in vars(metric).items()
            if key in metric._defaults
            or isinstance(value, (bool, int, float, str))
            or (key not in _STOCK and isinstance(value, (list, dict, set, deque)))
        }
        for name, metric in module.named_modules()
        if isinstance(metric, Metric)
    }


def restore_metric_states(module: torch.nn.Module, states: dict[str, dict[str, Any]]) -> None:
    """Put back what :func:`metric_states` returned."""
    for name, metric in module.named_modules():
        if isinstance(metric, Metric):
            metric.__dict__.update({key: _image(value) for key, value in states[name].items()})
            metric.__dict__["_computed"] = None


def different_metric(one: dict[str, dict[str, Any]], other: dict[str, dict[str, Any]]) -> str | None:
    """Return the name of a metric object whose states differ by more than rounding, ``None`` if there is none."""
    for name, state in one.items():
        if any(not _alike(value, other[name].get(key)) for key, value in state.items()):
            return name
    return None


def _image(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, list):
        return [_image(part) for part in value]
    return copy(value) if isinstance(value, (dict, set, deque)) else value


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        if not one or not other or not all(isinstance(part, Tensor) for part in (*one, *other)):
            return one == other
        one, other = (torch.cat([torch.atleast_1d(part) for part in parts]) for parts in (one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(value, other[key]) for key, value in one.items())
    if not isinstance(one, Tensor):
        return bool(one == other)
    if not isinstance(other, Tensor) or one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return bool((one == other).all())
    bound = 1e-9 if one.dtype is torch.float64 else 1e-4
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=bound, atol=bound * scale, equal_nan=True)
