"""The steps of a stack by a program: its batches, its weights' updates, and what it logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning._lightning.logged_values import Entry
from fl_lightning._lightning.recording import Logged
from fl_lightning.executors.stacked.program.maker import BatchForm, ProgramMaker, TracedStep
from fl_lightning.executors.stacked.program.program import Program, StepBatch, Update
from fl_lightning.executors.stacked.program.values import Given, evaluate
from fl_lightning.executors.stacked.randomness import ClientGenerators

_IGNORED = -100  # cross-entropy's `ignore_index`
_SEGMENT = 32 * 2**20  # bytes of batches, weights of samples and outputs that are held at once


class PaddedSource(Protocol):
    """Gives the batches of a stack's clients in tables of equal rows.

    Attributes:
        draws_nothing: Whether reading batches draws nothing from global generators.
        alike: Whether all batches so far differ in their tensors' sizes and values alone.
    """

    draws_nothing: bool
    alike: bool

    def padded(self, active: Sequence[int], size: int) -> tuple[list[Tensor], list[list[int]]]:
        """Return the batches of the next steps.

        Args:
            active: Number of clients, the first ones, that take part in each step.
            size: Samples of a batch, B.

        Returns:
            Tensors of shape ``(K, steps * B, ...)``, whose rows beyond a batch's samples are zero, and for each step
            the clients' numbers of samples; nothing if the batches are not alike.
        """


class ProgramSteps:
    """Takes the steps of a stack's clients.

    Args:
        maker: Traces the training step.
        traced: The training step.
        form: What batches look like.
        source: Gives batches.
        active: Number of clients that take part in each step.
        size: Samples of a batch, B.
        parameters: The stack's, shape ``(K, *shape)`` each.
        generators: The clients', where the network drops values.
    """

    def __init__(
        self,
        maker: ProgramMaker,
        traced: TracedStep,
        form: BatchForm,
        source: PaddedSource,
        active: Sequence[int],
        size: int,
        parameters: Sequence[Tensor],
        generators: ClientGenerators | None,
    ) -> None:
        self._maker = maker
        self._traced, self._plan, self._source, self._active, self._size = traced, traced.plan, source, active, size
        self._program = Program(traced.plan, active[0], size, parameters, generators)
        like = parameters[0]
        values = sum(torch.Size(shape).numel() for shape in form.shapes) + 3 * self._program.classes
        fits = _SEGMENT // max(1, active[0] * size * values * like.element_size())
        self._most = 1 if self._plan.draws and not source.draws_nothing else max(1, fits)
        self._like, self._from = like, 0
        #: The step before which what was logged has to be taken.
        self.segment_end = 0

    def step(self, step: int, parameters: Sequence[Tensor], update: Update) -> None:
        """Take a step.

        Args:
            step: Its number.
            parameters: Parameters of the clients at work.
            update: Called for each parameter once its gradient is known.
        """
        if step == self.segment_end:
            self._begin(step)
        place, k = step - self._from, self._active[step]
        span = slice(place * self._size, (place + 1) * self._size)
        own = (slice(k), slice(None), span) if self._program.transposed else (slice(k), span)
        batch = StepBatch(self._inputs[:k, span], self._target[own], self._weights[own], self._sizes[place])
        self._program.step(parameters, batch, self._outputs[place, :k], update)

    def _begin(self, step: int) -> None:
        """Fetch the batches of the next steps."""
        active = self._active[step : step + self._most]
        self._from, self.segment_end = step, step + len(active)
        tensors, self._sizes = self._source.padded(active, self._size)
        if not self._source.alike:
            self._maker.refuse("batches differ in more than their tensors' sizes and values")
        self._maker.check_sizes({size for own in self._sizes for size in own})
        plan, number, first = self._plan, len(tensors[0]), self._traced.plan.graph.parameters
        self._tensors = dict(enumerate(tensors, start=first))
        like, classes = self._like, self._program.classes
        sizes = torch.tensor([[*own, *[0] * (number - len(own))] for own in self._sizes]).t()  # (K, steps)
        counted = torch.arange(self._size) < sizes.unsqueeze(2)
        self._compute([value for value in (plan.source, plan.target) if value not in self._tensors], sizes, counted)
        inputs = self._tensors[plan.source]
        self._inputs = inputs.reshape(*inputs.shape[:2], -1).to(like.dtype)
        target = self._tensors[plan.target]
        if plan.loss == "cross_entropy":
            target = target.reshape(*target.shape[:2])  # one class for each sample
            known = (target != _IGNORED).view(number, -1, self._size).to(counted.device)
            if bool(((target < 0) & (target != _IGNORED) | (target >= classes)).any()):
                raise CannotVectorize("there are targets that are no class")
            counted = counted & known
            if bool((counted.any(2) != (sizes > 0)).any()):
                raise CannotVectorize("there are batches without any class")
        # the weight of each sample in its client's mean loss; 0 of void ones
        weights = counted.to(like.dtype) / counted.sum(2, keepdim=True).clamp(min=1)
        along = 1 if self._program.transposed else 2  # classes lie along this dimension
        self._weights = weights.flatten(1).unsqueeze(along).to(like)
        if plan.loss == "cross_entropy":
            shape = (number, classes, target.shape[1]) if along == 1 else (*target.shape, classes)
            places = target.long().clamp(min=0).unsqueeze(along)
            self._target = like.new_zeros(shape).scatter_(along, places, -self._weights)
        else:
            self._target = target.reshape(*target.shape[:2], -1).to(like.dtype)
        outputs = (classes, self._size) if self._program.transposed else (self._size, classes)
        self._outputs = like.new_zeros(len(active), number, *outputs)

    def _compute(self, wanted: Sequence[int], sizes: Tensor, counted: Tensor) -> None:
        """Add tables of values that are computed from the batches; rows beyond a batch's samples are zero."""
        if not wanted:
            return
        number, steps = sizes.shape
        tables = {leaf: table.unflatten(1, (steps, self._size)).flatten(0, 1) for leaf, table in self._tensors.items()}
        void = ~counted.to(self._like.device).flatten(0, 1)
        given = Given(tables, sizes.flatten().to(self._like.device), ~void)
        for value, found in zip(wanted, evaluate(self._plan, wanted, given), strict=True):
            whole = found.new_zeros(len(void), self._size, *found.shape[2:])
            whole[:, : found.shape[1]] = found
            whole[void] = 0
            self._tensors[value] = whole.unflatten(0, (number, steps)).flatten(1, 2)

    def logged(self, slots: Sequence[int]) -> list[Entry]:
        """Return what was logged in the steps of the present segment.

        Args:
            slots: Slots of the clients.
        """
        if not self._traced.tensors:
            return [self._entry(place, [], slots) for place in range(self.segment_end - self._from)]
        steps, number = self._outputs.shape[:2]
        # the clients at work at each step, one row each
        active = [place * number + row for place, own in enumerate(self._sizes) for row in range(len(own))]
        rows = None if len(active) == steps * number else torch.tensor(active, device=self._like.device)
        outputs = _rows(self._outputs.flatten(0, 1), rows)
        values = {self._plan.output: outputs.transpose(1, 2) if self._program.transposed else outputs}
        for leaf in self._traced.leaves:
            table = self._tensors[leaf].unflatten(1, (steps, self._size))
            values[leaf] = _rows(table.transpose(0, 1).clone(memory_format=torch.contiguous_format).flatten(0, 1), rows)
        weights = self._weights.view(number, steps, self._size).transpose(0, 1).flatten(0, 1)
        sizes = torch.tensor([size for own in self._sizes for size in own], device=self._like.device)
        wanted = [value for value in self._traced.tensors if isinstance(value, int)]
        found = iter(evaluate(self._plan, wanted, Given(values, sizes, _rows(weights, rows))))
        tables = [
            (next(found) if isinstance(value, int) else value.expand(len(active), *value.shape), of_samples)
            for value, of_samples in zip(self._traced.tensors, self._traced.of_samples, strict=True)
        ]
        lengths = list(map(len, self._sizes))
        of_steps = [[(rows, of_samples) for rows in table.split(lengths)] for table, of_samples in tables]
        return [self._entry(place, own, slots) for place, own in enumerate(zip(*of_steps, strict=True))]

    def _entry(self, place: int, tables: Sequence[tuple[Tensor, bool]], slots: Sequence[int]) -> Entry:
        sizes = self._sizes[place]
        tensors: list[Any] = [_Ragged(table, sizes) if of_samples else table for table, of_samples in tables]
        logged = self._traced.logged
        steps = [True] * len(sizes)
        return Entry(Logged(logged.calls, logged.metric_calls), tensors, slots[: len(sizes)], steps, sizes=sizes)


def _rows(table: Tensor, rows: Tensor | None) -> Tensor:
    return table if rows is None else table.index_select(0, rows)


class _Ragged:
    """Tensors of unequal numbers of samples: the rows of a table up to their sizes."""

    def __init__(self, table: Tensor, sizes: Sequence[int]) -> None:
        self._table, self._sizes = table, sizes

    def __getitem__(self, row: int) -> Tensor:
        return self._table[row, : self._sizes[row]]
