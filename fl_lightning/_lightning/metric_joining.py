"""Metric objects that add their batches up: what several clients would give them is given at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torchmetrics import (
    MaxMetric,
    MeanAbsoluteError,
    MeanMetric,
    MeanSquaredError,
    Metric,
    MetricCollection,
    MinMetric,
    SumMetric,
)
from torchmetrics.classification import (
    BinaryConfusionMatrix,
    BinaryStatScores,
    MulticlassConfusionMatrix,
    MulticlassStatScores,
    MultilabelConfusionMatrix,
    MultilabelStatScores,
)

from fl_lightning._lightning.metric_calls import AnyMetric, ClientCall, parts

#: Their scores become probabilities if any score of the batch is none.
_NORMALISING = (BinaryConfusionMatrix, BinaryStatScores, MultilabelConfusionMatrix, MultilabelStatScores)
#: Their ``update`` treats each sample by itself, and sums, or takes the largest or smallest value.
_ADDING = (
    *(MulticlassConfusionMatrix, MulticlassStatScores, MeanAbsoluteError, MeanSquaredError),
    *(MaxMetric, MeanMetric, MinMetric, SumMetric),
)


def adds_up(metric: AnyMetric) -> bool:
    """Whether one ``update`` with all batches leaves what an ``update`` with each of them leaves.

    Known of some classes of torchmetrics. A class of the user's own may treat a batch as a whole, or count its calls.
    """
    if isinstance(metric, MetricCollection):
        grouped = metric._groups_checked or not metric._enable_compute_groups  # by the first batch's states
        own = {"forward", "update", "values"} & vars(metric).keys()
        return type(metric) is MetricCollection and grouped and not own and all(map(adds_up, parts(metric)))
    kind = type(metric)
    return (
        kind.__module__.split(".")[0] == "torchmetrics"
        and any(kind.update is known.update for known in (*_ADDING, *_NORMALISING))
        and all(_is_stock(metric, name) for name in ("forward", "update", "compute", "reset"))
        and all(isinstance(default, Tensor) for default in metric._defaults.values())
        and not metric.dist_sync_on_step
    )


def _is_stock(metric: Metric, name: str) -> bool:
    """Whether a method is torchmetrics' own; ``update`` and ``compute`` are wrapped in each object."""
    stock = getattr(type(metric), name)
    own = vars(metric).get(name)
    plain = own is None or getattr(getattr(own, "__wrapped__", None), "__func__", None) is stock
    return plain and stock.__module__.split(".")[0] == "torchmetrics"


def make_jointly(calls: Sequence[ClientCall]) -> bool:
    """Update a metric object that adds up once with what several calls would have given it.

    Batches are joined along their first dimension, single numbers become one tensor, and other arguments must be the
    same in all calls.

    Returns:
        Whether that could be; otherwise nothing has changed.
    """
    metric = calls[0].call.metric
    arguments = _joined_arguments(calls)
    if arguments is None:
        return False
    args, kwargs = arguments
    before = [(part, _state(part)) for part in parts(metric)]
    try:
        metric.update(*args, **kwargs)
    except Exception:  # such as for more classes than there may be in a batch
        for part, state in before:
            vars(part).update(state)
        return False
    for part, state in before:
        part._update_count = state["_update_count"] + len(calls)
    return True


def _state(metric: Metric) -> dict[str, Any]:
    """Return what ``update`` changes."""
    state = {name: getattr(metric, name).clone() for name in metric._defaults}
    return {**state, "_update_count": metric._update_count, "_computed": metric._computed}


def _joined_arguments(calls: Sequence[ClientCall]) -> tuple[Sequence[Any], dict[str, Any]] | None:
    """Return one call's arguments for all calls; ``None`` if there are none."""
    first = calls[0].call
    if any(len(other.call.leaves) != len(first.leaves) or other.call.spec != first.spec for other in calls):
        return None
    leaves = [call.leaves() for call in calls]
    sizes = [{leaf.shape[:1] for leaf in own if isinstance(leaf, Tensor)} for own in leaves]
    if any(len(own) > 1 for own in sizes):  # not all of a call's tensors have a row for each sample
        return None
    device = None if any(map(any, sizes)) else next(iter(parts(first.metric))).device
    joined = [_joined(values, device) for values in zip(*leaves, strict=True)]
    if any(leaf is None for leaf in joined):
        return None
    args, kwargs = pytree.tree_unflatten([leaf for found in joined if found for leaf in found], first.spec)
    metrics = [part for part in parts(first.metric) if isinstance(part, _NORMALISING)]
    scores = kwargs.get("preds", args[0] if args else None)
    lengths = [shape[0] if shape else 1 for own in sizes for shape in own]
    if metrics and not (isinstance(scores, Tensor) and _are_alike(scores, lengths, metrics)):
        return None
    return args, kwargs


def _joined(values: Sequence[Any], device: torch.device | None) -> tuple[Any] | None:
    """Return one argument for all calls, in a tuple; ``None`` if there is none.

    Args:
        values: Each call's.
        device: Where single numbers are joined; ``None`` where tensors have a row for each sample.
    """
    first = values[0]
    if not all(type(value) is type(first) for value in values):
        return None
    if isinstance(first, Tensor):
        if any((own.shape[1:], own.dim(), own.dtype) != (first.shape[1:], first.dim(), first.dtype) for own in values):
            return None
        return (torch.cat(list(values)) if device is None else torch.stack(list(values)),)
    if device is not None and isinstance(first, (int, float)):
        return (torch.tensor(values, dtype=torch.float64 if isinstance(first, float) else None, device=device),)
    return (first,) if all(value is first or value == first for value in values) else None


def _are_alike(scores: Tensor, sizes: Sequence[int], metrics: Sequence[Metric]) -> bool:
    """Whether the scores of all batches are probabilities, or those of none.

    Args:
        scores: All batches', shape ``(N, ...)``.
        sizes: The batches' sizes.
        metrics: Make probabilities of a batch's scores where one of them is none.
    """
    if not scores.is_floating_point():
        return True
    ignores = any(metric.ignore_index is not None for metric in metrics)
    if ignores or sum(sizes) != len(scores) or bool(scores.isnan().any()):
        return False
    likely = ((scores >= 0) & (scores <= 1)).reshape(len(scores), -1).all(1)
    return len({bool(own.all()) for own in likely.split(list(sizes))}) == 1
