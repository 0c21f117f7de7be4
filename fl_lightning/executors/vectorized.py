"""Many clients at once: their models stacked, their training steps mapped over the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.arguments import check_count
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.executors.base import CannotVectorize, Executor
from fl_lightning.executors.sequential import SequentialExecutor
from fl_lightning.executors.stacked.batching import windows
from fl_lightning.executors.stacked.corrections import StackedCorrections
from fl_lightning.executors.stacked.fused import FusedStep
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.memory import clients_that_fit
from fl_lightning.executors.stacked.optimizer import StackedOptimizer, check_elementwise
from fl_lightning.executors.stacked.sources import make_source
from fl_lightning.executors.stacked.stack import ModelStack
from fl_lightning.executors.stacked.timing import StepTiming
from fl_lightning.executors.stacked.training import StackTraining, Steps
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Task
from fl_lightning.parts.objectives import Correction


@dataclass
class _Member:
    """A client of a stack."""

    task: Task
    client: ClientAtWork
    correction: Correction | None
    windows: list[int]


class VectorizedExecutor(Executor):
    """Trains several clients at once; falls back to one after the other, with one message, where that cannot be.

    Args:
        clients_at_once: Models in a stack at most; ``None`` for as many as fit.
    """

    def __init__(self, clients_at_once: int | None = None) -> None:
        check_count("clients_at_once", 1 if clients_at_once is None else clients_at_once)
        self._clients_at_once = clients_at_once
        self._sequential = SequentialExecutor()
        #: Why clients are trained one after the other; ``None`` while they are not.
        self.cause: str | None = None

    def on_fit_start(self, clients: LocalTraining, algorithm: Algorithm) -> None:
        """Prepare the steps of a fit's module."""
        self._clients = clients
        stacked = StackedLoop(clients.loop, clients.corrector)
        self._steps = Steps(stacked, MappedStep(stacked, clients.vector), FusedStep(stacked, clients.vector))
        self._checked = False
        self.cause = None

    def run(self, tasks: Sequence[Task], clients: LocalTraining, algorithm: Algorithm) -> None:
        """Train the clients of the tasks and give each result to the algorithm."""
        for chunk in self._chunks(tasks):
            if self.cause is None:
                try:
                    self.check(chunk[0], algorithm)
                    self._train(chunk, algorithm)
                    continue
                except CannotVectorize as error:
                    self.cause = str(error)
                    rank_zero_info(f"Clients are trained one after the other, not vectorised: {error}.")
            self._sequential.run(chunk, clients, algorithm)

    def check_statically(self) -> None:
        """Raise ``CannotVectorize`` for what can be told without trying."""
        self._steps.stacked.check()
        check_elementwise(self._clients.trainer.optimizers[0])

    def check(self, task: Task, algorithm: Algorithm) -> None:
        """Raise ``CannotVectorize`` if clients cannot be trained at once; the first call tries it out."""
        if self._checked:
            return
        self.check_statically()
        self._steps.mapped.check(algorithm.start(task), self._first_batch(task))
        self._checked = True

    @property
    def draws(self) -> bool:
        """Whether the module draws random numbers when it trains, known after :meth:`check`."""
        return self._steps.mapped.draws

    def timing(self, tasks: Sequence[Task]) -> StepTiming:
        """Return steps to measure, of a stack as large as these tasks'."""
        number = len(next(self._chunks(tasks)))
        return StepTiming(self._clients, self._steps, self._first_batch(tasks[0]), number)

    def _first_batch(self, task: Task) -> Any:
        return self._steps.stacked.transfer(next(self._clients.batches.of(task)))

    def _chunks(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Yield tasks that train at once: of one round, whose learning rates they share, and of like lengths."""
        rounds: dict[int, list[Task]] = {}
        for task in tasks:
            rounds.setdefault(task.round, []).append(task)
        for members in rounds.values():
            most = self._clients_at_once or clients_that_fit(self._clients, members)
            if len(members) > most:
                members.sort(key=lambda task: (-self._clients.batches.number(task), task.slot))
            for start in range(0, len(members), most):
                yield members[start : start + most]

    # ---- one stack ----

    def _train(self, tasks: Sequence[Task], algorithm: Algorithm) -> None:
        clients = self._clients
        clients.loop.stop_if_terminated()
        clients.loop.on_client_start(tasks[0].round)
        clients.loop.show_client(len(tasks), len(tasks))
        members = self._members(tasks, algorithm)
        ordered, starts = [member.task for member in members], [member.client.start for member in members]
        stack = ModelStack(clients.vector, starts)
        corrections = StackedCorrections([member.correction for member in members], starts, clients.vector)
        optimizer = StackedOptimizer(clients.trainer.optimizers[0], clients.vector.parameters)
        stacked = self._steps.stacked
        source = make_source(clients, ordered, stacked.transfer, stacked.transfers_plainly)
        lengths = [member.windows for member in members]
        training = StackTraining(clients, self._steps, stack, lengths, source, corrections, optimizer)
        clients.seed(tasks[0])
        self._hand_in(members, stack, training.run(), algorithm)

    def _members(self, tasks: Sequence[Task], algorithm: Algorithm) -> list[_Member]:
        """Return the stack's clients, longest first."""
        clients = self._clients
        accumulate = int(clients.trainer.accumulate_grad_batches)
        members: list[_Member] = []
        held: Tensor | None = None
        for task in tasks:
            start = algorithm.start(task)
            if start is not held:
                clients.vector.write(start)
                held = start
            client, correction = clients.start(task, start)
            steps = windows(clients.batches.number(task), clients.batches.one_pass(task), accumulate)
            members.append(_Member(task, client, correction, steps))
        size = clients.data.batch_size

        def order(member: _Member) -> tuple[int, int, int]:
            # among clients of equal lengths, those whose last batches have one size are neighbours
            n = member.task.num_samples
            return -len(member.windows), 0 if size is None else -((n - 1) % size), member.task.slot

        return sorted(members, key=order)

    def _hand_in(
        self, members: list[_Member], stack: ModelStack, summed: list[list[float]], algorithm: Algorithm
    ) -> None:
        """Give the algorithm each client's model, in the order of slots."""
        clients, vector_of = self._clients, stack.vectors()
        watched = clients.is_watched
        for row in sorted(range(len(members)), key=lambda row: members[row].task.slot):
            member, model = members[row], vector_of(row)
            if watched:
                clients.vector.write(model)
            algorithm.receive(clients.finish(member.client, model, len(member.windows), summed[row]))
