"""Many clients at once: their models stacked, their training steps mapped over the stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor

from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.algorithm import Algorithm
from fl_lightning.executors.batching import StackedBatch, by_shape, select, windows
from fl_lightning.executors.errors import CannotVectorize
from fl_lightning.executors.mapped import MappedStep
from fl_lightning.executors.optimizer import StackedOptimizer, check_elementwise, clip
from fl_lightning.executors.sequential import SequentialExecutor, TrainClient
from fl_lightning.executors.stack import ModelStack
from fl_lightning.executors.terms import StackedTerms
from fl_lightning.federation import Task
from fl_lightning.seeding import Stream, seed_global_generators
from fl_lightning.vector import unshared

if TYPE_CHECKING:
    from fl_lightning.loop import ClientAtWork, FederatedLoop


Group = tuple[list[int], list[Any]]
Renewed = list[tuple[list[int], list[Tensor]]]


@dataclass
class _Member:
    """A client of a stack: its batches, and how many of them each of its optimizer steps takes."""

    task: Task
    client: ClientAtWork
    batches: Iterator[Any]
    windows: list[int]
    tail: int


class VectorizedExecutor:
    """Trains several clients at once; falls back to one after the other, with one message, where that cannot be.

    Args:
        loop: The loop, at the beginning of a fit.
        clients_at_once: Models in a stack at most; ``None`` for as many as fit.
    """

    def __init__(self, loop: FederatedLoop, clients_at_once: int | None = None) -> None:
        self._loop = loop
        self._stacked = StackedLoop(loop.epoch_loop)
        self._sequential = SequentialExecutor()
        self._step = MappedStep(self._stacked, loop.vector)
        self._clients_at_once = clients_at_once
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
                    self.check(chunk, algorithm)
                    self._train(chunk, algorithm)
                    continue
                except CannotVectorize as error:
                    self.cause = str(error)
                    rank_zero_info(f"Clients are trained one after the other, not vectorised: {error}.")
            self._sequential.run(chunk, algorithm, train_client)

    def check(self, tasks: Sequence[Task], algorithm: Algorithm) -> None:
        """Raise ``CannotVectorize`` if clients cannot be trained at once; the first call tries it out."""
        if self._checked:
            return
        self._stacked.check()
        check_elementwise(self._loop.trainer.optimizers[0])
        batch = self._stacked.transfer(next(self._loop.batches(tasks[0])))
        self._step.check(algorithm.start(tasks[0]), batch)
        self._checked = True

    def _chunks(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """Yield tasks that train at once: of one round, whose learning rates they share, and of like lengths."""
        rounds: dict[int, list[Task]] = {}
        for task in tasks:
            rounds.setdefault(task.round, []).append(task)
        most = self._clients_at_once or 1_000_000
        for members in rounds.values():
            if len(members) > most:
                members.sort(key=lambda task: -self._loop.num_batches(task))
            for start in range(0, len(members), most):
                yield members[start : start + most]

    # ---- one stack ----

    def _train(self, tasks: Sequence[Task], algorithm: Algorithm) -> None:
        loop = self._loop
        loop.stop_if_terminated()
        loop.epoch_loop.begin_client(tasks[0].round)
        loop.show_client(len(tasks), len(tasks))
        members, starts, corrections = self._begin(tasks, algorithm)
        stack = ModelStack(loop.vector, starts)
        terms = StackedTerms(corrections, starts, loop.vector)
        optimizer = StackedOptimizer(loop.trainer.optimizers[0], loop.vector.parameters)
        optimizer.attach(stack.parameters)
        decays = optimizer.add_weight_decay(terms.weight_decays) if any(terms.weight_decays) else None
        seed_global_generators(loop.callback.seed, Stream.CLIENT, *tasks[0].seeds)
        summed = self._steps(members, stack, terms, optimizer, decays)
        self._hand_in(members, stack, summed, algorithm)

    def _begin(self, tasks: Sequence[Task], algorithm: Algorithm) -> tuple[list[_Member], list[Tensor], list[Any]]:
        """Return the members, longest first, the models that they start from and their corrections."""
        loop, held = self._loop, None
        members, starts, corrections = [], {}, {}
        for task in tasks:
            start = algorithm.start(task)
            if start is not held:
                loop.vector.write(start)
                held = start
            client = loop.at_work(task, start)
            corrections[task.slot] = loop.callback.correction(client)
            number, one_pass = loop.num_batches(task), loop.one_pass(task)
            steps = windows(number, one_pass, int(loop.trainer.accumulate_grad_batches))
            tail = (task.num_samples - 1) % (loop.data.batch_size or task.num_samples)
            batches = map(self._stacked.transfer, islice(loop.batches(task), number))
            members.append(_Member(task, client, batches, steps, tail))
            starts[task.slot] = start
        members.sort(key=lambda member: (-len(member.windows), -member.tail, member.task.slot))
        slots = [member.task.slot for member in members]
        return members, [starts[slot] for slot in slots], [corrections[slot] for slot in slots]

    def _steps(
        self,
        members: list[_Member],
        stack: ModelStack,
        terms: StackedTerms,
        optimizer: StackedOptimizer,
        decays: Tensor | None,
    ) -> list[list[float]]:
        """Take all optimizer steps; return each client's summed learning rates, if they are asked for."""
        loop = self._loop
        trainer, schedules = loop.trainer, loop.epoch_loop.optimizers
        counts_lr = loop.callback.algorithm.objective.needs_summed_lr
        so_far = [0.0] * len(stack.parameters)
        summed: list[list[float]] = [[] for _ in members]
        for step in range(len(members[0].windows)):
            active = sum(len(member.windows) > step for member in members)
            if stack.keep(active):
                optimizer.attach(stack.parameters)
            loop.stop_if_terminated()
            gradients = self._gradients(members[:active], step, stack)
            if terms or trainer.gradient_clip_val:
                gradients = unshared(gradients)
            if terms:
                terms.correct(stack.parameters, gradients)
            if trainer.gradient_clip_val:
                present = [gradient for gradient in gradients if gradient is not None]
                clip(present, float(trainer.gradient_clip_val), trainer.gradient_clip_algorithm)
            if decays is not None:
                terms.decay(stack.parameters, gradients, decays)
            if counts_lr:
                so_far = [a + b for a, b in zip(so_far, optimizer.learning_rates(gradients), strict=True)]
                for row in range(active):
                    summed[row] = so_far
            optimizer.step(stack.parameters, gradients)
            if schedules.by_step:
                schedules.step_in_client(step + 1)
                optimizer.refresh()
        return summed

    def _gradients(self, members: list[_Member], step: int, stack: ModelStack) -> list[Tensor | None]:
        """Return the gradients of one optimizer step, after telling Lightning what was logged."""
        accumulate = int(self._loop.trainer.accumulate_grad_batches)
        total: list[Tensor | None] = [None] * len(stack.parameters)
        batches, losses = 0, torch.zeros(())
        for micro in range(max(member.windows[step] for member in members)):
            taking = [row for row, member in enumerate(members) if member.windows[step] > micro]
            index = sum(members[0].windows[:step]) + micro
            drawn = [(row, next(members[row].batches)) for row in taking]
            self._stacked.begin_step()
            renewed: Renewed = []
            losses = self._losses(stack, by_shape(drawn), index, renewed)
            scaled = losses / accumulate if accumulate > 1 else losses
            gradients = torch.autograd.grad(scaled, stack.parameters, allow_unused=True)
            for rows, after in renewed:
                stack.renew_buffers(rows, after)
            if micro == 0:
                total = list(gradients)
            else:
                total = [b if a is None else (a if b is None else a + b) for a, b in zip(total, gradients, strict=True)]
            batches += len(taking)
        self._stacked.end_step(batches, len(members), losses.detach() / len(taking))
        return total

    def _losses(self, stack: ModelStack, groups: list[Group], index: int, renewed: Renewed) -> Tensor:
        """Return the sum of the clients' losses on their next batches, one pass for each shape of batch.

        Args:
            stack: The models.
            groups: Rows of the stack whose batches have one shape, and the batches.
            index: The batches' position in the clients' local training.
            renewed: Takes the groups' rows and their buffers after the pass.
        """
        total: Tensor | None = None
        for rows, batches in groups:
            batch = StackedBatch(batches)
            parameters = [select(parameter, rows) for parameter in stack.parameters]
            # the backward pass wants buffers as the forward pass left them: those of a part are put back after it
            whole = len(rows) == stack.active
            buffers = stack.buffers if whole else [select(buffer, rows).clone() for buffer in stack.buffers]
            losses, logged, values, after = self._step(parameters, buffers, batch, index)
            renewed.append((rows, after))
            self._stacked.log(logged, values, batch.first)
            total = losses.sum() if total is None else total + losses.sum()
        assert total is not None
        return total

    def _hand_in(
        self, members: list[_Member], stack: ModelStack, summed: list[list[float]], algorithm: Algorithm
    ) -> None:
        """Give the algorithm each client's model, in the order of slots."""
        loop = self._loop
        watched = loop.callback.watches_clients(loop.trainer)
        for row in sorted(range(len(members)), key=lambda row: members[row].task.slot):
            vector = stack.vector_of(row)
            if watched:
                loop.vector.write(vector)
            steps = len(members[row].windows)
            algorithm.receive(loop.callback.finish_client(members[row].client, vector, steps, summed[row]))
