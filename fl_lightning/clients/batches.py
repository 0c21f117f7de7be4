"""How long a client trains, and the batches of its local training.

A client with 10 samples and a batch size of 4 has three batches in an epoch, of 4, 4 and 2 samples. With two local
epochs :meth:`ClientBatches.number` is 6. Where an objective takes two batches for one step, hooks and counters see half
as many: :meth:`ClientBatches.counted` is 3. Where Lightning accumulates the gradients of two batches, they see all 6,
and the optimizer steps after the batches 2, 3, 5 and 6, since an epoch's rest is applied at its end:
:meth:`ClientBatches.windows` is ``[2, 1, 2, 1]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import chain, count, cycle, islice, repeat
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.loops.overrides import is_plain_transfer
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.batches import client_batches, number_of_batches, tensor_rows
from fl_lightning.data.round_loader import PlannedBatch, RoundLoader, make_here
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import Task
from fl_lightning.seeding import Stream, default_seed, torch_generator
from fl_lightning.settings import Count, Natural, PathLike, check_fields


@dataclass
class LocalSettings:
    """How long clients train in a round, and from which seed.

    Attributes:
        local_epochs: Passes over a client's data; 1, where steps are counted.
        local_steps: Optimizer steps instead of passes; ``None`` counts passes.
        seed: The run's seed; ``None`` takes the seed of ``lightning.seed_everything``.
        state_dir: Folder of vectors that clients keep; ``None`` keeps them in memory.
        continue_epochs: Whether a client goes on in its epoch where its last round ended.
        resumed_seed: The seed of the run that is resumed, which comes before the others.

    Raises:
        ValueError: If an argument is out of its range, or both kinds of work are given.
    """

    local_epochs: Count = 1
    local_steps: Count | None = None
    seed: Natural | None = None
    state_dir: PathLike | None = None
    continue_epochs: bool = False
    resumed_seed: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.local_epochs != 1 and self.local_steps is not None:
            raise ValueError(
                f"Give `local_epochs` or `local_steps`, not both; got {self.local_epochs} and {self.local_steps}. "
                "A client trains for whole passes over its data, or for a fixed number of optimizer steps, and "
                "`local_epochs` then stays 1."
            )
        if self.state_dir is not None and Path(self.state_dir).is_file():
            raise ValueError(f"`state_dir` must be a folder, got the file {self.state_dir}.")

    @property
    def full_work(self) -> int:
        """Local epochs, or steps, of a client that does all."""
        return self.local_steps or self.local_epochs

    @property
    def run_seed(self) -> int:
        """Seed of client draws, shuffling and everything random inside clients."""
        if self.resumed_seed is not None:
            return self.resumed_seed
        return default_seed() if self.seed is None else self.seed


class ClientBatches:
    """Counts and draws the batches of clients.

    Args:
        trainer: The trainer, for its limits and accumulation.
        data: The clients' data.
        settings: How long clients train.
        algorithm: The algorithm; its local objective may take several batches for a step.
    """

    def __init__(
        self, trainer: pl.Trainer, data: FederatedDataModule, settings: LocalSettings, algorithm: Algorithm
    ) -> None:
        self._trainer = trainer
        self.data = data
        self.settings = settings
        self._algorithm = algorithm
        #: Makes batches ahead, in other processes, while a round's clients train.
        self._loader: RoundLoader | None = None
        self._kept: dict[Task, list[Any]] = {}
        #: Memory of one training sample, of the first batch that was drawn; ``None`` before.
        self._bytes_drawn: float | None = None
        self.count_anew()

    def count_anew(self) -> None:
        """Forget what was counted: hooks may have set another batch size, or another amount of work."""
        self._settings = copy(self.settings)
        self._epoch_lengths: dict[int, int] = {}
        #: Batches that the client had before a task, if its epochs go on from round to round.
        self._begins: dict[Task, int] = {}
        self._rows: dict[int, tuple[tuple[Tensor, ...], Tensor | None] | None] = {}

    # ---- how many ----

    def epoch_length(self, client: int) -> int:
        """Return the number of batches of one local epoch."""
        if client not in self._epoch_lengths:
            self._epoch_lengths[client] = self._limit(self.data.num_client_batches(client))
        return self._epoch_lengths[client]

    def number(self, task: Task) -> int:
        """Return the number of batches that a task's local training draws."""
        settings = self._settings
        work = settings.full_work if task.work is None else task.work
        if settings.local_steps is not None:
            return work * self._algorithm.batches_per_step(task) * int(self._trainer.accumulate_grad_batches)
        return work * self.epoch_length(task.client)

    def counted(self, task: Task) -> int:
        """Return how many batches of a task hooks, counters and progress bars see: those of one step are one to them.

        Batches whose gradients Lightning accumulates count each, as in Lightning.
        """
        return math.ceil(self.number(task) / self._algorithm.batches_per_step(task))

    def one_pass(self, task: Task) -> int:
        """Return after how many counted batches accumulated gradients are applied: a local epoch, or all steps."""
        if self._settings.local_steps is not None or self._algorithm.batches_per_step(task) > 1:
            return self.counted(task)
        return self.epoch_length(task.client)

    def windows(self, task: Task) -> list[int]:
        """Return the number of batches of each optimizer step of a task, as Lightning accumulates gradients."""
        return self._windows(self.number(task), self.one_pass(task))

    def _windows(self, batches: int, one_pass: int) -> list[int]:
        accumulate = int(self._trainer.accumulate_grad_batches)
        if accumulate == 1:
            return [1] * batches
        steps, rest = divmod(one_pass, accumulate)
        sizes = [accumulate] * steps
        if rest:
            sizes.append(rest)
        return sizes * (batches // one_pass)

    def largest(self, tasks: Sequence[Task]) -> int:
        """Return the largest number of samples in a batch of some tasks."""
        return self.data.batch_size or max(task.num_samples for task in tasks)

    def num_samples(self, task: Task) -> int:
        """Return how many samples a task's local training goes through; a repeated sample counts each time."""
        begin = self._in_epoch(task)
        # Where the last step of whole epochs lacks batches, the first ones come again, as in another epoch.
        number = self.counted(task) * self._algorithm.batches_per_step(task)
        return self._samples_of(task, begin + number) - self._samples_of(task, begin)

    def _samples_of(self, task: Task, batches: int) -> int:
        """Return how many samples so many batches have, from an epoch's start."""
        size = self.data.batch_size
        samples = task.num_samples
        one_pass = self.epoch_length(task.client)
        passes, rest = divmod(batches, one_pass)
        # Without a batch size, all samples are one batch.
        if size is None:
            size = samples
        in_pass = min(one_pass * size, samples)
        return passes * in_pass + min(rest * size, samples)

    def mean_counted(self) -> int:
        """Return the mean number of counted batches of one client's local training, rounded up; see :meth:`counted`."""
        settings = self._settings
        data = self.data
        if settings.local_steps is not None:
            return settings.local_steps * int(self._trainer.accumulate_grad_batches)
        per_step = self._algorithm.objective.batches_per_step
        sizes, repeats = np.unique(data.client_sizes, return_counts=True)
        total = 0
        for size, clients in zip(sizes.tolist(), repeats.tolist(), strict=True):
            epoch = self._limit(number_of_batches(size, data.batch_size, data.drop_last))
            total += clients * math.ceil(epoch * settings.local_epochs / per_step)
        return math.ceil(total / int(repeats.sum()))

    def _limit(self, batches: int, limit: float | None = None) -> int:
        """Apply ``limit_train_batches`` (or ``overfit_batches``), or another limit; at least one batch stays."""
        if limit is None:
            limit = self._trainer.limit_train_batches
        if isinstance(limit, int):
            return min(batches, limit)
        return max(1, int(batches * limit))

    # ---- which ----

    @property
    def shuffles(self) -> bool:
        """Whether a client's samples are drawn in a new order each epoch."""
        return self.data.shuffle and not fit_trainer(self._trainer).overfit_batches

    def place(self, tasks: Sequence[Task], done: dict[tuple[int, int], int]) -> None:
        """Let tasks begin after the batches that clients have ``done`` in their phase, and add those of the tasks."""
        for task in tasks:
            begin = done.get((task.client, task.phase), 0)
            self._begins[task] = begin
            done[task.client, task.phase] = begin + self.number(task)

    def _in_epoch(self, task: Task) -> int:
        """Return the batches of a task's first epoch that earlier rounds had."""
        return self._begins.get(task, 0) % self.epoch_length(task.client)

    def iterate(self, task: Task) -> Iterator[Any]:
        """Yield the batches of a task's local training, epoch after epoch, each shuffled anew.

        Where they end within a step of several batches, the first ones complete it.
        """
        if task in self._kept:
            return iter(self._kept.pop(task))
        per_step = self._algorithm.batches_per_step(task)
        drawn = self._drawn(task)
        if self._bytes_drawn is None:
            drawn = self._measured(task, drawn)
        if per_step == 1:
            return drawn
        return _completed(drawn, per_step)

    def keep(self, task: Task, batches: list[Any]) -> None:
        """Keep all batches of a task, which were drawn but not trained on, for the next time that they are asked for.

        Data that count or draw by themselves would draw others.
        """
        self._kept[task] = batches

    def _drawn(self, task: Task) -> Iterator[Any]:
        if not self._made_by_processes(task.client):
            begin = self._in_epoch(task)
            return islice(self._epochs(task), begin, begin + self.number(task))
        if self._loader is not None:
            return islice(self._loader.batches(task.slot), self.number(task))
        return make_here(self.data, self._planned(task), self._trainer.strategy.root_device)

    @contextmanager
    def made_ahead(self, tasks: Sequence[Task]) -> Iterator[None]:
        """Let ``num_workers`` processes make the batches of some tasks, which then train in this order."""
        chosen = [task for task in tasks if self._made_by_processes(task.client)]
        if chosen:
            self._loader = RoundLoader(self.data, chain.from_iterable(map(self._planned, chosen)))
        try:
            yield
        finally:
            self._loader = None

    def _made_by_processes(self, client: int) -> bool:
        if not self.data.num_workers or not self._is_usual:
            return False
        return self.data.source_collate_fn is not None or self._find_rows(client) is None

    def _planned(self, task: Task) -> Iterator[PlannedBatch]:
        """Yield which samples the batches of a task have."""
        size = self.data.batch_size or task.num_samples
        batches = chain.from_iterable(order.split(size) for order in self.orders(task))
        for index, positions in enumerate(islice(batches, self.number(task))):
            seeds = (self._settings.run_seed, *task.seeds, index)
            yield PlannedBatch(task.slot, task.client, positions.tolist(), seeds)

    def _generators(self, task: Task) -> Iterator[torch.Generator]:
        """Yield the generator of the order of samples of each epoch of a task."""
        seed = self._settings.run_seed
        if task not in self._begins:
            # The same generator for every epoch: each goes on where the one before ended.
            return repeat(torch_generator(seed, Stream.SHUFFLE, *task.seeds))
        first = self._begins[task] // self.epoch_length(task.client)
        return (torch_generator(seed, Stream.SHUFFLE, task.client, epoch) for epoch in count(first))

    def are_tensors(self, client: int) -> bool:
        """Whether a client's epoch can be gathered at once: its samples are rows of tensors, and nothing collates."""
        return self._is_usual and self.data.source_collate_fn is None and self.has_rows(client)

    @property
    def _is_usual(self) -> bool:
        """Whether nobody has overridden how a client's batches are made."""
        return type(self.data).client_batches is FederatedDataModule.client_batches

    def has_rows(self, client: int) -> bool:
        """Whether a client's samples are rows of tensors, in an order that draws from the task's generator alone."""
        return self.data.sampler is None and self._find_rows(client) is not None

    def rows(self, client: int) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return the tensors whose rows are a client's samples, and which rows: int64, shape ``(n,)``; None for all."""
        rows = self._find_rows(client)
        assert rows is not None
        return rows

    def stored_targets(self, client: int) -> Tensor | None:
        """Return the targets of a client's samples, in their stored order, if they are rows of a tensor as they are."""
        data = self.data
        has_own_rule = type(data).outputs_and_targets is not FederatedDataModule.outputs_and_targets
        if has_own_rule or not is_plain_transfer(self._trainer) or not self.are_tensors(client):
            return None
        tensors, rows = self.rows(client)
        _, target = data.outputs_and_targets(tensors, None)
        assert isinstance(target, Tensor)
        return target if rows is None else target[rows]

    def _find_rows(self, client: int) -> tuple[tuple[Tensor, ...], Tensor | None] | None:
        if client not in self._rows:
            self._rows[client] = tensor_rows(self.data.client_dataset(client))
        return self._rows[client]

    def orders(self, task: Task) -> Iterator[Tensor]:
        """Yield the positions of a client's samples, int64, in the order of an epoch's batches, epoch after epoch."""
        size = self.data.batch_size or task.num_samples
        begin = self._in_epoch(task) * size
        end = min(task.num_samples, self.epoch_length(task.client) * size)
        for generator in self._generators(task):
            order = self.data.client_order(task.client, generator) if self.shuffles else torch.arange(task.num_samples)
            yield order[begin:end]
            # Only the first epoch goes on where an earlier round ended.
            begin = 0

    def _epochs(self, task: Task) -> Iterator[Any]:
        for generator in self._generators(task):
            epoch = self.data.client_batches(task.client, generator=generator, shuffle=self.shuffles)
            yield from islice(epoch, self.epoch_length(task.client))

    def pooled(self, clients: Sequence[int], generator: torch.Generator) -> Iterator[list[Any]]:
        """Yield the batches of each optimizer step of a client that holds the samples of several clients."""
        data = self.data
        settings = self._settings
        accumulate = int(self._trainer.accumulate_grad_batches)
        samples = int(data.client_sizes[list(clients)].sum())
        one_epoch = self._limit(number_of_batches(samples, data.batch_size, data.drop_last))
        if settings.local_steps is not None:
            windows = [accumulate] * settings.local_steps
        else:
            windows = self._windows(settings.local_epochs * one_epoch, one_epoch)
        epochs = (islice(data.pooled_batches(clients, generator=generator), one_epoch) for _ in repeat(None))
        batches = chain.from_iterable(epochs)
        for window in windows:
            yield list(islice(batches, window))

    def in_order(self, client: int, batch_size: int | None) -> Iterator[Any]:
        """Yield a client's samples once, in their stored order."""
        return client_batches(self.data.client_dataset(client), batch_size, None, False, self.data.source_collate_fn)

    def to_evaluate(self, client: int) -> Iterator[Any]:
        """Yield a client's training samples in order, in evaluation-sized batches, up to ``limit_val_batches``."""
        size = self.data.evaluation_batch_size(self.data.client_dataset(client))
        number = number_of_batches(int(self.data.client_sizes[client]), size, drop_last=False)
        return islice(self.in_order(client, size), self._limit(number, self._trainer.limit_val_batches))

    @property
    def bytes_per_sample(self) -> float | None:
        """Memory of one training sample; ``None`` where samples are no rows and no batch was drawn yet.

        No sample is read for it: data may count what is read of them.
        """
        # Where data change, some clients may have none.
        client = int(self.data.client_sizes.argmax())
        if self.has_rows(client):
            tensors, _ = self.rows(client)
            return float(sum(tensor[:1].nbytes for tensor in tensors))
        return self._bytes_drawn

    def _measured(self, task: Task, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches, and note the memory of a sample of the first one."""
        for batch in batches:
            if self._bytes_drawn is None:
                held = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, (Tensor, np.ndarray))]
                # Of a sparse tensor as many as if it were dense.
                size = sum(math.prod(leaf.shape) * leaf.itemsize for leaf in held)
                self._bytes_drawn = size / min(self.largest([task]), task.num_samples)
            yield batch


def _completed(batches: Iterator[Any], size: int) -> Iterator[Any]:
    """Yield batches, and the first ones again until their number is a multiple of ``size``."""
    first = list[Any]()
    number = 0
    for number, batch in enumerate(batches, 1):
        if number < size:
            first.append(batch)
        yield batch
    yield from islice(cycle(first), -number % size)


def warn_of_single_samples(module: pl.LightningModule, data: FederatedDataModule) -> None:
    """Warn of clients that have a batch of one sample, where ``BatchNorm1d`` would end the fit when they train."""
    if not any(isinstance(part, nn.BatchNorm1d) for part in module.modules()):
        return
    sizes = data.client_sizes
    full = data.batch_size or math.inf
    has_single = (sizes == 1) | (full == 1)
    if not data.drop_last:
        has_single |= sizes % full == 1
    single = np.flatnonzero(has_single)
    if len(single):
        rank_zero_warn(
            f"Some clients ({len(single)} of {len(sizes)}, such as client {single[0]}) have a batch of one sample, and "
            "BatchNorm1d cannot train on one. Set another `batch_size`, or `drop_last=True` (not for clients of one "
            "sample), or take LayerNorm."
        )
