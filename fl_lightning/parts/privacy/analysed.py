"""Checks that a published privacy analysis covers all parts of an algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.privacy.accounting import Mechanism
from fl_lightning.parts.sampling import BernoulliSampler, UniformSampler
from fl_lightning.parts.schedules import Synchronous


def cohort_of(sampler: Any, num_clients: int) -> Mechanism:
    """Return how a sampler draws clients, as the accounting sees it, without noise."""
    if isinstance(sampler, BernoulliSampler):
        return Mechanism(0.0, sampler.probability)
    cohort = sampler.cohort_size(num_clients)
    if cohort == num_clients:
        return Mechanism(0.0, 1.0)
    return Mechanism(0.0, cohort / num_clients, cohort, num_clients)


def refuse_unanalysed(parts: Mapping[str, Any], name: str) -> None:
    """Raise ``ValueError`` for parts with which no published analysis gives epsilon.

    Args:
        parts: All parts of the algorithm by name.
        name: The exchange that asks.
    """
    for refuse in (_schedule, _sampler, _objective, _participation):
        if reason := refuse(parts):
            raise ValueError(f"{name} would print a wrong epsilon for this run: {reason}")


def _schedule(parts: Mapping[str, Any]) -> str:
    schedule = parts["schedule"]
    if type(schedule) is Synchronous and schedule.evaluate == "server":
        return ""
    if type(schedule) is Synchronous:
        return (
            f'`evaluate="{schedule.evaluate}"` shows a mean of the clients\' models without noise. Give '
            '`evaluate="server"`.'
        )
    kind = type(schedule).__name__
    if schedule.keeps_models:
        return (
            f"with the schedule {kind} models go from client to client without noise, which no analysis of a noised "
            "sum covers. Use FedAvg, or redistribution without it."
        )
    return (
        f"with the schedule {kind} a client's speed decides how often its results are in the buffer, not chance, so "
        "that no sampling amplifies its privacy and no bound on its rounds is known. Use a synchronous algorithm."
    )


def _sampler(parts: Mapping[str, Any]) -> str:
    sampler = parts["sampler"]
    if type(sampler) in (BernoulliSampler, UniformSampler):
        return ""
    return (
        f"no published analysis covers clients that {type(sampler).__name__} draws; scores of importance tell of the "
        "clients' data themselves. Use BernoulliSampler or UniformSampler."
    )


def sends_more(objective: LocalObjective) -> bool:
    """Return whether clients send vectors or losses beside their updates."""
    return objective.vectors_sent > 1 or objective.starts_from_server or objective.sends_loss


def _objective(parts: Mapping[str, Any]) -> str:
    objective: LocalObjective = parts["objective"]
    if not sends_more(objective) and not parts["aggregation"].client_states:
        return ""
    return (
        f"with {type(objective).__name__} vectors or losses of clients reach the server beside their noised updates. "
        "Use FedAvg, FedProx or an adaptive server."
    )


def _participation(parts: Mapping[str, Any]) -> str:
    participation: Participation = parts["participation"]
    if participation.stragglers:
        return (
            "`stragglers` are a share of the round's clients, so that one client's presence changes what others do. "
            "Leave them out."
        )
    fixed = type(parts["sampler"]) is UniformSampler
    if fixed and (participation.available is not None or participation.dropout):
        return (
            "with a fixed number of clients, availability and drop-out change with which chance each is drawn. Use "
            "BernoulliSampler, for which they only lower it."
        )
    return ""
