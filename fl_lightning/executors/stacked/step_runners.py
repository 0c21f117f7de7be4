"""The two ways in which a training step runs on a stack, and the trials of what is new in a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.recording import Logged
from fl_lightning._lightning.stacked_loop import StackedLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import StackedBatch, select
from fl_lightning.executors.stacked.decisions import BrokenOff, Decisions, Tried, at
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.program.maker import ProgramMaker
from fl_lightning.executors.stacked.randomness import ClientGenerators
from fl_lightning.executors.stacked.stack import ModelStack
from fl_lightning.executors.stacked.trials.rehearsal import Rehearsal


@dataclass
class Example:
    """A client of whom one step is compared.

    Attributes:
        seed: Seeds the global generators for it.
        model: Its weights, shape ``(size,)``.
        batch: A batch.
        index: The batch's position in the client's local training.
    """

    seed: Callable[[], None]
    model: Tensor
    batch: Any
    index: int = 0


class Branch(NamedTuple):
    """A mapped step of those clients of a stack for whom Python decides alike.

    Attributes:
        rows: The clients' rows.
        parameters: Their parameters, shape ``(len(rows), ...)`` each.
        losses: Their losses, shape ``(len(rows),)``.
        logged: What they logged.
        buffers: Their buffers after the step.
        drew: Whether random numbers were drawn.
    """

    rows: Sequence[int]
    parameters: list[Tensor]
    losses: Tensor
    logged: Logged
    buffers: list[Tensor]
    drew: bool


@dataclass
class ClientsStep:
    """A step of a stack's clients.

    Attributes:
        models: The clients' models.
        index: The position of their batches in their local training.
        generators: Their random generators; ``None`` where the module draws no random numbers.
    """

    models: ModelStack
    index: int
    generators: ClientGenerators | None


class TriedWay(NamedTuple):
    """A step of a client on a copy.

    Attributes:
        did: What it did.
        uses_index: Whether it used ``batch_idx``.
    """

    did: Tried
    uses_index: bool


TryWay = Callable[[Example, bool], TriedWay]


@dataclass
class StepRunners:
    """How a fit's ``training_step`` runs on stacks.

    Attributes:
        stacked: Runs it.
        mapped: Runs it by ``torch.func``, for any module.
        programs: Makes it a program of batched products, for some modules.
        rehearsal: Tries batches of new forms on a copy; ``None`` on a copy.
        try_way: Takes the step of a client that may draw random numbers on a copy, alone and mapped; ``None`` on a
            copy.
        seen: The forms of batches that mapped steps have had.
        tried: What was tried out.
        tries: Mapped steps, with those that were begun and then taken in branches.
    """

    stacked: StackedLoop
    mapped: MappedStep
    programs: ProgramMaker
    rehearsal: Rehearsal | None
    try_way: TryWay | None
    seen: set[Any] = field(default_factory=set)
    tried: Tried = field(default_factory=Tried)
    tries: int = 0

    def forget(self) -> None:
        """Try all forms anew: the module may be another one now."""
        self.seen.clear()
        self.tried.clear()
        self.programs.forget()
        if self.rehearsal is not None:
            self.rehearsal.forget()

    def take(self, step: ClientsStep, rows: Sequence[int], batch: StackedBatch) -> list[Branch]:
        """Take a mapped step of clients, apart where Python decides otherwise for some of them than for others.

        Args:
            step: The step.
            rows: The clients' rows, which ascend.
            batch: One batch a client.

        Raises:
            CannotVectorize: If the step has side effects, or fails on stacked tensors.
        """
        kind = batch.kind(), *((tensor.shape[1:], tensor.dtype) for tensor in batch.tensors)
        self._try_out(kind, batch, step.index)
        form, taken = repr(kind), list[Branch]()
        waiting: list[tuple[Sequence[int], StackedBatch]] = [(rows, batch)]
        while waiting:
            own, part = waiting.pop()
            decisions = Decisions(self.tried, form, step.index, is_trial=self.try_way is None)
            branch = self._begin(step, own, part, decisions)
            self.tries += branch is not None or decisions.differ is not None
            if branch is not None:
                taken.append(branch)
            elif decisions.differ is not None:
                for decision in (False, True):
                    places = [place for place, found in enumerate(decisions.differ) if found is decision]
                    waiting.append(([own[place] for place in places], part.of_places(places)))
            else:
                self._learn(step, own[0], part, decisions, form)
                waiting.append((own, part))
        return taken

    def _begin(
        self, step: ClientsStep, rows: Sequence[int], batch: StackedBatch, decisions: Decisions
    ) -> Branch | None:
        """Take a step; return ``None`` if it was broken off, and has changed nothing.

        Raises:
            BrokenOff: If it was broken off and may have changed something, since nobody expected that.
        """
        models, generators = step.models, step.generators
        may_end = decisions.expected or self.try_way is None
        # the backward pass wants buffers as the forward pass left them: those of a part are put back after it
        whole = len(rows) == models.active and not may_end
        parameters = [select(parameter, rows) for parameter in models.parameters]
        buffers = models.buffers if whole else [select(buffer, rows).clone() for buffer in models.buffers]
        draws = None if generators is None else generators.drawing(rows)
        states = generators.states(rows) if generators is not None and may_end else ()
        try:
            losses, logged, after = self.mapped(parameters, buffers, batch, step.index, draws, decisions)
        except BrokenOff:
            if not may_end:
                raise
            if generators is not None:
                generators.rewind(rows, states)
            return None
        if self.try_way is None:
            self.tried.metrics |= self.mapped.names_of([call.metric for call in logged.metric_calls])
        return Branch(rows, parameters, losses, logged, after, draws is not None and draws.drew)

    def _learn(self, step: ClientsStep, row: int, batch: StackedBatch, decisions: Decisions, form: str) -> None:
        """Try out the way that the first of the batch's clients takes."""
        if self.try_way is None:
            return  # it is known now
        generators = step.generators
        seed = partial(generators.resume, row) if generators is not None else _nothing
        single = batch.rebuild([tensor[0] for tensor in batch.tensors])
        example = Example(seed, step.models.vectors()(row), single, step.index)
        found, uses_index = self.try_way(example, generators is not None)
        for ways in found.ways.values():
            self.tried.add_ways(at(form, step.index) if uses_index else form, ways)
        if not decisions.is_known:
            raise CannotVectorize("Python decides otherwise when a step is taken for the second time")
        if found.metrics - self.tried.metrics:
            raise CannotVectorize("`training_step` gives batches to a metric object only for some values of tensors")

    def _try_out(self, kind: Any, batch: StackedBatch, index: int) -> None:
        """Take a step on a copy, if batches of this form are new."""
        if self.rehearsal is None or kind in self.seen:
            return
        first = batch.rebuild([tensor[0] for tensor in batch.tensors])

        def step(stacked: StackedLoop, copy: LocalTraining) -> None:
            with stacked.recording(), torch.enable_grad():
                stacked.training_step(first, index)

        self.rehearsal(step)
        self.seen.add(kind)


def make_step_runners(
    training: LocalTraining,
    vector: StateVector,
    stacked: StackedLoop,
    rehearsal: Rehearsal | None = None,
    try_way: TryWay | None = None,
) -> StepRunners:
    """Return how ``training_step`` runs on stacks.

    Args:
        training: Trains clients.
        vector: The federated state of the module, or of its copy.
        stacked: Runs its ``training_step``.
        rehearsal: Tries batches of new forms on a copy; ``None`` on a copy, where a trial maps even a stack of one.
        try_way: Takes the step of a client on a copy, alone and mapped; ``None`` on a copy.
    """
    precision = str(training.trainer.precision_plugin.precision)
    mapped = MappedStep(stacked, vector, always_maps=rehearsal is None)
    return StepRunners(stacked, mapped, ProgramMaker(stacked, vector, precision, rehearsal), rehearsal, try_way)


def _nothing() -> None:
    pass
