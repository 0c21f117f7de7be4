"""The federated loop: a round of local training in the place of an epoch."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import lightning.pytorch as pl
from torch import Tensor

from fl_lightning._lightning.quiet import QuietTraining
from fl_lightning._lightning.refusals import refuse_unsupported
from fl_lightning._lightning.round_loop import RoundLoop
from fl_lightning.clients.state_vector import StateVector
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.batches import client_batches
from fl_lightning.executors import SequentialExecutor, balance
from fl_lightning.executors.auto import Executor, make_executor
from fl_lightning.parts.federation import ClientResult, Federation, Task
from fl_lightning.seeding import Stream, seed_global_generators, torch_generator

if TYPE_CHECKING:
    from fl_lightning.algorithms.base import AggregationCallback


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
        self.executor: Executor = SequentialExecutor()

    def take_over(self, stock: Any) -> None:
        """Continue where ``stock`` is, with this loop's callback."""
        callback, executor = self.callback, self.executor
        super().take_over(stock)
        self.callback, self.executor = callback, executor

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
        self._epoch_lengths: dict[int, int] = {}
        self.__dict__.pop("quiet", None)
        self.callback.algorithm.begin(self.federation(), fresh=self.round_index == 0)
        self.epoch_loop.optimizers.past = self.callback.past_settings
        self._published = self.vector.read()
        self.executor = make_executor(self.callback.executor, self)
        self._score_clients()

    @cached_property
    def quiet(self) -> QuietTraining:
        """Runs the module without a trace."""
        return QuietTraining(self.epoch_loop)

    def federation(self) -> Federation:
        """Return what the parts of an algorithm may know about the run."""
        trainer, vector = self.trainer, self.vector
        return Federation(
            sizes=self.data.client_sizes,
            model=vector.read(),
            lengths=[parameter.numel() for parameter in vector.parameters],
            seed=self.callback.seed,
            rank=trainer.global_rank,
            num_ranks=trainer.world_size,
            state_dir=self.callback.state_dir,
            sum_over_ranks=self.sum_over_ranks,
            gather=self.gather_objects,
            local_work=self._local_work,
        )

    def _local_work(self, kind: str) -> list[int]:
        """Return the samples or batches of each client's local training."""
        tasks = [Task(0, client, int(size)) for client, size in enumerate(self.data.client_sizes)]
        return [self.num_samples(task) if kind == "samples" else self.num_batches(task) for task in tasks]

    def _score_clients(self) -> None:
        """Score the clients that the sampler must know before its first draw, at the server's model."""
        algorithm, trainer = self.callback.algorithm, self.trainer
        waiting = list(algorithm.sampler.clients_without_score())
        if not waiting:
            return
        mine, scores = waiting[trainer.global_rank :: trainer.world_size], {}
        for client in self.with_progress(mine, "Scoring clients"):
            task = Task(0, client, int(self.data.client_sizes[client]))
            scores[client] = algorithm.sampler.score(ClientAtWork(task, algorithm.server.model, self))
        shares = self.gather_objects(scores)
        algorithm.sampler.take_scores({client: score for share in shares for client, score in share.items()})

    def federation_fingerprint(self) -> str:
        """Return a short text that differs when the number or the sizes of the training clients do."""
        sizes = self.data.client_sizes.astype("<i8")
        return f"{len(sizes)} clients, {int(sizes.sum())} samples, {hashlib.sha256(sizes.tobytes()).hexdigest()[:12]}"

    # ---- a round ----

    def plan_round(self) -> int:
        """Draw the clients; return how many batches this process will train, or about how many."""
        algorithm, callback, trainer = self.callback.algorithm, self.callback, self.trainer
        self._epoch_lengths.clear()  # the data module's batch size may be another one now
        full_work = callback.local_steps or callback.local_epochs
        tasks = algorithm.plan(self.round_index, self.data.client_sizes, callback.seed, full_work)
        if isinstance(tasks, int):
            self.epoch_loop.optimizers.keep_settings(self.round_index, algorithm.rounds_under_way())
            return -(-tasks * self.batches_per_client() // trainer.world_size)
        return sum(map(self.num_batches, self._share_of(tasks)))

    def train_round(self) -> None:
        """Train this process's clients."""
        self.vector.check_unchanged()
        algorithm = self.callback.algorithm
        for tasks in algorithm.batches():
            share = self._share_of(tasks)
            self._places = {task: place for place, task in enumerate(share, start=1)}
            self.executor.run(share, algorithm, self._train_client)

    def _share_of(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that this process trains."""
        if self.trainer.world_size == 1:
            return sorted(tasks, key=lambda task: task.slot)
        costs = [self.num_batches(task) for task in tasks]
        shares = balance(tasks, costs, self.trainer.world_size, self.callback.algorithm.owner)
        return shares[self.trainer.global_rank]

    def close_round(self) -> None:
        """Let the server act and load the model that the user sees."""
        self._published = self.callback.algorithm.close_round()
        self.vector.write(self._published)
        self.callback.end_round(self.trainer)
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
        self.show_client(self._places[task], len(self._places))
        callback, loop = self.callback, self.epoch_loop
        self.vector.write(start)
        loop.begin_client(task.round)
        client = self.at_work(task, start)
        callback.begin_client(client, self.vector)
        seed_global_generators(callback.seed, Stream.CLIENT, *task.seeds)
        number, one_pass = self.num_batches(task), self.one_pass(task)
        for index, batch in enumerate(islice(self.batches(task), number)):
            if not loop.train_batch(batch, index, is_last=(index + 1) % one_pass == 0):
                break
        steps = loop.end_client(task.slot)
        return callback.end_client(client, self.vector.read(), steps)

    def batches(self, task: Task) -> Iterator[Any]:
        """Yield the client's batches, epoch after epoch, each shuffled anew."""
        generator = torch_generator(self.callback.seed, Stream.SHUFFLE, *task.seeds)
        limit = self.epoch_length(task.client)
        while True:
            yield from islice(self.data.client_batches(task.client, generator=generator, shuffle=self.shuffles), limit)

    @property
    def shuffles(self) -> bool:
        """Whether a client's samples are drawn in a new order each epoch."""
        return self.data.shuffle and not self.trainer.overfit_batches

    def epoch_length(self, client: int) -> int:
        """Return the number of batches of one local epoch."""
        length = self._epoch_lengths.get(client)
        if length is None:
            length = self._epoch_lengths[client] = self._limit(self.data.num_client_batches(client))
        return length

    @cached_property
    def bytes_per_sample(self) -> int:
        """Memory of one training sample."""
        sample = self.data.client_dataset(0)[0]
        return sum(part.nbytes for part in sample if isinstance(part, Tensor)) if isinstance(sample, tuple) else 0

    def one_pass(self, task: Task) -> int:
        """Return the number of batches after which accumulated gradients are applied: a local epoch, or all steps."""
        return self.num_batches(task) if self.callback.local_steps is not None else self.epoch_length(task.client)

    def at_work(self, task: Task, start: Tensor) -> ClientAtWork:
        """Return the client of a task, as local objectives and samplers see it."""
        return ClientAtWork(task, start, self)

    def num_batches(self, task: Task) -> int:
        """Return the number of batches of a task's local training."""
        if self.callback.local_steps is not None:
            return (task.work or self.callback.local_steps) * int(self.trainer.accumulate_grad_batches)
        return (task.work or self.callback.local_epochs) * self.epoch_length(task.client)

    def _limit(self, batches: int) -> int:
        """Apply ``limit_train_batches`` (or ``overfit_batches``) to a client's epoch; at least one batch stays."""
        limit = self.trainer.limit_train_batches
        if isinstance(limit, int):
            return min(batches, limit)
        return max(1, int(batches * limit))

    # ---- beside the clients ----

    def gradients(self, client: int, batch_size: int | str | None) -> Iterator[tuple[dict[str, Tensor], int]]:
        """Yield the gradient of each of a client's batches by parameter name, and the batch's size."""
        seed_global_generators(self.callback.seed, Stream.SCORE, self.round_index, client)
        samples = int(self.data.client_sizes[client])
        size = self.data.batch_size if batch_size == "data" else batch_size
        assert size is None or isinstance(size, int)
        batches = self._in_order(client, size)
        for index, gradients in enumerate(self.quiet.gradients(batches, self.vector.names)):
            yield gradients, samples if size is None else min(size, samples - index * size)

    def predictions(self, client: int) -> tuple[Tensor, Tensor]:
        """Return the module's output on a client's training samples, and their targets, in stored order."""
        return self.quiet.predictions(self._in_order(client, self.data.eval_batch_size))

    def _in_order(self, client: int, batch_size: int | None) -> Iterator[Any]:
        return client_batches(self.data.client_dataset(client), batch_size, None, False, self.data.source_collate_fn)

    def num_samples(self, task: Task) -> int:
        """Return how many samples a task's local training goes through, repeated ones counted again."""
        size, n = self.data.batch_size, task.num_samples
        one_pass = self.epoch_length(task.client)
        passes, rest = divmod(self.num_batches(task), one_pass)
        return n * (passes + (rest > 0)) if size is None else passes * min(one_pass * size, n) + min(rest * size, n)

    def train_centrally(self, model: Tensor, clients: Sequence[int]) -> Tensor:
        """Train ``model`` on the union of the clients' samples as long as a client trains, and return it.

        Batch size, local epochs (or steps) and learning rates are the round's; nothing is logged. The module holds
        other weights afterwards.
        """
        callback, data = self.callback, self.data
        self.vector.write(model)
        seed_global_generators(callback.seed, Stream.TWIN, self.round_index)
        generator = torch_generator(callback.seed, Stream.TWIN, self.round_index, 1)
        dataset = data.pooled_dataset(clients)

        def epochs() -> Iterator[Any]:
            while True:
                yield from client_batches(dataset, data.batch_size, generator, data.shuffle, data.source_collate_fn)

        samples = int(data.client_sizes[list(clients)].sum())
        one_epoch = 1 if data.batch_size is None else -(-samples // data.batch_size)
        self.quiet.train(islice(epochs(), callback.local_steps or callback.local_epochs * one_epoch))
        return self.vector.read()


@dataclass
class ClientAtWork:
    """The client whose model the module holds; see :class:`~fl_lightning.parts.federation.LocalClient`."""

    task: Task
    start: Tensor
    loop: FederatedLoop

    def gradients(self, batch_size: int | str | None = "data") -> Iterator[tuple[dict[str, Tensor], int]]:
        """Yield each batch's gradient by parameter name, and its size."""
        return self.loop.gradients(self.task.client, batch_size)
