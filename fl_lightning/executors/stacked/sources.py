"""The batches of a stack's clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from fl_lightning._lightning.batch_notes import Witness
from fl_lightning._lightning.cannot_vectorize import CannotVectorize, nothing_caught
from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import StackedBatch, by_shape, stack_batches
from fl_lightning.executors.stacked.device_copy import DeviceCopy
from fl_lightning.executors.stacked.guards.hidden_weights import HiddenWeights
from fl_lightning.executors.stacked.program.maker import BatchForm
from fl_lightning.executors.stacked.program.steps import PaddedSource
from fl_lightning.executors.stacked.randomness import ClientGenerators
from fl_lightning.parts.messages import Task

_TABLES = 64 * 2**20  # bytes of batches that are held at once

Groups = list[tuple[Sequence[int], StackedBatch]]


class BatchSource(PaddedSource, Protocol):
    """Gives the next batches of a stack's clients, in groups or, for a program, in tables.

    Attributes:
        largest: No batch has more samples; ``None`` if that is not known.
    """

    largest: int | None

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, those of one shape together with their rows."""

    def form(self) -> BatchForm | None:
        """Return what batches look like; ``None`` if their tensors do not have samples first."""


class DrawnBatches:
    """Batches of any kind, drawn client by client and then stacked.

    Args:
        batches: The clients' batches.
        generators: The clients' generators, from which batches are drawn; ``None`` if they draw nothing.
        hidden: Hides what drawing a batch must not see; ``None`` for nothing.

    Attributes:
        draws_nothing: Whether reading batches draws nothing from global generators.
        alike: Whether the batches of :meth:`padded` were of the kind of :meth:`form`.
    """

    largest: int | None = None

    def __init__(
        self,
        batches: Sequence[Iterator[Any]],
        generators: ClientGenerators | None,
        hidden: HiddenWeights | None = None,
    ) -> None:
        self._batches, self._generators = batches, generators
        self._hidden = nullcontext if hidden is None else hidden
        self._first: Any = None  # the first client's first batch, before it is given out
        self._kind: Any = None
        self.alike = True
        self.draws_nothing = generators is None

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``."""
        drawn = [(row, self._draw(row)) for row in rows]
        return [(members, stack_batches(batches)) for members, batches in by_shape(drawn)]

    def form(self) -> BatchForm | None:
        """Return what batches look like; ``None`` if their tensors do not have samples first."""
        self._first = self._draw(0)
        batch = stack_batches([self._first])
        self._kind = batch.kind(veiled=True)
        sizes = {tensor.shape[1] if tensor.dim() > 1 else None for tensor in batch.tensors}
        if len(sizes) != 1 or None in sizes:
            return None
        return BatchForm(
            tuple(tuple(tensor.shape[2:]) for tensor in batch.tensors),
            tuple(tensor.dtype for tensor in batch.tensors),
            batch.rebuild_veiled,
        )

    def padded(self, active: Sequence[int], size: int) -> tuple[list[Tensor], list[list[int]]]:
        """Return the batches of the next steps."""
        tables: list[Tensor] = []
        sizes: list[list[int]] = []
        for step, k in enumerate(active):
            batches = [stack_batches([self._draw(row)]) for row in range(k)]
            self.alike = self.alike and all(batch.kind(veiled=True) == self._kind for batch in batches)
            if not self.alike:
                return [], []
            drawn = [batch.tensors for batch in batches]
            sizes.append([tensors[0].shape[1] for tensors in drawn])
            if not tables:
                tables = [t.new_zeros(active[0], len(active) * size, *t.shape[2:]) for t in drawn[0]]
            for row, tensors in enumerate(drawn):
                for table, tensor in zip(tables, tensors, strict=True):
                    if table.shape[2:] != tensor.shape[2:] or tensor.shape[1] != sizes[-1][row]:
                        raise CannotVectorize("batches have tensors of unequal shapes")
                    table[row, step * size : step * size + tensor.shape[1]] = tensor[0]
        return tables, sizes

    def _draw(self, row: int) -> Any:
        if row == 0 and self._first is not None:
            first, self._first = self._first, None
            return first
        own = nullcontext() if self._generators is None else self._generators.active(row)
        with nothing_caught(), self._hidden(), own:
            return next(self._batches[row])


class WitnessedBatches(DrawnBatches):
    """The batches of clients that were trained alone before, with their generators in the states of that time.

    Args:
        witnesses: The clients' trainings.
        generators: The clients' generators.
        drew: Whether something may have been drawn when batches were read.
    """

    def __init__(self, witnesses: Sequence[Witness], generators: ClientGenerators, *, drew: bool) -> None:
        super().__init__([iter(witness.batches) for witness in witnesses], None)
        self._states, self._of_clients = [iter(witness.states) for witness in witnesses], generators
        self.draws_nothing = not drew

    def _draw(self, row: int) -> Any:
        if not self.draws_nothing and (row != 0 or self._first is None):
            self._of_clients.rewind([row], [next(self._states[row])])
        return super()._draw(row)


class GatheredBatches:
    """Batches of clients that hold plain tensors: one gather for many steps of a client, then views.

    Args:
        training: Trains clients.
        tasks: The clients' tasks, longest first.
        device: The module's device.

    Attributes:
        draws_nothing: Always true.
        alike: Always true.
    """

    draws_nothing = alike = True

    def __init__(self, training: LocalTraining, tasks: Sequence[Task], device: torch.device) -> None:
        self._clients = [_RowsOfClient(training, task) for task in tasks]
        # of all clients, since a program is made anew for each other number
        self.largest: int | None = min(training.batches.largest(tasks), int(training.data.client_sizes.max()))
        self._batch = self.largest
        self._device = device
        self._upload: DeviceCopy | None = None
        self._steps = 0  # that have been read
        self._begin, self._end = 0, 0  # the steps whose batches are at hand
        self._tables: list[Tensor] = []
        self._sizes: list[list[int]] = []

    @staticmethod
    def suit(training: LocalTraining, tasks: Sequence[Task]) -> bool:
        """Whether the clients' batches can be had this way."""
        one_batch, batches = int(training.trainer.accumulate_grad_batches) == 1, training.batches
        return one_batch and all(
            batches.are_tensors(task.client)
            and all(type(rows) is Tensor and rows.device.type == "cpu" for rows in batches.rows(task.client)[0])
            for task in tasks
        )

    def form(self) -> BatchForm | None:
        """Return what batches look like."""
        tensors = self._clients[0].tensors
        return BatchForm(tuple(tuple(t.shape[1:]) for t in tensors), tuple(t.dtype for t in tensors), list)

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, which are the first ones."""
        if self._steps == self._end:
            self._read_on(len(rows))
        place = self._steps - self._begin
        self._steps += 1
        span = slice(place * self._batch, (place + 1) * self._batch)
        groups: Groups = []
        for size, members in groupby(rows, self._sizes[place].__getitem__):
            group = list(members)
            tensors = [table[group[0] : group[-1] + 1, span][:, :size] for table in self._tables]
            groups.append((group, StackedBatch(tensors)))
        return groups

    def _read_on(self, rows: int) -> None:
        """Read the batches of as many steps as are held at once."""
        most = max(1, _TABLES // max(1, rows * self._batch * self._clients[0].bytes_per_sample))
        self._begin = self._steps
        end = min(self._begin + most, max(client.number for client in self._clients))
        active = [sum(client.number > step for client in self._clients) for step in range(self._begin, end)]
        self._tables, self._sizes = self.padded(active, self._batch)
        self._end = self._begin + len(active)

    def padded(self, active: Sequence[int], size: int) -> tuple[list[Tensor], list[list[int]]]:
        """Return the batches of the next steps."""
        tensors = self._clients[0].tensors
        shapes = [(active[0], len(active) * size, *tensor.shape[1:]) for tensor in tensors]
        if self._upload is None or self._upload.shapes != shapes:
            self._upload = DeviceCopy(shapes, [tensor.dtype for tensor in tensors], self._device)
        tables = [table.unbind() for table in self._upload.host()]
        sizes: list[list[int]] = [[] for _ in active]
        steps = len(active)
        for row in range(active[0]):
            while active[steps - 1] <= row:  # fewer clients take part in later steps
                steps -= 1
            own = [rows[row] for rows in tables]
            self._clients[row].read(own, steps, size, sizes)
            if steps < len(active):
                for rows in own:
                    rows[steps * size :].zero_()
        return self._upload.send(), sizes


class _RowsOfClient:
    """The batches of one client, whose samples are rows of tensors.

    Args:
        training: Trains clients.
        task: The client's task.
    """

    def __init__(self, training: LocalTraining, task: Task) -> None:
        self.tensors, self._indices = training.batches.rows(task.client)
        self.number = training.batches.number(task)
        self._orders = training.batches.orders(task)
        self._order: Tensor | None = None  # of the samples of this epoch that have not been read

    @property
    def bytes_per_sample(self) -> int:
        """Memory of a sample."""
        return sum(tensor[:1].nbytes for tensor in self.tensors)

    def read(self, tables: Sequence[Tensor], steps: int, size: int, sizes: list[list[int]]) -> None:
        """Read the next batches.

        Args:
            tables: Take them, shape ``(steps * B, ...)`` or longer each; rows beyond a batch's samples become zero.
            steps: Number of batches.
            size: Samples of a batch, B.
            sizes: Lists of sizes, one for each step, to which the batch's size is added.
        """
        step = 0
        while step < steps:
            if self._order is None:
                order = next(self._orders)
                self._order = order if self._indices is None else self._indices.index_select(0, order)
            chosen, most = self._order, (steps - step) * size
            samples, self._order = len(chosen), None
            if samples > most:
                chosen, self._order, samples = chosen[:most], chosen[most:], most
            number = -(-samples // size)
            begin, filled, end = step * size, step * size + samples, (step + number) * size
            for tensor, table in zip(self.tensors, tables, strict=True):
                torch.index_select(tensor, 0, chosen.to(tensor.device), out=table[begin:filled])
                if filled < end:
                    table[filled:end].zero_()
            for place in range(number):
                sizes[step + place].append(min(size, samples - place * size))
            step += number


def draws_nothing(training: LocalTraining, task: Task, plain: bool) -> bool:
    """Whether reading a client's batches draws nothing from global generators, for certain."""
    return plain and training.batches.has_rows(task.client)


def make_source(
    training: LocalTraining,
    tasks: Sequence[Task],
    transfer: Callable[[Any], Any],
    plain: bool,
    generators: ClientGenerators | None,
) -> GatheredBatches | DrawnBatches:
    """Return the batches of a stack's clients.

    Args:
        training: Trains clients.
        tasks: The clients' tasks, longest first.
        transfer: Brings a batch to the module.
        plain: Whether ``transfer`` only moves it to the device.
        generators: The clients' generators.
    """
    if plain and GatheredBatches.suit(training, tasks):
        return GatheredBatches(training, tasks, training.vector.device)
    batches = [map(transfer, training.batches.iterate(task)) for task in tasks]
    hidden = HiddenWeights(training.loop, training.vector)
    return DrawnBatches(batches, None if draws_nothing(training, tasks[0], plain) else generators, hidden)
