"""Many clients at once: their models stacked, their training steps mapped over the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.executors.errors import CannotVectorize
from fl_lightning.executors.sequential import SequentialExecutor, TrainClient
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
from fl_lightning.seeding import Stream, seed_global_generators

if TYPE_CHECKING:
    from fl_lightning.loop import ClientAtWork, FederatedLoop


@dataclass
class _Member:
    """A client of a stack."""

    task: Task
    client: ClientAtWork
    correction: Correction | None
    windows: list[int]


class VectorizedExecutor:
    """Trains several clients at once; falls back to one after the other, with one message, where that cannot be.

    Args:
        loop: The loop, at the beginning of a fit.
        clients_at_once: Models in a stack at most; ``None`` for as many as fit.
    """

    def __init__(self, loop: FederatedLoop, clients_at_once: int | None = None) -> None:
        self._loop = loop
        self._clients_at_once = clients_at_once
        self._sequential = SequentialExecutor()
        stacked = StackedLoop(loop.epoch_loop)
        self._steps = Steps(stacked, MappedStep(stacked, loop.vector), FusedStep(stacked, loop.vector))
        self._checked = False
        #: Why clients are trained one after the other; ``None`` while they are not.
        self.cause: str | None = None

    def run(self, tasks: Sequence[Task], algorithm: Algorithm, train_client: TrainClient) -> None:
        """Train the clients of ``tasks`` and push each result to the algorithm.

        Args:
            tasks: This process's tasks.
            algorithm: Gives the start models and takes the results.
            train_client: Trains one client from a start model, for a fallback.
        """
        for chunk in self._chunks(tasks):
            if self.cause is None:
                try:
                    self.check(chunk[0], algorithm)
                    self._train(chunk, algorithm)
                    continue
                except CannotVectorize as error:
                    self.cause = str(error)
                    rank_zero_info(f"Clients are trained one after the other, not vectorised: {error}.")
            self._sequential.run(chunk, algorithm, train_client)

    def check_statically(self) -> None:
        """Raise ``CannotVectorize`` for what can be told without trying."""
        self._steps.stacked.check()
        check_elementwise(self._loop.trainer.optimizers[0])

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

    def trial(self, tasks: Sequence[Task]) -> StepTiming:
        """Return steps to measure, of a stack as large as these tasks'."""
        number = len(next(self._chunks(tasks)))
        return StepTiming(self._loop, self._steps, self._first_batch(tasks[0]), number)

    def _first_batch(self, task: Task) -> Any:
        return self._steps.stacked.transfer(next(self._loop.batches(task)))

    def _chunks(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Yield tasks that train at once: of one round, whose learning rates they share, and of like lengths."""
        rounds: dict[int, list[Task]] = {}
        for task in tasks:
            rounds.setdefault(task.round, []).append(task)
        for members in rounds.values():
            most = self._clients_at_once or clients_that_fit(self._loop, members)
            if len(members) > most:
                members.sort(key=lambda task: (-self._loop.num_batches(task), task.slot))
            for start in range(0, len(members), most):
                yield members[start : start + most]

    # ---- one stack ----

    def _train(self, tasks: Sequence[Task], algorithm: Algorithm) -> None:
        loop = self._loop
        loop.stop_if_terminated()
        loop.epoch_loop.begin_client(tasks[0].round)
        loop.show_client(len(tasks), len(tasks))
        members = self._members(tasks, algorithm)
        ordered, starts = [member.task for member in members], [member.client.start for member in members]
        stack = ModelStack(loop.vector, starts)
        terms = StackedCorrections([member.correction for member in members], starts, loop.vector)
        optimizer = StackedOptimizer(loop.trainer.optimizers[0], loop.vector.parameters)
        stacked = self._steps.stacked
        source = make_source(loop, ordered, stacked.transfer, stacked.transfers_plainly)
        lengths = [member.windows for member in members]
        training = StackTraining(loop, self._steps, stack, lengths, source, terms, optimizer)
        seed_global_generators(loop.callback.seed, Stream.CLIENT, *tasks[0].seeds)
        self._hand_in(members, stack, training.run(), algorithm)

    def _members(self, tasks: Sequence[Task], algorithm: Algorithm) -> list[_Member]:
        """Return the stack's clients, longest first."""
        loop = self._loop
        accumulate = int(loop.trainer.accumulate_grad_batches)
        members: list[_Member] = []
        held: Tensor | None = None
        for task in tasks:
            start = algorithm.start(task)
            if start is not held:
                loop.vector.write(start)
                held = start
            client = loop.at_work(task, start)
            steps = windows(loop.num_batches(task), loop.one_pass(task), accumulate)
            members.append(_Member(task, client, loop.callback.correction(client), steps))
        size = loop.data.batch_size

        def order(member: _Member) -> tuple[int, int, int]:
            # among clients of equal lengths, those whose last batches have one size are neighbours
            n = member.task.num_samples
            return -len(member.windows), 0 if size is None else -((n - 1) % size), member.task.slot

        return sorted(members, key=order)

    def _hand_in(
        self, members: list[_Member], stack: ModelStack, summed: list[list[float]], algorithm: Algorithm
    ) -> None:
        """Give the algorithm each client's model, in the order of slots."""
        callback, vector = self._loop.callback, self._loop.vector
        watched, vector_of = callback.watches_clients(self._loop.trainer), stack.vectors()
        for row in sorted(range(len(members)), key=lambda row: members[row].task.slot):
            member, model = members[row], vector_of(row)
            if watched:
                vector.write(model)
            algorithm.receive(callback.finish_client(member.client, model, len(member.windows), summed[row]))
