"""Metric objects of torchmetrics are given what the clients of a stack would have given them, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.recording import BatchValue, ClientEntries, Entry, MetricCall, TensorPlace
from fl_lightning.seeding import changed_generators, global_states, preserved_generators


def replay(
    clients: Mapping[int, ClientEntries],
    module: nn.Module,
    seed: Callable[[int], None],
    *,
    may_draw: bool,
) -> None:
    """Make the calls of metric objects, in the order in which the clients would have made them.

    Args:
        clients: For each slot, in order, the client's batches, and its row in them.
        module: The module.
        seed: Seeds the global generators for the client in a slot.
        may_draw: Whether metric objects may draw.

    Raises:
        CannotVectorize: If one draws that may not; metric objects are as they were then.
    """
    if not any(batch.logged.metric_calls for own in clients.values() for batch, _ in own):
        return
    device = next(module.parameters()).device
    before = {} if may_draw else _states(module)
    with preserved_generators(device):
        for slot, own in clients.items():
            seed(slot)
            generators = global_states(device)
            for batch, row in own:
                _replay_batch(batch, row)
            if not may_draw and changed_generators(generators, global_states(device)):
                for metric, state in before.items():
                    vars(metric).update(state)
                raise CannotVectorize("a metric object draws random numbers, and so do the data or `training_step`")


def _replay_batch(batch: Entry, row: int) -> None:
    """Make one client's calls of a step, and note the values that are logged by the names of metric objects."""
    calls, logs = batch.logged.metric_calls, batch.logged.calls
    used = {log.value.call for log in logs if isinstance(log.value, BatchValue)}
    for number in range(len(calls) + 1):
        for place, log in enumerate(logs):
            if log.metric_calls == number and isinstance(log.value, Metric):
                batch.cached[row, place] = log.value._forward_cache
        if number < len(calls):
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
