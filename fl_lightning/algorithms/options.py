"""The arguments that algorithms share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fl_lightning.checks import Count, Natural, check, plain
from fl_lightning.executors import Executor, make_executor
from fl_lightning.executors.auto import ExecutorName
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.algorithm import InvalidUpdates
from fl_lightning.parts.exchange import Buffers, Exchange
from fl_lightning.parts.sampling import Arrivals, ClientSampler, Participation, UniformSampler


class RunOptions(TypedDict, total=False):
    """The arguments of all algorithms that name no part; see :class:`AggregationCallback`."""

    local_epochs: Count | None
    local_steps: Count | None
    continue_epochs: bool
    buffers: Buffers
    invalid_updates: InvalidUpdates
    max_invalid_rounds: Count | None
    state_dir: str | os.PathLike[str] | None
    executor: ExecutorName | Executor
    clients_at_once: Count | None
    seed: Natural | None


class CommonOptions(RunOptions, total=False):
    """The arguments that all named algorithms share; see :class:`AggregationCallback`."""

    exchange: Exchange | Sequence[Exchange] | None


class FederatedOptions(CommonOptions, total=False):
    """The arguments that all synchronous algorithms share; see :class:`AggregationCallback`."""

    sampler: ClientSampler | None
    participation: Participation | None


class MergedOptions(FederatedOptions, total=False):
    """The same with the aggregation, for algorithms that do not name it themselves."""

    aggregation: Aggregation | None


def check_with_aggregation(aggregation: object | None, **settings: tuple[object, object]) -> None:
    """Raise ``ValueError`` for a setting of the aggregation that a user's one replaces.

    Args:
        aggregation: The aggregation that the user gives; nothing is checked if ``None``.
        settings: Value and default of each setting.
    """
    for name, (value, default) in settings.items():
        if aggregation is not None and value != default:
            raise ValueError(
                f"`{name}={value!r}` belongs to the algorithm's own aggregation, which "
                f"`aggregation={aggregation!r}` replaces. Give only one of the two."
            )


def without_trainer(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a callback's attributes without those that reach the trainer; the executor is a new one in its state."""
    executor = make_executor(attributes["_executor_given"], attributes["clients_at_once"])
    if executor is not attributes["_executor"]:  # it is not the user's
        executor.load_state_dict(attributes["_executor"].state_dict())
    # Lightning lends its callbacks the module's ways to log
    kept = {name: value for name, value in attributes.items() if name not in ("log", "log_dict")}
    return {**kept, "_loop": None, "_executor": executor}


def choose_sampler(clients_per_round: int | float | None, sampler: ClientSampler | None) -> ClientSampler:
    """Return the sampler that the two arguments describe.

    Raises:
        TypeError: If ``sampler`` is no sampler.
        ValueError: If both are given and differ.
    """
    if sampler is None:
        return UniformSampler(0.1 if clients_per_round is None else clients_per_round)
    check("`sampler`", sampler, ClientSampler)
    said = getattr(sampler, "clients_per_round", None), getattr(sampler, "probability", None)
    given = plain(clients_per_round)  # 1 is one client, 1.0 are all
    agrees = any(type(each) is type(given) and each == given for each in said)
    if clients_per_round is not None and not agrees:
        raise ValueError(
            f"Give `clients_per_round` or a `sampler`, not both; got {clients_per_round!r} and {sampler!r}. A "
            "sampler sets the number of clients itself."
        )
    return sampler


def choose_arrivals(clients_per_round: int | float | None, sampler: ClientSampler | None) -> Arrivals:
    """Return the number of results in a round of an asynchronous schedule as a sampler.

    Raises:
        ValueError: If a sampler is given.
    """
    if sampler is not None:
        raise ValueError(
            f"`sampler` cannot be {sampler!r} with an asynchronous schedule: clients train whenever they are free. "
            "Give `clients_per_round`, the number of results in a round, and `concurrency`, that of clients at work."
        )
    return Arrivals(0.1 if clients_per_round is None else clients_per_round)


def with_clients_per_round(sampler: ClientSampler, clients_per_round: int | float) -> ClientSampler:
    """Return a copy of a sampler with another number of clients.

    Raises:
        AttributeError: If the sampler is neither a :class:`UniformSampler` nor the number of arrivals.
        ValueError: If the number is out of its range.
    """
    if type(sampler) is Arrivals:
        return Arrivals(clients_per_round)
    if type(sampler) is UniformSampler:
        return UniformSampler(clients_per_round, sampler.rounding)
    raise AttributeError(f"`clients_per_round` is set by the sampler {sampler!r}. Set `sampler` to another one.")
