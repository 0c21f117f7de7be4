"""Rounds whose clients send a gradient before they train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import Task, further_tasks
from fl_lightning.parts.objectives.shared_momentum import SharedMomentum
from fl_lightning.parts.schedules.base import Play
from fl_lightning.parts.schedules.synchronous import Synchronous
from fl_lightning.parts.server import Server

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False, kw_only=True)
class GradientFirst(Synchronous):
    """Clients first send the full gradient at the model that they received, then train with the mean of all (Mime).

    Args:
        objective: The algorithm's objective, which the gradients are for.
    """

    objective: SharedMomentum

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the algorithm has another objective."""
        if algorithm.objective is not self.objective:
            yield f"`objective` must be the algorithm's objective, {algorithm.objective!r}, got {self.objective!r}."

    @override
    def correction(self, client: LocalClient) -> None:
        """Take the gradient of a client that only looks at its model."""
        self.objective.add_gradient(client)

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Gather the gradients, let all clients train, then move the server and its momentum."""
        for _ in (yield further_tasks(tasks, work=0)):
            pass
        self.objective.take_mean()
        shown = yield from super().play(tasks, server)
        self.objective.move()
        return shown
