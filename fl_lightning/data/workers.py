"""Processes that make clients' batches ahead of time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, Protocol

import torch
import torch.multiprocessing
from torch.utils.data import Dataset, default_collate

from fl_lightning.data.batches import Collate, fetch
from fl_lightning.seeding import Stream, seed_global_generators

_AHEAD = 2  # batches for each process that are made before they are asked for


class HasClients(Protocol):
    """What processes need of a data module."""

    @property
    def source_collate_fn(self) -> Collate | None:
        """Makes a batch of a list of samples."""

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return a client's training samples."""


class BatchWorkers:
    """Processes that fetch samples and collate them.

    Random numbers that samples or transforms draw depend only on the epoch's seed and the batch's number, not on the
    process that makes the batch.

    Args:
        data: The clients' samples; as they are when the first batch is asked for.
        number: Number of processes.
    """

    def __init__(self, data: HasClients, number: int) -> None:
        context = torch.multiprocessing.get_context()
        self._pool = ProcessPoolExecutor(number, mp_context=context, initializer=_begin, initargs=(data,))
        self._most = _AHEAD * number
        self._under_way = 0

    def batches(self, client: int, positions: Sequence[list[int]], seed: int) -> Iterator[Any]:
        """Yield the batches of one epoch of a client.

        Args:
            client: Position of the client.
            positions: The positions of each batch's samples.
            seed: Seed of the epoch.
        """
        waiting: deque[Future[Any]] = deque()
        try:
            for index, chosen in enumerate(positions):
                waiting.append(self._pool.submit(_make, client, chosen, seed, index))
                self._under_way += 1
                # several clients may ask in turn: each has one batch under way, and together they fill the processes
                while waiting and self._under_way > self._most:
                    yield self._next(waiting)
            while waiting:
                yield self._next(waiting)
        finally:
            self._under_way -= len(waiting)
            for future in waiting:
                future.cancel()

    def _next(self, waiting: deque[Future[Any]]) -> Any:
        self._under_way -= 1
        return waiting.popleft().result()

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)


_data: HasClients | None = None


def _begin(data: HasClients) -> None:
    """Prepare a process: the parent alone answers to Ctrl-C, and no process outlives it."""
    global _data
    _data = data
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # it was killed; nobody takes what is made here


def _make(client: int, positions: list[int], seed: int, index: int) -> Any:
    """Make a batch."""
    assert _data is not None
    seed_global_generators(seed, Stream.CLIENT, index)
    samples = fetch(_data.client_dataset(client), positions)
    return (_data.source_collate_fn or default_collate)(samples)
