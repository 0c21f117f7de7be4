"""Processes that make clients' batches ahead of time."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, Protocol

import torch
import torch.multiprocessing
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch.utils.data import Dataset

from fl_lightning.data.batches import Collate, batch_of, fetch
from fl_lightning.data.pickle_digest import pickle_digest
from fl_lightning.data.same_batches import same_bits
from fl_lightning.data.transforms import Transform
from fl_lightning.data.user_generators import OwnGenerators
from fl_lightning.representation import joined
from fl_lightning.seeding import Stream, seed_global_generators

_AHEAD = 2  # batches for each process that are made before they are asked for
_TRIED = 2  # samples of a batch that is made twice


class HasClients(Protocol):
    """What processes need of a data module."""

    num_workers: int
    train_transform: Transform | None

    @property
    def source_collate_fn(self) -> Collate | None:
        """Makes a batch of a list of samples."""

    def client_dataset(self, client: int) -> Dataset[Any]:
        """Return a client's training samples."""


class BatchWorkers:
    """Processes that fetch samples and collate them, for the clients whose batches suit that.

    Random numbers that samples or transforms draw from global generators depend only on the epoch's seed and the
    batch's number, not on the process that makes the batch. Everything else that a batch depends on beside its samples,
    such as a counter, would depend on which process has made which batches before. So a small batch of each client is
    made twice before the first one is asked for. If they differ, or a generator of the data's own has drawn,
    :meth:`suit` is false for this client, until the fit ends.

    Args:
        data: The clients' samples. Processes see them as they are when the first batch is asked for, and after each
            :meth:`close` or :meth:`renew` as they are when the next one is.
    """

    def __init__(self, data: HasClients) -> None:
        self._data = data
        self._processes: _Processes | None = None
        self._suit: dict[int, bool] = {}
        self._parts: tuple[Any, ...] = ()
        self._has_told = False
        self._data_may_differ = False  # from those that the processes hold

    def suit(self, client: int, batch_size: int) -> bool:
        """Return whether processes may make a client's batches.

        Args:
            client: Position of the client.
            batch_size: Number of samples of its first batch. As many are tried if two cannot be made a batch.
        """
        parts = (self._data.train_transform, self._data.source_collate_fn)
        if parts != self._parts:
            self._parts = parts
            self._suit.clear()
        if client not in self._suit:
            self._suit[client] = self._started().result(_can_be_repeated, client, batch_size)
        if not self._suit[client] and not self._has_told:
            self._has_told = True
            rank_zero_warn(
                f"A batch of client {client} depends on more than its samples and the global generators: "
                f"{self._kept_by(client)} keeps a state, such as a counter or a generator of its own, or draws random "
                "numbers without a seed. Processes would change such a state in an order that differs from run to run, "
                f"so these batches are made in the training process, as with `num_workers=0`, not "
                f"{self._data.num_workers}. For processes, draw from the global generators of torch, numpy or Python, "
                "which are seeded for each batch, and keep no state."
            )
        return self._suit[client]

    def _kept_by(self, client: int) -> str:
        """Return what makes a client's batches, in words."""
        transform, collate = self._parts
        dataset: Any = self._data.client_dataset(client)
        while hasattr(dataset, "dataset"):
            dataset = dataset.dataset
        names = [f"`{type(dataset).__name__}`"]
        names += ["`train_transform`"] if transform is not None else []
        names += ["`collate_fn`"] if collate is not None else []
        return joined(names, "or")

    def batches(self, client: int, positions: Sequence[list[int]], seed: int) -> Iterator[Any]:
        """Yield the batches of one epoch of a client.

        Args:
            client: Position of the client.
            positions: The positions of each batch's samples.
            seed: Seed of the epoch.

        Raises:
            RuntimeError: If a process dies.
        """
        return self._started().batches(client, positions, seed)

    def _started(self) -> _Processes:
        if self._processes is not None and self._data_may_differ and not self._processes.hold(self._data):
            self.close()
        self._data_may_differ = False
        if self._processes is None:
            self._processes = _Processes(self._data, self._data.num_workers)
        return self._processes

    def renew(self) -> None:
        """Let the next batch be made with the data as they are then.

        Processes that were forked end, since it takes milliseconds to fork others. Where processes are not forked, as
        on macOS and Windows, each start takes seconds, because it imports PyTorch and Lightning. There the processes
        stay if the data are still the same when the next batch is asked for, byte for byte of their pickle.
        """
        if self._processes is not None and self._processes.are_forked:
            self.close()
        self._data_may_differ = True

    def close(self) -> None:
        """End the processes; the next batch starts others."""
        if self._processes is not None:
            self._processes.close()
            self._processes = None


class _Processes:
    """A pool of processes, which hold a copy of the data."""

    def __init__(self, data: HasClients, number: int) -> None:
        context = torch.multiprocessing.get_context()
        self._pool = ProcessPoolExecutor(number, mp_context=context, initializer=_begin, initargs=(data,))
        self.are_forked = context.get_start_method() == "fork"
        self._digest = None if self.are_forked else pickle_digest(data)
        self._number, self._most = number, _AHEAD * number
        self._under_way = 0

    def hold(self, data: HasClients) -> bool:
        """Return whether the processes hold the data as they are now; false where that cannot be known."""
        return self._digest is not None and self._digest == pickle_digest(data)

    def result(self, function: Any, *args: Any) -> Any:
        """Return what a function returns in a process."""
        return self._of(self._submit(function, *args))

    def batches(self, client: int, positions: Sequence[list[int]], seed: int) -> Iterator[Any]:
        """Yield the batches of one epoch of a client."""
        waiting: deque[Future[Any]] = deque()
        try:
            for index, chosen in enumerate(positions):
                waiting.append(self._submit(_make, client, chosen, seed, index))
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
        return self._of(waiting.popleft())

    def _submit(self, function: Any, *args: Any) -> Future[Any]:
        try:
            return self._pool.submit(function, *args)
        except BrokenProcessPool as error:
            raise self._died() from error

    def _of(self, future: Future[Any]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise self._died() from error

    def _died(self) -> RuntimeError:
        return RuntimeError(
            f"{'The process' if self._number == 1 else 'A process'} that makes clients' batches has died "
            f"(`num_workers={self._number}`). The usual cause is too little memory: the system ends a process "
            "that asks for too much. Give the data module fewer `num_workers`, or 0, which makes batches in the "
            "training process."
        )

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
    return batch_of(samples, _data.source_collate_fn)


def _can_be_repeated(client: int, batch_size: int) -> bool:
    """Return whether a batch is the same when it is made again.

    It has the client's first samples, the same in every run: one that goes on from a checkpoint asks for a client in
    another round.
    """
    try:
        return _is_same_again(client, list(range(min(_TRIED, batch_size))))
    except Exception:  # not a batch that anybody has asked for: a function may collate whole batches alone
        return _is_same_again(client, list(range(batch_size)))


def _is_same_again(client: int, positions: list[int]) -> bool:
    assert _data is not None
    first = _make(client, positions, 0, client)
    with suppress(Exception):  # what cannot be copied is compared as it is
        first = copy.deepcopy(first)  # it may be a part of what is changed
    # only now: what is opened or made at the first use is there
    generators = OwnGenerators(_data.train_transform, _data.source_collate_fn, _data.client_dataset(client))
    second = _make(client, positions, 0, client)
    return same_bits(first, second) and not generators.have_drawn()
