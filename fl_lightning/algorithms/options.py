"""Who trains, from the arguments of an algorithm; and what of its callback is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_lightning.executors import Executor, make_executor
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.parts.samplers.uniform import Arrivals, UniformSampler
from fl_lightning.settings import check, to_number


def without_trainer(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a callback's attributes without those that reach the trainer; the executor is a new one in its state."""
    executor = make_executor(attributes["_executor_given"], attributes["clients_at_once"])
    present: Executor = attributes["_executor"]
    # An executor that the user has given is pickled itself.
    if executor is not present:
        executor.load_state_dict(present.state_dict())
    # Lightning lends its callbacks the module's ways to log.
    lent = ("log", "log_dict")
    kept = {name: value for name, value in attributes.items() if name not in lent}
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
    if clients_per_round is None:
        return sampler
    if not sampler.draws(to_number(clients_per_round)):
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
