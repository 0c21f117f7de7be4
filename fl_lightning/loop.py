"""The federated loop: a round of local training in the place of an epoch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from torch import Tensor

from fl_lightning._lightning.refusals import refuse_unsupported
from fl_lightning._lightning.round_loop import RoundLoop
from fl_lightning.data import FederatedDataModule
from fl_lightning.executors import SequentialExecutor, share_out
from fl_lightning.federation import ClientResult, Task
from fl_lightning.seeding import Stream, seed_global_generators, torch_generator
from fl_lightning.vector import StateVector

if TYPE_CHECKING:
    from fl_lightning.callbacks.base import AggregationCallback


class FederatedLoop(RoundLoop):
    """Trains the clients of each round and lets the algorithm act on what they hand back.

    The loop is installed by an aggregation callback and knows that callback's base class alone. Between rounds the
    LightningModule is the server's model; inside a round it is each client's in turn.

    Args:
        trainer: The trainer.
        callback: The aggregation callback, which holds the algorithm and its settings.
    """

    def __init__(self, trainer: pl.Trainer, callback: AggregationCallback) -> None:
        super().__init__(trainer)
        self.callback = callback
        self._executor = SequentialExecutor()

    def take_over(self, stock: Any) -> None:
        """Continue where ``stock`` is, with this loop's callback."""
        callback, executor = self.callback, self._executor
        super().take_over(stock)
        self.callback, self._executor = callback, executor

    @property
    def data(self) -> FederatedDataModule:
        """The trainer's federated data module."""
        data = getattr(self.trainer, "datamodule", None)
        assert isinstance(data, FederatedDataModule)
        return data

    # ---- a fit ----

    def check(self) -> None:
        """Refuse what cannot work, before any work is done."""
        refuse_unsupported(self.trainer, self.callback)
        cohort = self.callback.algorithm.sampler.cohort_size(self.data.num_clients)
        if cohort < self.trainer.world_size:
            raise ValueError(
                f"{cohort} clients train in a round, but there are {self.trainer.world_size} processes, so some would "
                f"stay idle. Raise `clients_per_round` or give `Trainer(devices=...)` at most {cohort}."
            )

    def batches_per_client(self) -> int:
        """Return the mean number of batches of one client's local training, rounded up."""
        sizes = self.data.client_sizes
        batch_size = self.data.batch_size
        if self.callback.local_steps is not None:
            return self.callback.local_steps * int(self.trainer.accumulate_grad_batches)
        epoch = -(-sizes // batch_size) if batch_size is not None else sizes.clip(max=1)
        return math.ceil(sum(self._limit(int(n)) for n in epoch) * self.callback.local_epochs / len(sizes))

    def begin_fit(self) -> None:
        """Take the module's weights as the server's model, or go on from a checkpoint."""
        self.vector = StateVector(self.trainer.lightning_module)
        vector, fresh = self.vector, self.round_index == 0
        self.callback.algorithm.begin(vector.read(), vector.num_parameters, self.sum_over_ranks, fresh=fresh)
        self._published = self.vector.read()

    def federation_fingerprint(self) -> str:
        """Return a short text that differs when the number or the sizes of the training clients do."""
        sizes = self.data.client_sizes.astype("<i8")
        return f"{len(sizes)} clients, {int(sizes.sum())} samples, {hashlib.sha256(sizes.tobytes()).hexdigest()[:12]}"

    def gather_models(self, models: dict[int, Tensor]) -> dict[int, Tensor]:
        """Join the circulating models of all processes."""
        if self.trainer.world_size == 1:
            return models
        shares = self.gather_objects({slot: model.cpu() for slot, model in models.items()})
        return dict(sorted(item for share in shares for item in share.items()))

    # ---- a round ----

    def plan_round(self) -> int:
        """Draw the clients and share them out; return how many batches this process will train."""
        algorithm = self.callback.algorithm
        self._tasks = algorithm.plan(self.round_index, self.data.client_sizes, self.callback.seed)
        costs = [self._num_batches(task.client) for task in self._tasks]
        trainer = self.trainer
        shares = share_out(self._tasks, costs, trainer.world_size, pinned=algorithm.schedule.keeps_models)
        self._share = shares[trainer.global_rank]
        return sum(costs[task.slot] for task in self._share)

    def train_round(self) -> None:
        """Train this process's clients."""
        self.vector.check_unchanged()
        self._executor.run(self._share, self.callback.algorithm, self._train_client)

    def close_round(self) -> None:
        """Let the server act and load the model that the user sees."""
        self._published = self.callback.algorithm.close_round(len(self._tasks))
        self.vector.write(self._published)
        seed_global_generators(self.callback.seed, Stream.SERVER, self.round_index)

    def discard_round(self) -> None:
        """Put the server's weights back and forget what clients handed in."""
        self.callback.algorithm.discard_round()
        self.vector.write(self._published)

    def server_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the module's ``state_dict`` with the weights published last instead of a client's."""
        trained = self.vector.read()
        self.vector.write(self._published)
        copy = {name: value.clone() if isinstance(value, Tensor) else value for name, value in state_dict.items()}
        self.vector.write(trained)
        return copy

    # ---- a client ----

    def _train_client(self, task: Task, start: Tensor) -> ClientResult:
        """Train one client from ``start`` and return its model."""
        self.stop_if_terminated()
        self.show_client(self._share.index(task) + 1, len(self._share))
        callback, loop = self.callback, self.epoch_loop
        self.vector.write(start)
        seed_global_generators(callback.seed, Stream.CLIENT, self.round_index, task.client)
        loop.begin_client()
        callback.begin_client(task, self.vector, start)
        number = self._num_batches(task.client)
        one_pass = number if callback.local_steps is not None else number // callback.local_epochs
        for index, batch in enumerate(islice(self._batches(task.client), number)):
            if not loop.train_batch(batch, index, is_last=(index + 1) % one_pass == 0):
                break
        return ClientResult(task, self.vector.read(), loop.end_client(task.slot))

    def _batches(self, client: int) -> Iterator[Any]:
        """Yield the client's batches, epoch after epoch, each shuffled anew."""
        generator = torch_generator(self.callback.seed, Stream.SHUFFLE, self.round_index, client)
        limit = self._limit(self.data.num_client_batches(client))
        shuffle = False if self.trainer.overfit_batches else None
        while True:
            yield from islice(self.data.client_batches(client, generator=generator, shuffle=shuffle), limit)

    def _num_batches(self, client: int) -> int:
        """Return the number of batches of a client's local training."""
        if self.callback.local_steps is not None:
            return self.callback.local_steps * int(self.trainer.accumulate_grad_batches)
        return self._limit(self.data.num_client_batches(client)) * self.callback.local_epochs

    def _limit(self, batches: int) -> int:
        """Apply ``limit_train_batches`` (or ``overfit_batches``) to a client's epoch; at least one batch stays."""
        limit = self.trainer.limit_train_batches
        if isinstance(limit, int):
            return min(batches, limit)
        return max(1, int(batches * limit))
