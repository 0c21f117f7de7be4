"""A federated algorithm: five parts that answer five questions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from fl_lightning.aggregation import WeightedMean
from fl_lightning.federation import ClientResult, Task
from fl_lightning.objectives import LocalObjective
from fl_lightning.sampling import ClientSampler
from fl_lightning.schedules import Schedule, Server
from fl_lightning.seeding import Stream, numpy_generator
from fl_lightning.server import ServerOptimizer


class Algorithm:
    """Composes the parts and keeps the server's state.

    Args:
        sampler: Who trains?
        schedule: From which model, and when does the server act?
        objective: What does a client minimise?
        aggregation: How are results merged?
        server: How does the server move?
    """

    def __init__(
        self,
        *,
        sampler: ClientSampler,
        schedule: Schedule,
        aggregation: WeightedMean,
        server: ServerOptimizer,
        objective: LocalObjective | None = None,
    ) -> None:
        self.sampler = sampler
        self.schedule = schedule
        self.objective = objective or LocalObjective()
        self.aggregation = aggregation
        self.server_optimizer = server
        self.models_sent = 0
        self._server: Server | None = None
        self._restored: dict[str, Any] | None = None

    @property
    def server(self) -> Server:
        """The server's state.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        if self._server is None:
            raise RuntimeError("The server has no model before `trainer.fit` has begun.")
        return self._server

    def begin(
        self, model: Tensor, num_parameters: int, sum_over_ranks: Callable[[Tensor], Tensor], *, fresh: bool
    ) -> None:
        """Start a fit from the module's weights, or go on from a checkpoint or in the middle of a cycle.

        Args:
            model: The module's state, shape ``(size,)``: parameters first, then buffers.
            num_parameters: Length of the parameters' part.
            sum_over_ranks: Returns the sum of a tensor over all processes.
            fresh: Whether this is the first round of all.

        Raises:
            ValueError: If the checkpoint's models have another size than the module.
        """
        restored, self._restored = self._restored, None
        if restored is None and self._server is not None and not fresh:
            self._server.sum_over_ranks = sum_over_ranks
            if not self.schedule.in_cycle:
                self._server.model = model
            return
        self._server = Server(model, num_parameters, self.aggregation, self.server_optimizer, sum_over_ranks)
        self.schedule.reset()
        self.server_optimizer.reset()
        self.models_sent = 0
        if restored is not None:
            self._restore(restored)

    def plan(self, round_index: int, sizes: np.ndarray, seed: int) -> list[Task]:
        """Draw the clients of a round.

        Args:
            round_index: The round, from 0.
            sizes: Samples of each client, shape ``(K,)``.
            seed: The run's seed; the same seed and round give the same clients.

        Returns:
            One task a slot.

        Raises:
            ValueError: If the number of circulating models would change in the middle of a cycle.
        """
        clients = self.sampler.draw(len(sizes), numpy_generator(seed, Stream.SAMPLING, round_index))
        self.schedule.open(len(clients))
        return [Task(slot, int(client), int(sizes[client])) for slot, client in enumerate(clients)]

    def start(self, task: Task) -> Tensor:
        """Return the model from which the task starts, shape ``(size,)``; not to be written to."""
        return self.schedule.start(task.slot, self.server)

    def receive(self, result: ClientResult) -> None:
        """Take a finished client's result."""
        self.objective.end(result)
        self.schedule.receive(result, self.server)

    def close_round(self, num_tasks: int) -> Tensor:
        """End a round in which ``num_tasks`` clients trained on all processes together.

        Returns:
            The model that the user sees now, shape ``(size,)``.
        """
        self.models_sent += 2 * num_tasks
        return self.schedule.close(self.server)

    def discard_round(self) -> None:
        """Forget the results of a round that was broken off."""
        self.aggregation.reset()
        self.schedule.discard()

    def state_dict(self, gather: Callable[[dict[int, Tensor]], dict[int, Tensor]]) -> dict[str, Any]:
        """Return the state at the last round boundary, for a checkpoint.

        Args:
            gather: Joins a mapping from slots to models over all processes.
        """
        if self._server is None:
            return {}
        return {
            "model": self._server.model,
            "aggregations": self._server.aggregations,
            "models_sent": self.models_sent,
            "schedule": self.schedule.state_dict(gather),
            "server_optimizer": self.server_optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a checkpoint's state until the fit begins."""
        self._restored = state

    def _restore(self, state: dict[str, Any]) -> None:
        server = self.server
        saved: Tensor = state["model"]
        if saved.shape != server.model.shape:
            raise ValueError(
                f"The checkpoint's server model has {saved.numel()} values, the module {server.model.numel()}. Resume "
                "with the same module, with the same layers frozen."
            )
        server.model = saved.to(device=server.model.device, dtype=server.model.dtype)
        server.aggregations = state["aggregations"]
        self.models_sent = state["models_sent"]
        self.schedule.load_state_dict(state["schedule"], server.model.device)
        self.server_optimizer.load_state_dict(state["server_optimizer"], server.model.device)
