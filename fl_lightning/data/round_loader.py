"""Batches of many clients, made ahead of time by the processes of one ``DataLoader``.

A batch's draws from global generators depend on its own seeds alone, so it does not matter which process makes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from fl_lightning.data.batches import as_is, batch_of, fetch
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.seeding import Stream, preserved_generators, seed_global_generators


class PlannedBatch(NamedTuple):
    """A batch to make.

    Attributes:
        slot: Slot of the task that it is for.
        client: Position of the client.
        positions: Positions of its samples among the client's.
        seeds: What its draws are seeded by.
    """

    slot: int
    client: int
    positions: list[int]
    seeds: tuple[int, ...]


class RoundLoader:
    """Makes the batches of several tasks in the order in which they train.

    Args:
        data: The clients' samples. Processes see them as they are now.
        planned: The tasks' batches, in the order of training.
    """

    def __init__(self, data: FederatedDataModule, planned: Iterable[PlannedBatch]) -> None:
        loader = DataLoader(
            _Batches(data),
            batch_sampler=planned,  # type: ignore[arg-type]
            num_workers=data.num_workers,
            collate_fn=as_is,
            # the global generator belongs to the clients
            generator=torch.Generator(),
        )
        self._made = iter(loader)

    def batches(self, slot: int) -> Iterator[Any]:
        """Yield the batches of a task; what is left of tasks before it is passed over."""
        return (batch for made_for, batch in self._made if made_for == slot)


def make_here(data: FederatedDataModule, planned: Iterable[PlannedBatch], device: torch.device) -> Iterator[Any]:
    """Yield the same batches, made in this process, whose generators go on as if they were not."""
    for each in planned:
        with preserved_generators(device):
            _, batch = _make(data, each)
        yield batch


class _Batches(Dataset[Any]):
    """Whole batches, of which a ``DataLoader`` asks for one at a time."""

    def __init__(self, data: FederatedDataModule) -> None:
        self.data = data

    def __getitems__(self, planned: PlannedBatch) -> tuple[int, Any]:
        return _make(self.data, planned)


def _make(data: FederatedDataModule, planned: PlannedBatch) -> tuple[int, Any]:
    seed, *parts = planned.seeds
    seed_global_generators(seed, Stream.CLIENT, *parts)
    samples = fetch(data.client_dataset(planned.client), planned.positions)
    return planned.slot, batch_of(samples, data.source_collate_fn)
