"""Where the batches of a stack's clients come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import Tensor

from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import StackedBatch, by_shape, stack_batches
from fl_lightning.executors.stacked.device_copy import DeviceCopy
from fl_lightning.executors.stacked.randomness import ClientGenerators
from fl_lightning.parts.federation import Task

Groups = list[tuple[Sequence[int], StackedBatch]]


class BatchSource(Protocol):
    """Gives the next batches of a stack's clients."""

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, those of one shape together with their rows."""


class DrawnBatches:
    """Batches of any kind, drawn client by client and then stacked.

    Args:
        clients: Trains clients.
        tasks: The clients' tasks.
        transfer: Brings a batch to the module.
        generators: The clients' generators, from which data sets and ``transfer`` draw; ``None`` if they draw nothing.
    """

    def __init__(
        self,
        clients: LocalTraining,
        tasks: Sequence[Task],
        transfer: Callable[[Any], Any],
        generators: ClientGenerators | None,
    ) -> None:
        self._batches: list[Iterator[Any]] = [map(transfer, clients.batches.of(task)) for task in tasks]
        self._generators = generators

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``."""
        drawn = [(row, self._draw(row)) for row in rows]
        return [(members, stack_batches(batches)) for members, batches in by_shape(drawn)]

    def _draw(self, row: int) -> Any:
        with nullcontext() if self._generators is None else self._generators.of(row):
            return next(self._batches[row])


class GatheredBatches:
    """Batches of clients that hold plain tensors and whose epochs coincide: one gather an epoch, then views.

    Args:
        clients: Trains clients.
        tasks: The clients' tasks, longest first.
        device: The module's device.
    """

    def __init__(self, clients: LocalTraining, tasks: Sequence[Task], device: torch.device) -> None:
        self._batches = clients.batches
        self._clients = [task.client for task in tasks]
        self._sizes = [task.num_samples for task in tasks]
        self._batch = clients.data.batch_size or max(self._sizes)
        self._epoch = max(clients.batches.epoch_length(task.client) for task in tasks)
        self._generators = [clients.batches.generator(task) for task in tasks]
        self._device = device
        self._position = 0
        self._upload: DeviceCopy | None = None  # one epoch of all clients, shape (K, n, ...)
        self._whole: list[Tensor] = []  # the same on the device

    @staticmethod
    def suit(clients: LocalTraining, tasks: Sequence[Task]) -> bool:
        """Whether the clients' batches can be had this way."""
        lengths = {clients.batches.epoch_length(task.client) for task in tasks}
        coincide = len(lengths) == 1 or all(
            clients.batches.number(task) <= clients.batches.epoch_length(task.client) for task in tasks
        )
        if not coincide or int(clients.trainer.accumulate_grad_batches) > 1:
            return False
        return clients.batches.are_tensors(tasks[0].client)

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, which are the first ones."""
        place = self._position % self._epoch
        if place == 0:
            self._gather(len(rows))
        self._position += 1
        begin = place * self._batch
        groups: Groups = []
        for size, members in groupby(rows, lambda row: min(self._batch, self._sizes[row] - begin)):
            group = list(members)
            tensors = [whole[group[0] : group[-1] + 1, begin : begin + size] for whole in self._whole]
            groups.append((group, StackedBatch(tensors)))
        return groups

    def _gather(self, active: int) -> None:
        places = [] if self._upload is None else [tensor.unbind() for tensor in self._upload.host()]
        longest = max(self._sizes)
        for row in range(active):
            size = self._sizes[row]
            out = [rows[row] if size == longest else rows[row][:size] for rows in places] or None
            gathered = self._batches.gather(self._clients[row], self._generators[row], out)
            if out is None and gathered is not None:  # the first client's tells shapes and types
                shape = len(self._sizes), longest
                shapes, dtypes = [(*shape, *tensor.shape[1:]) for tensor in gathered], [t.dtype for t in gathered]
                self._upload = DeviceCopy(shapes, dtypes, self._device)
                places = [tensor.unbind() for tensor in self._upload.host()]
                for rows, values in zip(places, gathered, strict=True):
                    rows[row][:size] = values
        assert self._upload is not None
        self._whole = self._upload.send()


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
