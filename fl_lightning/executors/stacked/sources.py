"""Where the batches of a stack's clients come from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.stacked.batching import StackedBatch, by_shape, stack_batches
from fl_lightning.executors.stacked.device_copy import DeviceCopy
from fl_lightning.parts.federation import Task

Groups = list[tuple[Sequence[int], StackedBatch]]


class BatchSource(Protocol):
    """Gives the next batches of a stack's clients."""

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``, those of one shape together with their rows."""


class DrawnBatches:
    """Batches of any kind, drawn client by client and then stacked.

    What a data set or a transfer hook draws from the global generators is what it would draw for the client alone, as
    long as the module itself draws nothing.

    Args:
        clients: Trains clients.
        tasks: The clients' tasks.
        transfer: Brings a batch to the module.
        random: Whether data sets or ``transfer`` may draw random numbers.
    """

    def __init__(
        self, clients: LocalTraining, tasks: Sequence[Task], transfer: Callable[[Any], Any], random: bool
    ) -> None:
        self._batches: list[Iterator[Any]] = [map(transfer, clients.batches.of(task)) for task in tasks]
        self._states: list[Any] = []
        if random:
            present = _generators()
            for task in tasks:
                clients.seed(task)
                self._states.append(_generators())
            _set_generators(present)

    def next(self, rows: Sequence[int]) -> Groups:
        """Return the next batch of the clients in ``rows``."""
        drawn = [(row, self._draw(row)) for row in rows]
        return [(members, stack_batches(batches)) for members, batches in by_shape(drawn)]

    def _draw(self, row: int) -> Any:
        if not self._states:
            return next(self._batches[row])
        present = _generators()
        _set_generators(self._states[row])
        batch = next(self._batches[row])
        self._states[row] = _generators()
        _set_generators(present)
        return batch


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


def make_source(
    clients: LocalTraining, tasks: Sequence[Task], transfer: Callable[[Any], Any], plain: bool
) -> GatheredBatches | DrawnBatches:
    """Return the batches of a stack's clients.

    Args:
        clients: Trains clients.
        tasks: The clients' tasks, longest first.
        transfer: Brings a batch to the module.
        plain: Whether ``transfer`` only moves it to the device.
    """
    if plain and GatheredBatches.suit(clients, tasks):
        return GatheredBatches(clients, tasks, clients.vector.device)
    return DrawnBatches(clients, tasks, transfer, not plain or not clients.batches.has_rows(tasks[0].client))


def _generators() -> Any:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, np.random.get_state(), random.getstate()


def _set_generators(states: Any) -> None:
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1])
    np.random.set_state(states[2])
    random.setstate(states[3])
