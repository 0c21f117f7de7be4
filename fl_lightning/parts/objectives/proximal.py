"""A pull to the received model (FedProx)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from typing_extensions import override

from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Term, pull_to_received
from fl_lightning.settings import ScheduledWeight


@dataclass(eq=False)
class Proximal(LocalObjective):
    """``F_k(w) + mu/2 |w - w'|^2`` with w' the received model (FedProx, Li et al. 2020; eq. (4)).

    With redistribution w' is the circulating model that the client received (RADFedp), not the server's.

    Equations are numbered as in ``docs/references.md``.

    Args:
        mu: Weight of the proximal term, at least 0; 0 is the plain objective. A function of the round makes a schedule.

    Raises:
        ValueError: If ``mu`` is negative or not finite.
    """

    runs_at = "client"
    sends_updates_alone = True
    mu: ScheduledWeight

    @property
    @override
    def proximal_weight(self) -> ScheduledWeight:
        return self.mu

    @property
    @override
    def uses_gradients_alone(self) -> bool:
        return type(self).correction is Proximal.correction

    @override
    def correction(self, client: LocalClient) -> Term | None:
        """Return the proximal term, with the mu of the round in which the client received its model."""
        mu = self.at("mu", client.task.round)
        return pull_to_received(mu, client, self.federation.layout) if mu else None


def proximal(mu: float | Callable[[int], float]) -> LocalObjective:
    """Return the proximal objective; the plain one for a weight of 0."""
    return Proximal(mu) if callable(mu) or mu else LocalObjective()
