"""The two ways in which a stack takes its optimizer steps.

The worked example, for clients whose last batches have 4, 4 and 2 samples::

    FilledSteps:   one batch, x of shape (3, 4, in), in which the missing samples have weight 0
    GroupedSteps:  one with x of shape (2, 4, in) and one of shape (1, 2, in), each with a graph of its own
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.log_replay import Journal
from fl_lightning._lightning.stacks.recording import Entry
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop
from fl_lightning.executors.compiler.capture import CapturedStep, Step
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.gradient_hooks import Entries, GradientHooks
from fl_lightning.executors.compiler.graph import Computed, Stacks
from fl_lightning.executors.stack.batches import StackedBatch, select
from fl_lightning.executors.stack.models import ModelStack
from fl_lightning.executors.stack.randomness import ClientGenerators
from fl_lightning.executors.stack.sources import DrawnBatches, GatheredBatches
from fl_lightning.executors.stack.update import StackUpdate

GradientList = list[Tensor | None]


@dataclass
class StackAtWork:
    """What the steps of a stack work on.

    Attributes:
        models: The clients' models.
        update: Steps them.
        hooks: Runs the module's hooks.
        generators: The clients' generators.
        slots: The clients' slots.
        windows: For each client the number of batches of each of its optimizer steps.
        batch_size: The samples of most batches, B.
        journal: What the clients have logged.
        loop: The module's loop.
        steps_before: Of each client, the optimizer steps that all clients have made before it when it begins.
        keeps_settings: Whether the optimizer's settings change from step to step, and are kept for logs.
    """

    models: ModelStack
    update: StackUpdate
    hooks: GradientHooks
    generators: ClientGenerators
    slots: list[int]
    windows: list[list[int]]
    batch_size: int
    journal: Journal
    loop: StackedLoop
    steps_before: list[int]
    keeps_settings: bool

    def steps_so_far(self, rows: Sequence[int], step: int) -> list[int]:
        """Return the optimizer steps of all clients up to a step of each of some clients."""
        return [self.steps_before[row] + step for row in rows]

    def step(self, gradients: GradientList, entries: Entries, step: int, active: int) -> None:
        """Step the first clients' models, and keep what they have logged.

        Args:
            gradients: Their gradients.
            entries: What their batches have logged, with the clients' rows.
            step: The step's number, from 0.
            active: The clients.
        """
        rows = range(active)

        def run_hook(name: str, present: GradientList) -> None:
            stacks = Stacks(
                parameters=[parameter.detach() for parameter in self.models.parameters],
                buffers=self.models.buffers,
                batch=[],
                draws=self.generators.drawing(rows),
                gradients=present,
            )
            entries[:] = self.hooks.run(name, stacks, step, self.steps_so_far(rows, step), entries)

        self.update.step(gradients, run_hook)
        for _, entry in entries:
            self.keep(entry)

    def keep(self, entry: Entry) -> None:
        """Keep what clients logged, and let progress bars see their batches."""
        if self.keeps_settings:
            entry.settings = self.update.settings()
        self.journal.add(entry)
        self.loop.show(len(entry.slots))


class StackSteps(ABC):
    """Takes the optimizer steps of a stack."""

    @abstractmethod
    def take(self, step: int, active: int) -> list[bool]:
        """Take one step of the first ``active`` clients.

        Args:
            step: The step's number, from 0.
            active: Clients at work.

        Returns:
            Which parameters were stepped.
        """


class FilledSteps(StackSteps):
    """Takes steps of batches that are filled up: one graph for all of them.

    Args:
        stack: What they work on.
        step: The weighted step.
        inputs: Its inputs.
        source: The batches.
    """

    def __init__(self, stack: StackAtWork, step: Step, inputs: list[Any], source: GatheredBatches) -> None:
        self._stack = stack
        self._step = step
        self._inputs = inputs
        self._source = source

    @override
    def take(self, step: int, active: int) -> list[bool]:
        stack = self._stack
        tables = self._source.at(step)
        place = step - tables.begin
        sizes = tables.sizes[place]
        stacks = Stacks(
            parameters=stack.models.parameters,
            buffers=[],
            batch=[table[place, :active] for table in tables.tables],
            draws=stack.generators.drawing(range(active), sizes, stack.batch_size),
            weights=tables.weights[place, :active],
            update=stack.update.in_place,
        )
        computed = self._step.graph.run(stacks, self._inputs, flat=True)
        kept: list[Any] = []
        for tensor, kind in zip(self._step.tensors(computed.kept), self._step.kept, strict=True):
            if kind.of_samples:
                kept.append([tensor[row, :size] for row, size in enumerate(sizes)])
            else:
                kept.append(tensor)
        entry = Entry(self._step.logged, kept, stack.slots[:active], [True] * active, sizes=sizes)
        if computed.stepped:
            stack.keep(entry)
        else:
            stack.step(computed.gradients, [(range(active), entry)], step, active)
        return _are_there(computed.gradients)


class GroupedSteps(StackSteps):
    """Takes steps of batches as they are: those of one shape together.

    Args:
        stack: What they work on.
        captured: The captured steps of the fit.
        check: Compares them with the module.
        source: The batches.
        accumulate: Batches whose gradients are accumulated.
    """

    def __init__(
        self,
        stack: StackAtWork,
        captured: CapturedStep,
        check: Check,
        source: GatheredBatches | DrawnBatches,
        accumulate: int,
    ) -> None:
        self._stack = stack
        self._captured = captured
        self._check = check
        self._source = source
        self._accumulate = accumulate
        #: Whether each optimizer step of each client takes one batch.
        self._takes_one = all(sum(windows) == len(windows) for windows in stack.windows)
        #: Batches on which each client has trained.
        self._done = [0] * len(stack.slots)
        #: The captured step, and its inputs, of each form of a batch.
        self._steps: dict[Any, tuple[Step, list[Any]]] = {}

    @override
    def take(self, step: int, active: int) -> list[bool]:
        stack = self._stack
        parameters = stack.models.parameters
        totals: GradientList = [None] * len(parameters)
        # The rows whose batches use each parameter.
        users: list[set[int]] = [set() for _ in parameters]
        entries: Entries = []
        for micro in range(self._batches_of(step, active)):
            # Clients whose step accumulates so many batches.
            rows = list(range(active))
            indices = {self._done[0]}
            if not self._takes_one:
                rows = [row for row in rows if stack.windows[row][step] > micro]
                # Clients have unequal indices where gradients are accumulated over epochs.
                indices = {self._done[row] for row in rows}
            for index in sorted(indices):
                alike = rows
                if len(indices) > 1:
                    alike = [row for row in rows if self._done[row] == index]
                parts: list[tuple[Sequence[int], GradientList]] = []
                for members, batch, captured, inputs in self._captured_for(alike, index, step):
                    ends = [stack.windows[row][step] == micro + 1 for row in members]
                    computed, entry = self._compute(members, batch, captured, inputs, index, step, ends)
                    entries.append((members, entry))
                    if computed.stepped:
                        self._done = [done + 1 for done in self._done]
                        stack.keep(entry)
                        return _are_there(computed.gradients)
                    for own, gradient in zip(users, computed.gradients, strict=True):
                        if gradient is not None:
                            own.update(members)
                    parts.append((members, self._shares(computed.gradients)))
                for place, parameter in enumerate(parameters):
                    joined = _joined(parameter, [(members, own[place]) for members, own in parts])
                    totals[place] = _sum(totals[place], joined)
            for row in rows:
                self._done[row] += 1
        # Alone, the others would not step it, not even by momentum.
        if any(0 < len(own) < active for own in users):
            raise CannotVectorize("some clients' batches use a parameter that others of the same step do not use")
        stack.step(totals, entries, step, active)
        return _are_there(totals)

    def _batches_of(self, step: int, active: int) -> int:
        """Return the most batches that a client's optimizer step accumulates."""
        if self._takes_one:
            return 1
        return max(windows[step] for windows in self._stack.windows[:active])

    def _compute(
        self,
        rows: Sequence[int],
        batch: StackedBatch,
        captured: Step,
        inputs: list[Any],
        index: int,
        step: int,
        ends: list[bool],
    ) -> tuple[Computed, Entry]:
        """Compute a step of some clients' batches; return also what they log.

        Args:
            rows: The clients.
            batch: Their batches.
            captured: The captured step.
            inputs: Its inputs.
            index: The batches' index.
            step: The number of the clients' optimizer step.
            ends: Whether an optimizer step ends with each client's batch.
        """
        stack = self._stack
        models = stack.models
        # It alone is flat: the way to take a step depends on nothing but its form.
        is_whole = len(rows) == len(stack.slots)
        stacks = Stacks(
            parameters=[select(parameter, rows) for parameter in models.parameters],
            buffers=models.buffers,
            batch=batch.tensors,
            draws=stack.generators.drawing(rows),
            update=stack.update.in_place if is_whole else None,
        )
        if captured.dependence.counts_steps:
            stacks.steps_so_far = torch.tensor(stack.steps_so_far(rows, step), device=models.parameters[0].device)
        if not is_whole:
            stacks.buffers = [select(buffer, rows).clone() for buffer in models.buffers]
        self._check(captured, inputs, stacks, batch, index, rows, flat=is_whole)
        computed = captured.graph.run(stacks, inputs, flat=is_whole)
        if not is_whole:
            models.renew_buffers(rows, stacks.buffers)
        slots = [stack.slots[row] for row in rows]
        return computed, Entry(captured.logged, captured.tensors(computed.kept), slots, ends, batch.first)

    def _shares(self, gradients: GradientList) -> GradientList:
        """Return a batch's shares of the gradients of a step that accumulates several."""
        if self._accumulate == 1:
            return gradients
        share = 1 / self._accumulate
        return [None if gradient is None else gradient * share for gradient in gradients]

    def _captured_for(
        self, rows: Sequence[int], index: int, step: int
    ) -> Iterator[tuple[Sequence[int], StackedBatch, Step, list[Any]]]:
        """Yield the next batches of some clients, those alike together, with their captured step and its inputs.

        It is captured again if it depends on the batches' index, or on another number that changes from step to step.
        """
        for members, batch in self._source.next(rows):
            form = batch.form()
            if form in self._steps:
                yield members, batch, *self._steps[form]
                continue
            is_short = batch.size() != self._stack.batch_size
            counts = self._stack.steps_so_far(members, step)
            for places, captured, inputs in self._captured.of_each(batch, index, counts, short=is_short):
                if not captured.dependence.changes:
                    self._steps[form] = captured, inputs
                if len(places) == len(members):
                    yield members, batch, captured, inputs
                else:
                    yield [members[place] for place in places], batch.of(places), captured, inputs


def _are_there(gradients: GradientList) -> list[bool]:
    return [gradient is not None for gradient in gradients]


def _joined(parameter: Tensor, parts: Sequence[tuple[Sequence[int], Tensor | None]]) -> Tensor | None:
    """Return the gradient of a parameter of all models, given those of groups of them and the groups' rows."""
    known = [(rows, gradient) for rows, gradient in parts if gradient is not None]
    if not known:
        return None
    if len(known[0][1]) == len(parameter):
        return known[0][1]
    joined = torch.zeros_like(parameter)
    for rows, gradient in known:
        joined[torch.tensor(rows, device=joined.device)] = gradient
    return joined


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None:
        return b
    return a if b is None else a + b
