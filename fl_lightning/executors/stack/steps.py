"""The two ways in which a stack takes its optimizer steps.

Of clients whose last batches have 4, 4 and 2 samples::

    FilledSteps:   one batch of shape (3, 4, ...), in which the missing samples have weight 0
    GroupedSteps:  one of shape (2, 4, ...) and one of shape (1, 2, ...), each with a graph of its own
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.stacks.log_replay import Journal
from fl_lightning._lightning.stacks.recording import Entry
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop
from fl_lightning.executors.compiler.capture import CapturedStep, Step
from fl_lightning.executors.compiler.check import Check
from fl_lightning.executors.compiler.graph import Stacks
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
        generators: The clients' generators.
        slots: The clients' slots.
        windows: For each client the number of batches of each of its optimizer steps.
        batch_size: The samples of most batches, B.
        journal: What the clients have logged.
        loop: The module's loop.
        keeps_settings: Whether the optimizer's settings change from step to step, and are kept for logs.
    """

    models: ModelStack
    update: StackUpdate
    generators: ClientGenerators
    slots: list[int]
    windows: list[list[int]]
    batch_size: int
    journal: Journal
    loop: StackedLoop
    keeps_settings: bool

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
        self._stack, self._source = stack, source
        self._step, self._inputs = step, inputs

    def take(self, step: int, active: int) -> list[bool]:
        """Take one step of the first ``active`` clients; see :meth:`StackSteps.take`."""
        stack = self._stack
        tables = self._source.at(step)
        place = step - tables.begin
        sizes = tables.sizes[place]
        stacks = Stacks(
            stack.models.parameters,
            [],
            [table[place, :active] for table in tables.tables],
            stack.generators.drawing(range(active), sizes, stack.batch_size),
            tables.weights[place, :active],
            stack.update.in_place,
        )
        computed = self._step.graph.run(stacks, self._inputs, flat=True)
        kept: list[Any] = []
        for own, (_, of_samples) in zip(self._step.tensors(computed.kept), self._step.kept, strict=True):
            kept.append([own[row, :samples] for row, samples in enumerate(sizes)] if of_samples else own)
        stack.keep(Entry(self._step.logged, kept, stack.slots[:active], [True] * active, sizes=sizes))
        if not computed.stepped:
            stack.update.step(computed.gradients)
        return [gradient is not None for gradient in computed.gradients]


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
        self._stack, self._captured, self._check = stack, captured, check
        self._source = source
        self._accumulate = accumulate
        self._done = [0] * len(stack.slots)  # batches on which each client has trained
        self._steps: dict[Any, tuple[Step, list[Any]]] = {}  # captured, for each kind of batch

    def take(self, step: int, active: int) -> list[bool]:
        """Take one step of the first ``active`` clients; see :meth:`StackSteps.take`."""
        stack = self._stack
        gradients: GradientList = [None] * len(stack.models.parameters)
        used: list[set[int]] = [set() for _ in gradients]  # the rows whose batches use each parameter
        for micro in range(max(windows[step] for windows in stack.windows[:active])):
            rows = [row for row in range(active) if stack.windows[row][step] > micro]
            # Clients have unequal indices where gradients are accumulated over epochs.
            for index in sorted({self._done[row] for row in rows}):
                like = [row for row in rows if self._done[row] == index]
                ends = {row: stack.windows[row][step] == micro + 1 for row in like}
                new, stepped = self._gradients(self._source.next(like), ends, index, used)
                if stepped:
                    return [gradient is not None for gradient in new]
                gradients = [_sum(a, b) for a, b in zip(gradients, new, strict=True)]
            for row in rows:
                self._done[row] += 1
        # Alone, the others would not step it, not even by momentum.
        if any(0 < len(rows) < active for rows in used):
            raise CannotVectorize("some clients' batches use a parameter that others of the same step do not use")
        stack.update.step(gradients)
        return [gradient is not None for gradient in gradients]

    def _gradients(
        self,
        groups: Sequence[tuple[Sequence[int], StackedBatch]],
        ends: dict[int, bool],
        index: int,
        used: list[set[int]],
    ) -> tuple[GradientList, bool]:
        """Return the gradients of the clients' losses on their batches, and whether parameters were stepped by them."""
        stack = self._stack
        models = stack.models
        number = len(stack.windows)
        members: list[Sequence[int]] = []
        parts: list[GradientList] = []
        for rows, batch in groups:
            # It alone is flat: the way to take a step depends on nothing but its form.
            whole = len(rows) == number
            stacks = Stacks(
                models.parameters if len(rows) == models.active else [select(p, rows) for p in models.parameters],
                models.buffers if whole else [select(buffer, rows).clone() for buffer in models.buffers],
                batch.tensors,
                stack.generators.drawing(rows),
                update=stack.update.in_place if whole else None,
            )
            step, inputs = self._step_of(batch, index)
            self._check(step, inputs, stacks, batch, index, rows, flat=whole)
            computed = step.graph.run(stacks, inputs, flat=whole)
            if not whole:
                models.renew_buffers(rows, stacks.buffers)
            slots = [stack.slots[row] for row in rows]
            steps = [ends[row] for row in rows]
            stack.keep(Entry(step.logged, step.tensors(computed.kept), slots, steps, batch.first))
            if computed.stepped:
                self._done = [done + 1 for done in self._done]
                return computed.gradients, True
            for own_rows, gradient in zip(used, computed.gradients, strict=True):
                if gradient is not None:
                    own_rows.update(rows)
            members.append(rows)
            parts.append(self._shares(computed.gradients))
        joined: GradientList = []
        for place, parameter in enumerate(models.parameters):
            joined.append(_joined(parameter, [part[place] for part in parts], members))
        return joined, False

    def _shares(self, gradients: GradientList) -> GradientList:
        """Return a batch's shares of the gradients of a step that accumulates several."""
        if self._accumulate == 1:
            return gradients
        share = 1 / self._accumulate
        return [None if gradient is None else gradient * share for gradient in gradients]

    def _step_of(self, batch: StackedBatch, index: int) -> tuple[Step, list[Any]]:
        """Return the captured step of a batch: captured again if it depends on its index, or on a rate that changes."""
        forms = [(tensor.shape[1:], tensor.stride()[1:], tensor.dtype) for tensor in batch.tensors]
        key = repr((batch.kind(), *forms))
        if key not in self._steps:
            found = self._captured(batch, index, short=batch.size() != self._stack.batch_size)
            if found[0].dependence.changes:
                return found
            self._steps[key] = found
        return self._steps[key]


def _joined(parameter: Tensor, own: Sequence[Tensor | None], rows: Sequence[Sequence[int]]) -> Tensor | None:
    """Return the gradient of a parameter of all models, given those of groups of them."""
    known = [(gradient, members) for gradient, members in zip(own, rows, strict=True) if gradient is not None]
    if not known:
        return None
    if len(known[0][0]) == len(parameter):
        return known[0][0]
    joined = torch.zeros_like(parameter, requires_grad=False)
    for gradient, members in known:
        joined[torch.tensor(members, device=joined.device)] = gradient
    return joined


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None:
        return b
    return a if b is None else a + b
