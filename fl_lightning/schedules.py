"""From which model a client starts, and when the server acts: schedules.

A schedule changes only in :meth:`Schedule.close`. What a round's clients hand back is held apart until then, so that a
round which is broken off leaves no trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fl_lightning.aggregation import WeightedMean
from fl_lightning.arguments import check_choice, check_count
from fl_lightning.federation import ClientResult
from fl_lightning.server import ServerOptimizer

Evaluate = Literal["virtual", "aggregate"]


@dataclass
class Server:
    """The server's side of an algorithm, as a schedule needs it.

    Attributes:
        model: The server's model w_t, shape ``(size,)``: parameters first, then buffers.
        num_parameters: Length of the part that the optimizer moves; buffers are replaced by the aggregate.
        aggregation: Merges results.
        optimizer: Moves the model.
        sum_over_ranks: Returns the sum of a tensor over all processes.
        aggregations: How often the server has moved.
    """

    model: Tensor
    num_parameters: int
    aggregation: WeightedMean
    optimizer: ServerOptimizer
    sum_over_ranks: Callable[[Tensor], Tensor]
    aggregations: int = 0

    def merge(self) -> Tensor | None:
        """Return the mean of what the aggregation holds over all processes, and empty it."""
        self.aggregation.reduce(self.sum_over_ranks, self.model.numel(), self.model.device)
        mean = self.aggregation.compute()
        self.aggregation.reset()
        return mean

    def move(self, aggregate: Tensor | None) -> None:
        """Take one step toward ``aggregate``; without one the model stays."""
        if aggregate is not None:
            n = self.num_parameters
            moved = self.optimizer.step(self.model[:n], aggregate[:n])
            self.model = torch.cat([moved, aggregate[n:].to(moved.dtype)])
            self.aggregations += 1


class Schedule(ABC):
    """Decides which model each slot of a round starts from and when the server acts."""

    #: Whether a slot keeps its model from round to round, so that it belongs to one process.
    keeps_models = False

    @property
    def in_cycle(self) -> bool:
        """Whether models circulate that the server has not aggregated yet."""
        return False

    def open(self, num_slots: int) -> None:
        """Begin a round of ``num_slots`` slots."""

    @abstractmethod
    def start(self, slot: int, server: Server) -> Tensor:
        """Return the model from which ``slot`` trains, shape ``(size,)``; not to be written to."""

    @abstractmethod
    def receive(self, result: ClientResult, server: Server) -> None:
        """Take a finished client's model."""

    @abstractmethod
    def close(self, server: Server) -> Tensor:
        """End the round and return the model that the user sees now, shape ``(size,)``."""

    def discard(self) -> None:
        """Forget what the clients of a broken-off round handed in."""

    def reset(self) -> None:
        """Return to the state before the first round."""

    def state_dict(self, gather: Callable[[dict[int, Tensor]], dict[int, Tensor]]) -> dict[str, Any]:
        """Return the state that a resumed run needs; ``gather`` joins the slots of all processes."""
        return {}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Take the state of a checkpoint."""


class Synchronous(Schedule):
    """Every client starts from the server's model, and the server acts at the end of every round (FedAvg)."""

    def start(self, slot: int, server: Server) -> Tensor:
        """Return the server's model."""
        return server.model

    def receive(self, result: ClientResult, server: Server) -> None:
        """Add the model to the aggregate."""
        server.aggregation.update(result)

    def close(self, server: Server) -> Tensor:
        """Aggregate and move the server."""
        server.move(server.merge())
        return server.model


class Redistribution(Schedule):
    """``m`` models circulate among clients for ``S`` rounds before the server aggregates them (RADFed).

    In each inner round every circulating model goes to one of ``m`` distinct clients drawn at random. After ``S`` inner
    rounds the server moves to the plain mean of the models and all start again from there (eq. (35)-(37)).

    Args:
        redistributions: S, the number of local trainings between two aggregations; 1 is FedAvg with uniform weights.
        evaluate: The model that is validated, checkpointed and tested between two aggregations: ``"virtual"`` is the
            mean of the circulating models (not fed back), ``"aggregate"`` the server's last model.

    Raises:
        ValueError: If ``redistributions`` is below 1 or ``evaluate`` is unknown.
    """

    keeps_models = True

    def __init__(self, redistributions: int, evaluate: Evaluate = "virtual") -> None:
        check_count("redistributions", redistributions, 1, "1 is FedAvg with uniform weights.")
        check_choice("evaluate", evaluate, ("virtual", "aggregate"))
        self.redistributions = redistributions
        self.evaluate = evaluate
        self.position = 0
        self.num_models = 0
        self.models: dict[int, Tensor] = {}
        self._trained: dict[int, ClientResult] = {}

    @property
    def in_cycle(self) -> bool:
        """Whether the cycle has begun."""
        return self.position > 0

    def open(self, num_slots: int) -> None:
        """Begin an inner round.

        Raises:
            ValueError: If the number of circulating models changed in the middle of a cycle.
        """
        if self.in_cycle and num_slots != self.num_models:
            raise ValueError(
                f"{self.num_models} models circulate since the last aggregation, but {num_slots} clients train now. "
                f"Keep `clients_per_round` as it was for the {self.redistributions - self.position} rounds up to the "
                "next aggregation."
            )
        self.num_models = num_slots

    def start(self, slot: int, server: Server) -> Tensor:
        """Return the circulating model of the slot; the server's model at the start of a cycle."""
        return self.models.get(slot, server.model)

    def receive(self, result: ClientResult, server: Server) -> None:
        """Hold the slot's new model until the round ends."""
        self._trained[result.task.slot] = result

    def close(self, server: Server) -> Tensor:
        """Pass the models on; aggregate them when the cycle is complete."""
        trained, self._trained = self._trained, {}
        self.models = {slot: result.vector for slot, result in trained.items()}
        self.position += 1
        complete = self.position == self.redistributions
        if not complete and self.evaluate == "aggregate":
            return server.model
        for slot in sorted(trained):
            server.aggregation.update(trained[slot])
        mean = server.merge()
        if complete:
            server.move(mean)
            self.reset()
        return server.model if complete or mean is None else mean.to(server.model.dtype)

    def discard(self) -> None:
        """Forget the models of the broken-off round; the circulating ones are as they were."""
        self._trained = {}

    def reset(self) -> None:
        """Begin a cycle."""
        self.position = 0
        self.models = {}
        self._trained = {}

    def state_dict(self, gather: Callable[[dict[int, Tensor]], dict[int, Tensor]]) -> dict[str, Any]:
        """Return the position in the cycle and the circulating models."""
        return {"position": self.position, "num_models": self.num_models, "models": gather(self.models)}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Continue in the middle of a cycle.

        Raises:
            ValueError: If the checkpoint lies further in a cycle than this schedule's S.
        """
        if state["position"] >= self.redistributions:
            raise ValueError(
                f"The checkpoint was written {state['position']} rounds after the last aggregation, but "
                f"`redistributions` is {self.redistributions}. Resume with the value that the run began with."
            )
        self.position = state["position"]
        self.num_models = state["num_models"]
        self.models = {slot: model.to(device) for slot, model in state["models"].items()}
