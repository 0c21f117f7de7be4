"""Heads of clients' own: a head that is trained first, and one that stays as it is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from fl_lightning.checks import Count
from fl_lightning.parts.exchange import PersonalParameters
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.messages import Task, further_tasks
from fl_lightning.parts.objectives import Correction, LocalObjective
from fl_lightning.parts.part import walk
from fl_lightning.parts.schedules import Play, Synchronous
from fl_lightning.parts.server import Server

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

    sends_updates_alone = True
    personal_parameters: PersonalParameters
    epochs: Count = 1

    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether the algorithm's exchange lacks the personal parameters."""
        if all(part is not self.personal_parameters for part in walk(algorithm.chain)):
            yield f"`personal_parameters` must be one of the algorithm's exchanges, got {self.personal_parameters!r}."

    def correction(self, client: LocalClient) -> Correction:
        """Freeze all but the personal parameters."""
        trained = self.federation.places(self.personal_parameters.pattern)
        return Correction(frozen=frozenset(range(len(self.federation.lengths))) - trained)

    def start(self, task: Task, received: Tensor) -> Tensor:
        """Return what the client received; in the second training with the personal parameters of the first one."""
        values = None if task.phase else self._trained.get(task.client)
        return received if values is None else self.personal_parameters.insert(received, values)

    def play(self, tasks: Sequence[Task], server: Server) -> Play:
        """Train the personal parameters, then the others."""
        self._trained: dict[int, Tensor] = {}
        for result in (yield further_tasks(tasks, self.epochs)):
            self._trained[result.client] = self.personal_parameters.values_in(result.vector)
        shown = yield from super().play(tasks, server)
        self._trained = {}
        return shown

    def expected_tasks(self) -> int:
        """Return the number of first trainings."""
        return self.cohort_size


@dataclass(eq=False)
class Frozen(LocalObjective):
    """The plain objective, of which clients leave some parameters as they are (FedBABU, Oh et al. 2022).

    Args:
        pattern: Which; as for :class:`PersonalParameters`.

    Raises:
        ValueError: When the fit begins, if a pattern matches nothing.
    """

    sends_updates_alone = True
    pattern: Patterns

    def setup(self, federation: Federation) -> None:
        """Find the parameters."""
        self._correction = Correction(frozen=federation.places(self.pattern))

    def correction(self, client: LocalClient) -> Correction:
        """Freeze them."""
        return self._correction

    def untrained(self, federation: Federation) -> Collection[str]:
        """Return their names."""
        return federation.matching(self.pattern)
