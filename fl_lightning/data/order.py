"""The order in which samples are drawn: of one client, of several together, and of a process's share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, Sampler, SequentialSampler

from fl_lightning.data.batches import length
from fl_lightning.words import short_repr

ClientOrder = Callable[[int, Dataset[Any], torch.Generator], Iterable[int]]
"""Gets a client's position, its training samples before any transform, and the generator of the epoch's order; returns
the positions of one epoch, for example a ``torch.utils.data.WeightedRandomSampler``."""


def drawn_by(sampler: ClientOrder, client: int, dataset: Dataset[Any], generator: torch.Generator) -> Tensor:
    """Return the positions of one epoch that a user's function draws, int64, shape (n_k,).

    Raises:
        ValueError: If it returns other than n_k positions of the client's samples.
    """
    size = length(dataset)
    # One position too many is enough for an error; a sampler may never end.
    drawn = islice(sampler(client, dataset, generator), size + 1)
    order = torch.as_tensor(list(drawn))
    is_whole = not order.is_floating_point() and order.dtype != torch.bool
    if not is_whole or order.shape != (size,) or int(order.min()) < 0 or int(order.max()) >= size:
        raise ValueError(
            f"`sampler` must return as many positions as client {client} has samples, {size}, from 0 to {size - 1}, "
            f"got {len(order)}: {short_repr(order.tolist())}. Repeat some or leave some out; for another amount of "
            "work give the algorithm `local_steps`."
        )
    return order.long()


def drawn_together(orders: Sequence[Tensor], generator: torch.Generator) -> Tensor:
    """Return the orders of several data sets, one after the other, as one order of all, shuffled; shape (n,)."""
    positions = []
    start = 0
    for order in orders:
        positions.append(order + start)
        start += len(order)
    together = torch.cat(positions)
    return together[torch.randperm(len(together), generator=generator)]


class PooledOrder(Sampler[int]):
    """Draws the samples of all training clients together, each client's in its order.

    Args:
        size: Number of samples.
        draw: Returns the positions of one epoch for a generator.
    """

    def __init__(self, size: int, draw: Callable[[torch.Generator], Tensor]) -> None:
        self._size = size
        self._draw = draw

    def __len__(self) -> int:
        """Return the number of draws of an epoch."""
        return self._size

    def __iter__(self) -> Iterator[int]:
        """Yield the positions of one epoch; its seed comes from torch's global generator."""
        generator = torch.Generator()
        generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        yield from self._draw(generator).tolist()


class EvaluationShare(DistributedSampler[int], SequentialSampler):
    """A process's share of an evaluation set: samples r, r + R, r + 2R, ... of process r of R; none counts twice.

    Lightning's own share of an evaluation is padded with repeated samples to one length in all processes. With
    ``overfit_batches`` Lightning puts that in the place of any sampler that is not sequential.

    Args:
        dataset: The samples of all processes.
        num_replicas: Number of processes R.
        rank: This process's r.
        samples: The number of samples, the first ones, that all processes share; all if ``None``.
    """

    def __init__(self, dataset: Dataset[Any], num_replicas: int, rank: int, samples: int | None = None) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle=False)
        if samples is None:
            samples = length(dataset)
        self.share = range(rank, samples, num_replicas)
        # Lightning and PyTorch take this for the sampler's length.
        self.num_samples = len(self.share)

    def __iter__(self) -> Iterator[int]:
        """Yield the positions of this process's samples."""
        return iter(self.share)


def evaluation_share(
    dataset: Dataset[Any],
    batch_size: int,
    num_replicas: int,
    rank: int,
    limit: Callable[[int], float] | None,
) -> tuple[EvaluationShare, int]:
    """Return a process's share of an evaluation set, and the size of its batches.

    Args:
        dataset: The samples of all processes, at least one each.
        batch_size: The number of samples of a batch that is asked for.
        num_replicas: Number of processes.
        rank: This process's number.
        limit: Returns how many of all batches the processes evaluate together; all if ``None``.
    """
    samples = length(dataset)
    if limit is not None:
        batches = limit(math.ceil(samples / batch_size))
        samples = max(min(samples, int(batches * batch_size)), num_replicas)
    share = EvaluationShare(dataset, num_replicas, rank, samples)
    return share, shared_batch_size(samples, num_replicas, batch_size)


def shared_batch_size(samples: int, num_replicas: int, batch_size: int) -> int:
    """Return a batch size near ``batch_size`` with which all processes have equally many batches.

    Values that are reduced over processes after each batch need that. Shares of :class:`EvaluationShare` differ by one
    sample at most. Batches of one sample stay such, and some processes then have a batch more.

    Args:
        samples: Number of samples of all processes, at least one each.
        num_replicas: Number of processes.
        batch_size: The number of samples that is asked for.
    """
    smaller_share, num_larger = divmod(samples, num_replicas)
    if num_larger == 0 or batch_size == 1:
        return batch_size
    # Where the smaller share is whole batches, one sample more makes one batch more.
    smaller_sizes = range(batch_size, 1, -1)
    larger_sizes = count(batch_size + 1)
    return next(size for size in chain(smaller_sizes, larger_sizes) if smaller_share % size)
