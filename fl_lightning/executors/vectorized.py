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
from fl_lightning.executors.stacked.memory import clients_that_fit, memory_budget
from fl_lightning.executors.stacked.optimizer import StackedOptimizer, check_elementwise
from fl_lightning.executors.stacked.snapshot import preserved_generators
from fl_lightning.executors.stacked.sources import make_source
from fl_lightning.executors.stacked.stack import ModelStack
from fl_lightning.executors.stacked.timing import StepTiming
from fl_lightning.executors.stacked.training import StackTraining, Steps
from fl_lightning.executors.stacked.trial import Trial
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Task
from fl_lightning.parts.objectives import Correction

_WITNESSES = 2  # clients that are trained both ways, at least
_MOST_WITNESSES = 8
_STEPS = 4  # that show whether a later step depends on an earlier one


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
        self._proven = False
        self._budget: float | None = None

    def reset(self) -> None:
        """Forget the trial's verdict and the memory of stacks."""
        self.cause, self._proven, self._budget = None, False, None

    def on_fit_start(self, clients: LocalTraining, algorithm: Algorithm) -> None:
        """Prepare the steps of a fit's module."""
        self._clients = clients
        stacked = StackedLoop(clients.loop, clients.corrector)
        self._steps = Steps(stacked, MappedStep(stacked, clients.vector), FusedStep(stacked, clients.vector))
        self._trial: Trial | None = None
        self._checked = False

    def state_dict(self) -> dict[str, Any]:
        """Return the trial's verdict and the memory of stacks, which decide on roundings."""
        return {"cause": self.cause, "proven": self._proven, "budget": self._budget}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the verdict of a checkpoint's run."""
        self.cause, self._proven = state.get("cause"), state.get("proven", False)
        self._budget = state.get("budget")

    def run(self, tasks: Sequence[Task], clients: LocalTraining, algorithm: Algorithm) -> None:
        """Train the clients of the tasks and give each result to the algorithm."""
        rest = list(tasks)
        if self.cause is None and not self._proven:
            rest = self._prove(rest, algorithm)
        for chunk in self._chunks(rest):
            if self.cause is None:
                try:
                    self._train(chunk, algorithm)
                    continue
                except CannotVectorize as error:
                    self._give_up(str(error))
            self._sequential.run(chunk, clients, algorithm)

    def _prove(self, tasks: list[Task], algorithm: Algorithm) -> list[Task]:
        """Train some of the clients both ways; return the others."""
        if len(tasks) < _WITNESSES:
            self._sequential.run(tasks, self._clients, algorithm)
            return []
        done: list[Task] = []
        try:
            self.check(tasks[0], algorithm)
            if not self.draws:
                done = self._witnesses(tasks)
                assert self._trial is not None
                self._trial.train(done, algorithm)
                self._trial.compare()
            self._proven = True
        except CannotVectorize as error:
            self._give_up(str(error))
        except Exception as error:
            if not done or self._trial is None or not self._trial.trained:
                raise  # in earnest: it would be raised without a trial, too
            self._give_up(f"a client's training fails on stacked models ({type(error).__name__})")
        self.forget_trial()
        return [task for task in tasks if task not in done]

    def _witnesses(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the first clients, in their order, so many that two of them make several steps."""
        together = [task for task in tasks if task.round == tasks[0].round]
        numbers = [self._clients.batches.number(task) for task in together]
        several = min(_STEPS, max(numbers))
        long = [place for place, number in enumerate(numbers) if number >= several]
        last = long[_WITNESSES - 1] if len(long) >= _WITNESSES else long[0]
        return together[: min(max(last + 1, _WITNESSES), _MOST_WITNESSES)]

    def _give_up(self, cause: str) -> None:
        self.cause = cause
        rank_zero_info(f"Clients are trained one after the other, not vectorised: {cause}.")

    def check_statically(self) -> None:
        """Raise ``CannotVectorize`` for what can be told without trying."""
        self._steps.stacked.check()
        check_elementwise(self._clients.trainer.optimizers[0])

    def check(self, task: Task, algorithm: Algorithm) -> None:
        """Raise ``CannotVectorize`` if a step of several clients fails, or has other gradients, on a copy."""
        if self._checked or self._proven:
            return
        self.check_statically()
        self._trial = self._trial or Trial(self._clients)
        start, batch = algorithm.start(task), self._first_batch(task)
        try:
            self._trial.steps.mapped.check(start, batch)
        except CannotVectorize:
            raise
        except Exception as error:  # an error of the user's own is raised again in earnest
            raise CannotVectorize(f"`training_step` fails on stacked models ({type(error).__name__})") from error
        self._checked = True

    def forget_trial(self) -> None:
        """Free the copy of the module."""
        self._trial = None

    @property
    def draws(self) -> bool:
        """Whether the module draws random numbers when it trains, known after :meth:`check`."""
        return self._trial is not None and self._trial.steps.mapped.draws

    def timing(self, tasks: Sequence[Task]) -> StepTiming:
        """Return steps to measure, of a stack as large as these tasks'."""
        self._trial = Trial(self._clients)
        models = len(next(self._chunks(tasks)))
        return StepTiming(self._trial.copy, self._trial.steps, self._first_batch(tasks[0]), models)

    def _first_batch(self, task: Task) -> Any:
        with preserved_generators():
            return self._steps.stacked.transfer(next(self._clients.batches.of(task)))

    def _chunks(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Yield tasks that train at once: of one round, whose learning rates they share, and of like lengths."""
        rounds: dict[int, list[Task]] = {}
        for task in tasks:
            rounds.setdefault(task.round, []).append(task)
        for members in rounds.values():
            if self._budget is None:
                self._budget = memory_budget(self._clients)
            most = self._clients_at_once or clients_that_fit(self._clients, members, self._budget)
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
        stacked.begin_stack([task.slot for task in ordered])
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
