"""Personal parameters that are trained first, and then all others (FedRep)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.exchanges.personal import PersonalParameters
from fl_lightning.parts.federation import LocalClient
from fl_lightning.parts.messages import Task, further_tasks
from fl_lightning.parts.objectives.corrections import Term
from fl_lightning.parts.part import walk
from fl_lightning.parts.schedules.base import Play
from fl_lightning.parts.schedules.synchronous import Synchronous
from fl_lightning.parts.server import Server
from fl_lightning.settings import Count

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False, kw_only=True)
class PersonalFirst(Synchronous):
    """Clients first train their personal parameters, the others frozen, then the others (FedRep, Collins et al. 2021).

    Use it with ``Frozen`` of the same parameters as the objective of the second training.

    Args:
        personal_parameters: The exchange that keeps them, which must be one of the algorithm's.
        epochs: Local epochs (or steps, if the algorithm counts steps) of the first training.
    """

    runs_at = "client"
    sends_updates_alone = True
    optimized_trainings = 2
    personal_parameters: PersonalParameters
    epochs: Count = 1

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the algorithm's exchange lacks the personal parameters."""
        if all(part is not self.personal_parameters for part in walk(algorithm.chain)):
            yield f"`personal_parameters` must be one of the algorithm's exchanges, got {self.personal_parameters!r}."

    @override
    def correction(self, client: LocalClient) -> Term:
        """Freeze all but the personal parameters."""
        everything = frozenset(range(self.federation.layout.num_trained))
        personal = self.federation.places(self.personal_parameters.pattern)
        return Term(frozen=everything - personal)

    @override
    def start(self, task: Task, received: Tensor) -> Tensor:
        """Return what the client received; in the second training with the personal parameters of the first one."""
        if task.phase or task.client not in self._trained:
            return received
        return self.personal_parameters.insert(received, self._trained[task.client])

    @override
    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Train the personal parameters, then the others."""
        self._trained: dict[int, Tensor] = {}
        for result in (yield further_tasks(tasks, self.epochs)):
            self._trained[result.client] = self.personal_parameters.values_in(result.vector)
        shown = yield from super().play(tasks, server)
        self._trained = {}
        return shown

    @override
    def expected_tasks(self) -> int:
        """Return the number of first trainings."""
        return self.cohort_size
