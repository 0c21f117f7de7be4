"""Where the batches of a stack's clients come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import CannotVectorize
from fl_lightning.executors.stacked.batching import StackedBatch, by_shape, stack_batches
from fl_lightning.executors.stacked.device_copy import DeviceCopy
from fl_lightning.executors.stacked.program.maker import BatchForm
from fl_lightning.executors.stacked.randomness import ClientGenerators
from fl_lightning.parts.federation import Task

Groups = list[tuple[Sequence[int], StackedBatch]]


class BatchSource(Protocol):
    """Gives the next batches of a stack's clients, in groups or, for a program, in tables."""

    draws_nothing: bool

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, those of one shape together with their rows."""

    def form(self) -> BatchForm | None:
        """Return what batches look like; ``None`` if their tensors do not have samples first."""

    def padded(self, active: Sequence[int], size: int) -> tuple[list[Tensor], list[list[int]]]:
        """Return the batches of the next steps; see :class:`~.program.steps.PaddedSource`."""


class DrawnBatches:
    """Batches of any kind, drawn client by client and then stacked.

    Args:
        batches: The clients' batches.
        generators: The clients' generators, from which batches are drawn; ``None`` if they draw nothing.

    Attributes:
        draws_nothing: Whether reading batches draws nothing from global generators.
    """

    def __init__(self, batches: Sequence[Iterator[Any]], generators: ClientGenerators | None) -> None:
        self._batches, self._generators = batches, generators
        self._first: Any = None  # the first client's first batch, before it is given out
        self.draws_nothing = generators is None

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``."""
        drawn = [(row, self._draw(row)) for row in rows]
        return [(members, stack_batches(batches)) for members, batches in by_shape(drawn)]

    def form(self) -> BatchForm | None:
        """Return what batches look like; ``None`` if their tensors do not have samples first."""
        self._first = self._draw(0)
        batch = stack_batches([self._first])
        sizes = {tensor.shape[1] if tensor.dim() > 1 else None for tensor in batch.tensors}
        if len(sizes) != 1 or None in sizes:
            return None
        return BatchForm(
            tuple(tuple(tensor.shape[2:]) for tensor in batch.tensors),
            tuple(tensor.dtype for tensor in batch.tensors),
            batch.rebuild,
        )

    def padded(self, active: Sequence[int], size: int) -> tuple[list[Tensor], list[list[int]]]:
        """Return the batches of the next steps."""
        tables: list[Tensor] = []
        sizes: list[list[int]] = []
        for step, k in enumerate(active):
            drawn = [stack_batches([self._draw(row)]).tensors for row in range(k)]
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
        with nullcontext() if self._generators is None else self._generators.of(row):
            return next(self._batches[row])


class GatheredBatches:
    """Batches of clients that hold plain tensors: one gather for many steps of a client, then views.

    Args:
        clients: Trains clients.
        tasks: The clients' tasks, longest first.
        device: The module's device.

    Attributes:
        draws_nothing: Always true.
    """

    draws_nothing = True

    def __init__(self, clients: LocalTraining, tasks: Sequence[Task], device: torch.device) -> None:
        self._orders = [clients.batches.orders(task) for task in tasks]
        self._numbers = [clients.batches.number(task) for task in tasks]
        self._rows = [clients.batches.rows(task.client) for task in tasks]
        self._size = clients.data.batch_size or max(task.num_samples for task in tasks)
        self._device = device
        self._upload: DeviceCopy | None = None
        self._steps = 0  # that the tables hold
        self._position = 0  # of the next step, among those that they hold
        self._tables: list[Tensor] = []
        self._sizes: list[list[int]] = []
        self._taken = 0

    @staticmethod
    def suit(clients: LocalTraining, tasks: Sequence[Task]) -> bool:
        """Whether the clients' batches can be had this way."""
        one_batch = int(clients.trainer.accumulate_grad_batches) == 1
        return one_batch and all(clients.batches.are_tensors(task.client) for task in tasks)

    def form(self) -> BatchForm | None:
        """Return what batches look like."""
        tensors, _ = self._rows[0]
        return BatchForm(tuple(tuple(t.shape[1:]) for t in tensors), tuple(t.dtype for t in tensors), list)

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, which are the first ones."""
        if self._position == self._steps:
            active = [len(rows)]  # the clients that are still at work at each of the next steps
            while len(active) < self._fits(len(rows)) and any(n > self._taken + len(active) for n in self._numbers):
                active.append(sum(n > self._taken + len(active) for n in self._numbers))
            self._tables, self._sizes = self.padded(active, self._size)
            self._steps, self._position = len(active), 0
        begin, sizes = self._position * self._size, self._sizes[self._position]
        self._position += 1
        groups: Groups = []
        for size, members in groupby(rows, sizes.__getitem__):
            group = list(members)
            tensors = [table[group[0] : group[-1] + 1, begin : begin + size] for table in self._tables]
            groups.append((group, StackedBatch(tensors)))
        return groups

    def _fits(self, rows: int) -> int:
        """Return how many steps' batches are held at once."""
        tensors, _ = self._rows[0]
        values = sum(tensor[:1].nbytes for tensor in tensors)
        return max(1, _TABLES // max(1, rows * self._size * values))

    def padded(self, active: Sequence[int], size: int) -> tuple[list[Tensor], list[list[int]]]:
        """Return the batches of the next steps."""
        tensors, _ = self._rows[0]
        shapes = [(active[0], len(active) * size, *tensor.shape[1:]) for tensor in tensors]
        if self._upload is None or self._upload.shapes != shapes:
            self._upload = DeviceCopy(shapes, [tensor.dtype for tensor in tensors], self._device)
        tables = self._upload.host()
        sizes: list[list[int]] = [[] for _ in active]
        for row in range(active[0]):
            steps = min(len(active), self._numbers[row] - self._taken)
            for step in range(steps):
                pass
            self._fill(row, steps, size, [table[row] for table in tables], sizes)
        self._taken += len(active)
        return self._upload.send(), sizes


def draws_nothing(clients: LocalTraining, task: Task, plain: bool) -> bool:
    """Whether reading a client's batches draws nothing from global generators, for certain."""
    return plain and clients.batches.has_rows(task.client)


def make_source(
    clients: LocalTraining,
    tasks: Sequence[Task],
    transfer: Callable[[Any], Any],
    plain: bool,
    generators: ClientGenerators | None,
) -> GatheredBatches | DrawnBatches:
    """Return the batches of a stack's clients.

    Args:
        clients: Trains clients.
        tasks: The clients' tasks, longest first.
        transfer: Brings a batch to the module.
        plain: Whether ``transfer`` only moves it to the device.
        generators: The clients' generators.
    """
    if plain and GatheredBatches.suit(clients, tasks):
        return GatheredBatches(clients, tasks, clients.vector.device)
    return DrawnBatches(clients, tasks, transfer, None if draws_nothing(clients, tasks[0], plain) else generators)
