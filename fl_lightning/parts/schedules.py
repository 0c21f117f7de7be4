"""Schedules decide from which model a client starts, and when the server acts.

A schedule changes only in :meth:`Schedule.publish`. Until then it keeps the results of a round apart, so that a round
that breaks off leaves no trace. If the server's move fails in it, ``on_round_abort`` takes its changes back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.aggregation import Weighting
from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.of_held import flag_of_held
from fl_lightning.parts.part import Part, passes_on
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.running_mean import RunningMean
from fl_lightning.parts.server import Server

EvaluatedModel = Literal["server", "active", "all"]


class BaseSchedule(Part, ABC):
    """What other parts can ask of any schedule.

    Yours is a :class:`Schedule`, whose clients begin a round together, or an :class:`Asynchronous`.
    """

    #: Whether a slot keeps its model from round to round, so that it belongs to one process.
    keeps_models: bool = flag_of_held()
    #: Whether the server gets all results of a round at its end, and nothing else.
    merges_each_round = False
    #: Whether checkpoints hold results that the server has not merged.
    saves_results: bool = flag_of_held()

    #: Whether the server may merge several results of one client at once.
    repeats_in_buffer: bool = flag_of_held()
    #: Whether the published model is a mean of clients' models, taken as each comes in.
    shows_client_models: bool = flag_of_held()

    @property
    @abstractmethod
    def in_cycle(self) -> bool:
        """Whether clients or slots hold models that the server has not aggregated yet."""

    @abstractmethod
    def start(self, slot: int, server: Server) -> Tensor:
        """Return the model from which ``slot`` trains, shape ``(size,)``; not to be written to."""


class Schedule(BaseSchedule):
    """Decides which model each slot of a round starts from and when the server acts.

    A schedule that holds another one has its slots, its flags and its checks, unless it overrides them.
    """

    @property
    def _held_schedules(self) -> list[Schedule]:
        return [part for part in self.held_parts if isinstance(part, Schedule)]

    @property
    def in_cycle(self) -> bool:
        """Whether models circulate that the server has not aggregated yet."""
        return any(held.in_cycle for held in self._held_schedules)

    @property
    def shows_aggregate(self) -> bool:
        """Whether the model that was published last is the server's, not a mean of circulating models."""
        return all(held.shows_aggregate for held in self._held_schedules)

    @passes_on
    def check_participation(self, participation: Participation) -> None:
        """Raise ``ValueError`` if the schedule does not allow this participation."""
        for held in self._held_schedules:
            held.check_participation(participation)

    def choose_slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> list[int]:
        """Return the slots that train in a round, at most one for each active client.

        Args:
            num_active: Clients that train in the round.
            cohort_size: Clients that usually do.
            rng: The round's generator.
        """
        for held in self._held_schedules:
            return held.choose_slots(num_active, cohort_size, rng)
        return list(range(num_active))

    @abstractmethod
    def receive(self, result: ClientResult, server: Server) -> None:
        """Take a client's result, as it left the exchange; ``server.take(result)`` hands it to the aggregation."""

    @abstractmethod
    def publish(self, server: Server, failed: Collection[int]) -> Tensor:
        """Let the server act if it is time, and return the model that the user sees now, shape ``(size,)``.

        Args:
            server: The server, to be moved.
            failed: Slots, on all processes, whose client handed in nothing usable.
        """


class Synchronous(Schedule):
    """Every client starts from the server's model, and the server acts at the end of every round (FedAvg).

    Args:
        evaluate: The model that is validated, checkpointed and tested: ``"server"``, the one that clients receive next;
            ``"active"``, the mean of the models of the round's clients; ``"all"``, the mean of every client's last
            local model (the first model before its first training).
        weighting: How these means weigh clients: ``"uniform"``, or ``"samples"`` by their sizes.

    Raises:
        ValueError: If ``evaluate`` or ``weighting`` is unknown.
    """

    merges_each_round = True

    def __init__(self, evaluate: EvaluatedModel = "server", weighting: Weighting = "uniform") -> None:
        check_choice("evaluate", evaluate, ("server", "active", "all"))
        check_choice("weighting", weighting, ("samples", "uniform"))
        self.evaluate, self.weighting = evaluate, weighting
        self._active = RunningMean()
        self._shown: Tensor | None = None

    @property
    def shows_client_models(self) -> bool:  # type: ignore[override]
        """Whether ``evaluate`` is another model than the server's."""
        return self.evaluate != "server"

    def on_fit_start(self, federation: Federation) -> None:
        """Give every client the first model, if last local models are to be averaged."""
        self._shown = None
        self._active.reset()
        weights = federation.sizes if self.weighting == "samples" else None
        self.states = ClientStates(federation, federation.model, weights) if self.evaluate == "all" else None

    def start(self, slot: int, server: Server) -> Tensor:
        """Return the server's model."""
        return server.model

    def receive(self, result: ClientResult, server: Server) -> None:
        """Hand the result to the server."""
        server.take(result)
        if self.evaluate == "active":
            self._active.add(result.vector, float(result.num_samples) if self.weighting == "samples" else 1.0)
        elif self.states is not None:
            self.states.put(result.task.client, result.vector)

    def on_round_end(self) -> None:
        """Wait for :meth:`publish`, after the server has moved."""

    def publish(self, server: Server, failed: Collection[int]) -> Tensor:
        """Move the server."""
        server.move()
        if self.states is not None:
            self.states.on_round_end()
            self._shown = self.states.mean.to(server.model.dtype)
        elif self.evaluate == "active":
            mean, _ = self._active.take(self.federation, server.model)
            self._shown = self._shown if mean is None else mean.to(server.model.dtype)
        return server.model if self._shown is None else self._shown

    def on_round_abort(self) -> None:
        """Forget what the clients of the round handed in."""
        super().on_round_abort()
        self._active.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the evaluated model, unless it is the server's."""
        return {"shown": self._shown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self._shown = self._to_device(state["shown"])
