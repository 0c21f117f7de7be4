"""From which model a client starts, and when the server acts: schedules.

A schedule changes only in :meth:`Schedule.close`. What a round's clients hand back is held apart until then, so that a
round which is broken off leaves no trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.aggregation import Aggregation, WeightedMean
from fl_lightning.parts.client_states import ClientStates, StatefulPart
from fl_lightning.parts.federation import ClientResult, Federation
from fl_lightning.parts.server_optimizers import ServerOptimizer


@dataclass
class Server:
    """The server's side of an algorithm, as a schedule needs it.

    Attributes:
        model: The server's model w_t, shape ``(size,)``: parameters first, then buffers.
        num_parameters: Length of the part that the optimizer moves; buffers are replaced by the aggregate.
        aggregation: Merges results.
        optimizer: Moves the model.
        aggregations: How often the server has moved.
    """

    model: Tensor
    num_parameters: int
    aggregation: Aggregation
    optimizer: ServerOptimizer
    aggregations: int = 0

    def merge(self) -> Tensor | None:
        """Return what the aggregation holds over all processes, and empty it; None if no client reported."""
        return self.aggregation.merge(self.model)

    @property
    def running_mean(self) -> WeightedMean:
        """The aggregation of a schedule that adds models up one by one."""
        assert isinstance(self.aggregation, WeightedMean)
        return self.aggregation

    def move(self, aggregate: Tensor | None) -> None:
        """Take one step toward ``aggregate``; without one the model stays."""
        if aggregate is not None:
            n = self.num_parameters
            moved = self.optimizer.step(self.model[:n], aggregate[:n])
            self.model = torch.cat([moved, aggregate[n:].to(moved.dtype)])
            self.aggregations += 1


class Schedule(StatefulPart, ABC):
    """Decides which model each slot of a round starts from and when the server acts."""

    #: Whether a slot keeps its model from round to round, so that it belongs to one process.
    keeps_models = False

    @property
    def in_cycle(self) -> bool:
        """Whether models circulate that the server has not aggregated yet."""
        return False

    def open(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> list[int]:
        """Begin a round and return the slots that train, at most one for each active client.

        Args:
            num_active: Clients that train in the round.
            cohort_size: Clients that usually do.
            rng: The round's generator.
        """
        return list(range(num_active))

    @abstractmethod
    def start(self, slot: int, server: Server) -> Tensor:
        """Return the model from which ``slot`` trains, shape ``(size,)``; not to be written to."""

    @abstractmethod
    def receive(self, result: ClientResult, server: Server) -> None:
        """Take a finished client's model."""

    @abstractmethod
    def close(self, server: Server, failed: Collection[int]) -> Tensor:
        """End the round and return the model that the user sees now, shape ``(size,)``.

        Args:
            server: The server, to be moved.
            failed: Slots, on all processes, whose client handed in nothing usable.
        """


class Synchronous(Schedule):
    """Every client starts from the server's model, and the server acts at the end of every round (FedAvg).

    Args:
        evaluate: The model that is validated, checkpointed and tested: ``"server"``, the one that clients receive next;
            ``"active"``, the plain mean of the models of the round's clients; ``"all"``, the plain mean of every
            client's last local model (the first model before its first training).

    Raises:
        ValueError: If ``evaluate`` is unknown.
    """

    def __init__(self, evaluate: Literal["server", "active", "all"] = "server") -> None:
        check_choice("evaluate", evaluate, ("server", "active", "all"))
        self.evaluate = evaluate
        self._active = WeightedMean("uniform")
        self._shown: Tensor | None = None

    def begin(self, federation: Federation) -> None:
        """Give every client the first model, if last local models are to be averaged."""
        self._shown = None
        self._active.begin(federation)
        self.states = ClientStates(federation, federation.model.clone()) if self.evaluate == "all" else None

    def start(self, slot: int, server: Server) -> Tensor:
        """Return the server's model."""
        return server.model

    def receive(self, result: ClientResult, server: Server) -> None:
        """Add the model to the aggregate."""
        server.running_mean.update(result)
        if self.evaluate == "active":
            self._active.update(result)
        elif self.states is not None:
            self.states.put(result.task.client, result.vector)

    def close(self, server: Server, failed: Collection[int]) -> Tensor:
        """Aggregate and move the server."""
        server.move(server.merge())
        if self.states is not None:
            self.states.close()
            self._shown = self.states.mean.to(server.model.dtype)
        elif self.evaluate == "active":
            mean = self._active.merge(server.model)
            self._shown = self._shown if mean is None else mean.to(server.model.dtype)
        return server.model if self._shown is None else self._shown

    def discard(self) -> None:
        """Forget what the clients of a broken-off round handed in."""
        super().discard()
        self._active.discard()

    def state_dict(self) -> dict[str, Any]:
        """Return the evaluated model, unless it is the server's, and what it is made of."""
        return {"shown": self._shown, "clients": None if self.states is None else self.states.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint."""
        self._shown = state["shown"]
        if self.states is not None:
            self.states.load_state_dict(state["clients"])
