"""Metric objects of torchmetrics are given what the clients of a stack would have given them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.metric_calls import AnyMetric, ClientCall, parts
from fl_lightning._lightning.metric_joining import adds_up, make_jointly
from fl_lightning._lightning.metric_states import metric_states, restore_metric_states
from fl_lightning._lightning.recording import BatchValue, LogCall, Logged, MetricCall
from fl_lightning.seeding import changed_generators, global_states, preserved_generators


class ClientSteps(Protocol):
    """Some clients' calls of metric objects, and the values that these leave.

    Attributes:
        logged: What the clients logged, and gave to metric objects.
        tensors: Its tensors, shape ``(K, ...)`` each.
        returned: What metric objects return, by the client's row and the call's place.
        cached: The values of single steps that they have when they are logged, by row and the ``self.log``'s place.
    """

    logged: Logged
    tensors: Sequence[Tensor]
    returned: dict[tuple[int, int], Any]
    cached: dict[tuple[int, int], Any]


def replay(
    clients: Mapping[int, Sequence[tuple[ClientSteps, int]]],
    module: nn.Module,
    seed: Callable[[int], None],
    *,
    may_draw: bool,
) -> None:
    """Make the calls of metric objects, in the order in which the clients would have made them.

    Args:
        clients: For each slot, in order, the client's steps, and its row in them.
        module: The module.
        seed: Seeds the global generators for the client in a slot.
        may_draw: Whether metric objects may draw.

    Raises:
        CannotVectorize: If one draws that may not; metric objects are as they were then.
    """
    batches = [step for own in clients.values() for step in own]
    calls: dict[int, list[ClientCall]] = {}
    for steps, row in batches:
        for call in steps.logged.metric_calls:
            calls.setdefault(id(call.metric), []).append(ClientCall(call, steps.tensors, row))
    before = metric_states(module) if calls else {}
    done = _make_all_jointly(batches, calls)
    if not calls.keys() - done:
        return
    device = next(module.parameters()).device
    with preserved_generators(device):
        for slot, own in clients.items():
            seed(slot)
            states = global_states(device)
            for steps, row in own:
                _replay_step(steps, row, done)
            if not may_draw and changed_generators(states, global_states(device)):
                restore_metric_states(module, before)
                raise CannotVectorize("a metric object draws random numbers, and so do the data or `training_step`")


def _replay_step(steps: ClientSteps, row: int, done: set[int]) -> None:
    """Make one client's calls of a step, and note the values that are logged by the names of metric objects."""
    used = _calls_used(steps.logged)
    waiting = [
        (place, log) for place, log in enumerate(steps.logged.calls) if _needs_value(log) and id(log.value) not in done
    ]
    for number in range(len(steps.logged.metric_calls) + 1):
        for place, log in waiting:
            if log.metric_calls == number:
                steps.cached[row, place] = log.value._forward_cache  # type: ignore[union-attr]
        if number < len(steps.logged.metric_calls):
            call = steps.logged.metric_calls[number]
            if id(call.metric) not in done:
                returned = ClientCall(call, steps.tensors, row).make()
                if number in used:
                    steps.returned[row, number] = returned


def _calls_used(logged: Logged) -> set[int]:
    """Return the places of the calls of metric objects whose values are logged as numbers."""
    return {log.value.call for log in logged.calls if isinstance(log.value, BatchValue)}


def _needs_value(log: LogCall) -> bool:
    """Whether the value of a metric object in a single step may be logged."""
    return isinstance(log.value, Metric) and log.options.get("on_step") is not False


# ---- jointly ----


def _make_all_jointly(batches: Sequence[tuple[ClientSteps, int]], calls: dict[int, list[ClientCall]]) -> set[int]:
    """Update metric objects with all batches at once where that is the same; return their identities."""
    logged = {id(steps.logged): steps.logged for steps, _ in batches}.values()
    returning = {id(own.metric_calls[call].metric) for own in logged for call in _calls_used(own)}
    inside = {metric: _inside(own[0].call.metric) for metric, own in calls.items()}
    met = Counter(part for own in inside.values() for part in own)
    done: set[int] = set()
    for metric, own in calls.items():
        obj = own[0].call.metric
        alone = metric not in returning and all(met[part] == 1 for part in inside[metric])
        if alone and adds_up(obj) and _values_are_known(logged, obj) and make_jointly(own):
            _leave_last_values(own)
            done |= inside[metric]
    return done


def _inside(metric: AnyMetric) -> set[int]:
    return {id(part) for part in metric.modules() if isinstance(part, (Metric, MetricCollection))}


def _values_are_known(logged: Collection[Logged], metric: AnyMetric) -> bool:
    """Whether the values of single steps that are logged are those of batches that the same step has given before."""
    names = _inside(metric)
    if not any(_forwards(own.metric_calls, metric) for own in logged):
        return all(part._forward_cache is None for part in parts(metric))
    return all(
        _forwards(own.metric_calls[: log.metric_calls], metric)
        for own in logged
        for log in own.calls
        if _needs_value(log) and id(log.value) in names
    )


def _forwards(calls: Sequence[MetricCall], metric: AnyMetric) -> bool:
    return any(call.metric is metric and call.method == "forward" for call in calls)


def _leave_last_values(calls: Sequence[ClientCall]) -> None:
    """Leave the values of the last single step where ``forward`` leaves them."""
    last = next((own for own in reversed(calls) if own.call.method == "forward"), None)
    if last is not None:
        for metric in parts(last.call.metric):
            metric._forward_cache = last.batch_value(metric)


def value_of_step(steps: ClientSteps, row: int, log: LogCall) -> Any:
    """Return the value of a single step that a metric object has when a client logs it."""
    place = next(place for place, own in enumerate(steps.logged.calls) if own is log)
    if (row, place) in steps.cached:
        return steps.cached[row, place]
    for call in reversed(steps.logged.metric_calls[: log.metric_calls]):
        if call.method == "forward" and any(part is log.value for part in parts(call.metric)):
            return ClientCall(call, steps.tensors, row).batch_value(log.value)  # type: ignore[arg-type]
    return log.value._forward_cache  # type: ignore[union-attr]
