"""Metric objects of torchmetrics are given what the clients of a stack would have given them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import MeanAbsoluteError, MeanSquaredError, Metric, MetricCollection
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassStatScores

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.recording import BatchValue, ClientEntries, Entry, MetricCall, TensorPlace
from fl_lightning.seeding import changed_generators, global_states, preserved_generators

#: Their ``update``, which others inherit, treats each sample by itself and adds samples up.
_ADDING = (MulticlassConfusionMatrix, MulticlassStatScores, MeanAbsoluteError, MeanSquaredError)


def replay(
    clients: Mapping[int, ClientEntries],
    module: nn.Module,
    seed: Callable[[int], None],
    *,
    may_draw: bool,
) -> None:
    """Make the calls of metric objects, in the order in which the clients would have made them, or at once.

    Args:
        clients: For each slot, in order, the client's batches, and its row in them.
        module: The module.
        seed: Seeds the global generators for the client in a slot.
        may_draw: Whether metric objects may draw.

    Raises:
        CannotVectorize: If one draws that may not; metric objects are as they were then.
    """
    entries = list({id(batch): batch for own in clients.values() for batch, _ in own}.values())
    calls: dict[int, list[tuple[Entry, MetricCall]]] = {}
    for entry in entries:
        for call in entry.logged.metric_calls:
            calls.setdefault(id(call.metric), []).append((entry, call))
    if not calls:
        return
    apart = _needed_apart(entries, module)
    done = {metric for metric, own in calls.items() if metric not in apart and _update_at_once(own)}
    if not calls.keys() - done:
        return
    device = next(module.parameters()).device
    before = {} if may_draw else _states(module)
    with preserved_generators(device):
        for slot, own in clients.items():
            seed(slot)
            generators = global_states(device)
            for batch, row in own:
                _replay_batch(batch, row, done)
            if not may_draw and changed_generators(generators, global_states(device)):
                for metric, state in before.items():
                    vars(metric).update(state)
                raise CannotVectorize("a metric object draws random numbers, and so do the data or `training_step`")


def _replay_batch(batch: Entry, row: int, done: set[int]) -> None:
    """Make one client's calls of a step, and note the values that are logged by the names of metric objects.

    Args:
        batch: The batches of several clients.
        row: The client's row.
        done: Identities of metric objects that have had all their calls.
    """
    calls, logs = batch.logged.metric_calls, batch.logged.calls
    used = {log.value.call for log in logs if isinstance(log.value, BatchValue)}
    for number in range(len(calls) + 1):
        for place, log in enumerate(logs):
            if log.metric_calls == number and isinstance(log.value, Metric):
                batch.cached[row, place] = log.value._forward_cache
        if number < len(calls) and id(calls[number].metric) not in done:
            returned = _make(calls[number], batch.tensors, row)
            if number in used:
                batch.returned[row, number] = returned


def _make(call: MetricCall, tensors: Sequence[Tensor], row: int) -> Any:
    """Make one client's call, and return what it returns."""

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, TensorPlace):
            return leaf
        value = tensors[leaf.place][row]
        return value if leaf.number is None else leaf.number(value.item())

    args, kwargs = pytree.tree_unflatten(list(map(own, call.leaves)), call.spec)
    return getattr(call.metric, call.method)(*args, **kwargs)


def _needed_apart(entries: Sequence[Entry], module: nn.Module) -> set[int]:
    """Return the identities of metric objects whose values of single batches are logged, or that are in others."""
    found = set[int]()
    for logged in (entry.logged for entry in entries):
        for log in logged.calls:
            if isinstance(log.value, BatchValue):
                found.add(id(logged.metric_calls[log.value.call].metric))
            elif isinstance(log.value, Metric) and log.options.get("on_step") is not False:
                found.add(id(log.value))
    metrics = [part for part in module.modules() if isinstance(part, (Metric, MetricCollection))]
    return found | {id(part) for metric in metrics for part in metric.modules() if part is not metric}


def _update_at_once(calls: Sequence[tuple[Entry, MetricCall]]) -> bool:
    """Update a metric object that adds samples up with all clients' batches; return whether that could be."""
    first = calls[0][1]
    metric, kind = first.metric, type(first.metric)
    update = getattr(vars(metric).get("update"), "__wrapped__", None)  # torchmetrics wraps it in each object
    if (
        not isinstance(metric, Metric)
        or not kind.__module__.startswith("torchmetrics.")
        or getattr(update, "__func__", None) not in [known.update for known in _ADDING]
        or "forward" in vars(metric)
        or metric.dist_sync_on_step
        or not all(isinstance(default, Tensor) for default in metric._defaults.values())
        or any(call.spec != first.spec or len(call.leaves) != len(first.leaves) for _, call in calls)
    ):
        return False
    count, leaves = metric._update_count, list[Any]()
    for number, leaf in enumerate(first.leaves):
        if not isinstance(leaf, TensorPlace) or leaf.number is not None:
            return False
        given = [entry.tensors[call.leaves[number].place] for entry, call in calls]
        rows = [
            row
            for each in given
            for row in ([each.flatten(0, 1)] if isinstance(each, Tensor) and each.dim() > 1 else each)
        ]
        if any(row.dim() == 0 or row.shape[1:] != rows[0].shape[1:] for row in rows):
            return False
        leaves.append(torch.cat(rows))
    args, kwargs = pytree.tree_unflatten(leaves, first.spec)
    try:
        metric.update(*args, **kwargs)
    except Exception:  # such as for more classes than there may be in a batch: the client's own call says so
        metric._update_count = count
        return False
    metric._update_count = count + sum(len(entry.slots) for entry, _ in calls)
    return True


def _states(module: nn.Module) -> dict[nn.Module, dict[str, Any]]:
    """Return copies of what each metric object of a module holds; what it refers to in the module stays itself."""
    metrics = [part for part in module.modules() if isinstance(part, (Metric, MetricCollection))]
    shared: dict[int, Any] = {id(part): part for part in module.modules()}
    shared[id(getattr(module, "_trainer", None))] = getattr(module, "_trainer", None)
    held = {metric: {key: value for key, value in vars(metric).items() if key != "_modules"} for metric in metrics}
    for value in pytree.tree_leaves(list(held.values())):
        if isinstance(value, Tensor) and value.grad_fn is not None:  # `deepcopy` copies no tensor with a graph
            shared[id(value)] = value.detach().clone()
    return {metric: deepcopy(state, shared) for metric, state in held.items()}
