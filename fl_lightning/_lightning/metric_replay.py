"""Metric objects of torchmetrics are given what the clients of a stack would have given them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from copy import deepcopy
from typing import Any, Protocol

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection, SumMetric

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.metric_calls import AnyMetric, ClientCall, parts, without_graphs
from fl_lightning._lightning.metric_joining import adds_up, make_jointly
from fl_lightning._lightning.recording import BatchValue, LogCall, Logged, MetricCall
from fl_lightning.seeding import changed_generators, global_states


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


def replay(batches: Sequence[tuple[ClientSteps, int]], jointly: bool) -> None:
    """Make the calls of metric objects, in the order in which the clients would have made them.

    Args:
        batches: Steps, and a client's row in them, in the order of clients.
        jointly: Whether metric objects that add their batches up are given all of them at once.

    Raises:
        CannotVectorize: If a metric object draws random numbers: a client alone would have drawn others.
    """
    calls: dict[int, list[ClientCall]] = {}
    for steps, row in batches:
        for call in steps.logged.metric_calls:
            calls.setdefault(id(call.metric), []).append(ClientCall(call, steps.tensors, row))
    done = _make_all_jointly(batches, calls) if jointly else set()
    others = {type(own[0].call.metric).__name__ for metric, own in calls.items() if metric not in done}
    if not others:
        return
    device = next((tensor[row].device for steps, row in batches for tensor in steps.tensors), None)
    before = global_states(device)
    for steps, row in batches:
        _replay_step(steps, row, done)
    if changed_generators(before, global_states(device)):
        names = ", ".join(sorted(others))
        raise CannotVectorize(f"a metric object ({names}) draws random numbers: each client alone would draw its own")


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


# ---- their states ----

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
