"""A federated algorithm: five parts that answer five questions."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import check_choice
from fl_lightning.parts.aggregation import Aggregation
from fl_lightning.parts.exchange.buffers import BufferPolicy
from fl_lightning.parts.federation import ClientResult, Federation, LocalClient, Part, Task
from fl_lightning.parts.objectives import Correction, LocalObjective
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.sampling import ClientSampler
from fl_lightning.parts.schedules import Schedule, Server
from fl_lightning.parts.server_optimizers import ServerOptimizer
from fl_lightning.parts.traffic import RoundReport, Traffic
from fl_lightning.seeding import Stream, numpy_generator

Invalid = Literal["skip", "raise"]


class Algorithm:
    """Composes the parts and keeps the server's state.

    Args:
        sampler: Who trains?
        schedule: From which model, and when does the server act?
        objective: What does a client minimise?
        aggregation: How are results merged?
        server: How does the server move?

    Raises:
        ValueError: If the objective needs all clients of a round to start from the server's model, and the schedule
            lets models circulate.
    """

    def __init__(
        self,
        *,
        sampler: ClientSampler,
        schedule: Schedule,
        aggregation: Aggregation,
        server: ServerOptimizer,
        objective: LocalObjective | None = None,
    ) -> None:
        self.sampler = sampler
        self.schedule = schedule
        self.objective = objective or LocalObjective()
        self.aggregation = aggregation
        self.server_optimizer = server
        self.participation = Participation()
        self.buffers = BufferPolicy("average")
        self.invalid_updates: Invalid = "skip"
        self.traffic = Traffic()
        self.report = RoundReport()
        self._server: Server | None = None
        self._federation: Federation | None = None
        self._published: Tensor | None = None
        self._restored: dict[str, Any] | None = None
        self._tasks: list[Task] = []
        self._dropped = 0
        self._mine: dict[int, tuple[int, float | None]] = {}  # slot -> client, score
        self._failed: list[int] = []

    def configure(self, participation: Participation | None, buffers: BufferPolicy, invalid_updates: Invalid) -> None:
        """Take the settings that all algorithms share, and check that the parts fit together."""
        check_choice("invalid_updates", invalid_updates, ("skip", "raise"))
        self.participation = participation or Participation()
        self.buffers, self.invalid_updates = buffers, invalid_updates
        if self.objective.starts_from_server and self.schedule.keeps_models:
            raise ValueError(
                f"{type(self.objective).__name__} cannot be the local objective of circulating models: its clients' "
                "states are differences to the server's model, from which only the first inner round starts. Use "
                "`Proximal(mu)` with RADFed, or FedDyn and Scaffold without redistribution."
            )

    @property
    def server(self) -> Server:
        """The server's state.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        if self._server is None:
            raise RuntimeError("The server has no model before `trainer.fit` has begun.")
        return self._server

    @property
    def models_sent(self) -> int:
        """Models sent up and down since the fit began."""
        return self.traffic.models_down + self.traffic.models_up

    @property
    def _parts(self) -> dict[str, Part]:
        return {
            "sampler": self.sampler,
            "schedule": self.schedule,
            "objective": self.objective,
            "aggregation": self.aggregation,
            "server_optimizer": self.server_optimizer,
            "buffers": self.buffers,
        }

    @property
    def client_states(self) -> bool:
        """Whether clients keep vectors between rounds; a client then belongs to one process."""
        holders = (self.objective, self.aggregation, self.schedule, self.buffers)
        return any(holder.states is not None for holder in holders)

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the last synchronous round, those of clients that dropped out left out."""
        return self._tasks

    # ---- a fit ----

    def begin(self, federation: Federation, *, fresh: bool) -> None:
        """Start a fit from the module's weights, or go on from a checkpoint or from an earlier fit.

        Args:
            federation: The run.
            fresh: Whether this is the first round of all.

        Raises:
            ValueError: If the checkpoint's models have another size than the module, or clients that keep vectors
                would have to be on two processes.
        """
        restored, self._restored = self._restored, None
        if restored is None and self._server is not None and not fresh:
            known = self._published is not None and torch.equal(self._published, federation.model)
            if not known and not self.schedule.in_cycle:
                self._server.model = federation.model
            return
        self._federation = federation
        self._server = Server(federation.model, federation.num_parameters, self.aggregation, self.server_optimizer)
        for part in self._parts.values():
            part.begin(federation)
        self.traffic = Traffic()
        if federation.num_ranks > 1 and self.schedule.keeps_models and self.client_states:
            raise ValueError(
                '`buffers="local"` with circulating models needs one process: a model and the buffers of the client '
                f"that it visits may lie on different ones; there are {federation.num_ranks}. Use devices=1."
            )
        if restored is not None:
            self._restore(restored)

    def owner(self, task: Task, num_ranks: int) -> int | None:
        """Return the process to which a task belongs because of what is kept there; ``None`` if any will do."""
        if self.schedule.keeps_models:
            return task.slot % num_ranks
        return task.client % num_ranks if self.client_states else None

    # ---- a round ----

    def plan(self, round_index: int, sizes: np.ndarray, seed: int, full_work: int = 1) -> list[Task] | int:
        """Draw the clients of a round.

        Args:
            round_index: The round, from 0.
            sizes: Samples of each client, shape ``(K,)``.
            seed: The run's seed; the same seed and round give the same clients.
            full_work: Local epochs (or steps) of a client that does all.

        Returns:
            One task for each client that reports; or about how many there will be, if they are not known yet.

        Raises:
            ValueError: If the number of circulating models would change in the middle of a cycle.
        """
        for part in self._parts.values():
            part.begin_round(round_index)
        rng = numpy_generator(seed, Stream.SAMPLING, round_index)
        chances = numpy_generator(seed, Stream.PARTICIPATION, round_index)
        available = self.participation.reachable(round_index, len(sizes), chances)
        drawn = self.sampler.draw(len(sizes), rng, available)
        clients, work = self.participation.outcome(drawn, full_work, chances)
        slots = self.schedule.open(len(clients), self.sampler.cohort_size(len(sizes)), rng)
        self._tasks = [
            Task(slot, int(client), int(sizes[client]), part, round_index)
            for slot, client, part in zip(slots, clients, work, strict=False)
        ]
        self._dropped = len(drawn) - len(clients)
        return self._tasks

    def batches(self) -> Iterator[list[Task]]:
        """Yield the round's tasks, in groups whose results must be there before the next group is known."""
        yield self._tasks

    def start(self, task: Task) -> Tensor:
        """Return the model from which the task starts, shape ``(size,)``; not to be written to."""
        return self.buffers.start(task, self.schedule.start(task.slot, self.server), self.server.model)

    def correction(self, client: LocalClient) -> Correction | None:
        """Return what the local objective adds to F_k."""
        return self.objective.correction(client)

    def receive(self, result: ClientResult) -> None:
        """Take a finished client's result; one with NaN or infinite values is left out.

        Raises:
            FloatingPointError: If there are such values and ``invalid_updates`` is ``"raise"``.
        """
        task = result.task
        if not is_finite(result.vector):
            self._raise_if_asked(task)
            self._failed.append(task.slot)
            return
        result = self.buffers.receive(result, self.server.model)
        self.objective.end(result)
        self.schedule.receive(result, self.server)
        self._mine[task.slot] = task.client, result.score

    def _raise_if_asked(self, task: Task) -> None:
        if self.invalid_updates == "raise":
            raise FloatingPointError(
                f"Client {task.client} ({task.num_samples} samples) handed back NaN or infinite values. Lower the "
                'learning rate or clip gradients, or give `invalid_updates="skip"` to leave such clients out.'
            )

    def close_round(self) -> Tensor:
        """End the round.

        Returns:
            The model that the user sees now, shape ``(size,)``.
        """
        assert self._federation is not None
        shares = self._federation.gather((self._mine, self._failed))
        done = dict(sorted(item for mine, _ in shares for item in mine.items()))
        failed = sorted(slot for _, slots in shares for slot in slots)
        by_slot = {task.slot: task.client for task in self._tasks}
        self.report = RoundReport(
            [client for client, _ in done.values()], self._dropped, [by_slot[slot] for slot in failed]
        )
        self._count_traffic()
        self.sampler.take_scores({client: score for client, score in done.values() if score is not None})
        self.buffers.close()
        self.objective.close()
        self._published = self.schedule.close(self.server, failed)
        self._mine, self._failed = {}, []
        return self._published

    def _count_traffic(self) -> None:
        server, each = self.server, self.objective.vectors_sent
        values = len(server.model) + (each - 1) * server.num_parameters
        down, up = len(self._tasks) + self._dropped, len(self._tasks)
        self.traffic.models_down += each * down
        self.traffic.models_up += each * up
        self.traffic.values_down += values * down
        self.traffic.values_up += (values + int(self.sampler.needs_scores)) * up

    def rounds_under_way(self) -> Collection[int]:
        """Return the earlier rounds on whose models clients have yet to be trained."""
        return ()

    def values(self) -> dict[str, float]:
        """Return what the round logs beside its clients and cost."""
        return {}

    def discard_round(self) -> None:
        """Forget the results of a round that was broken off."""
        self._mine, self._failed = {}, []
        for part in self._parts.values():
            part.discard()

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """Return the state at the last round boundary, for a checkpoint; call it on all processes."""
        if self._server is None:
            return {}
        return {
            "model": self._server.model,
            "aggregations": self._server.aggregations,
            "traffic": vars(self.traffic).copy(),
            **{name: part.state_dict() for name, part in self._parts.items()},
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
        self.traffic = Traffic(**state["traffic"])
        for name, part in self._parts.items():
            part.load_state_dict(state[name])


def is_finite(vector: Tensor) -> bool:
    """Return whether a vector has neither NaN nor infinite values."""
    # one sum is cheaper than a test of every value; only if it overflowed is each looked at
    return math.isfinite(vector.sum().item()) or bool(torch.isfinite(vector).all())
