"""The federated loop: an epoch of the trainer is a round of local training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.logs.client_log import unnoticed
from fl_lightning._lightning.loops.client_loop import CorrectsGradients
from fl_lightning._lightning.loops.round_loop import RoundLoop
from fl_lightning._lightning.processes import warn_of_lost_results
from fl_lightning._lightning.refusals import refuse_unsupported
from fl_lightning._lightning.trainer_callbacks import monitored_values, restore_monitored_values
from fl_lightning.clients.batches import ClientBatches, LocalSettings, warn_of_single_samples
from fl_lightning.clients.optimizer_checks import check_steps_known
from fl_lightning.clients.training import LocalTraining, notify
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.descriptions import print_clients
from fl_lightning.executors import Executor, balance
from fl_lightning.executors.machine import Threads, keep_freed_memory
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import tensors_by_name
from fl_lightning.parts.messages import ClientResult, Task, Upload, same_values
from fl_lightning.parts.run import Run
from fl_lightning.seeding import Stream, seed_global_generators


class LoopCallback(CorrectsGradients, ABC):
    """A callback that installs a :class:`FederatedLoop`; settings may be set on it between rounds."""

    @abstractmethod
    def take_settings(self) -> None:
        """Let what was set on the callback hold from the next round on."""


class FederatedLoop(RoundLoop):
    """Trains the clients of each round and lets the algorithm act on their results.

    Between rounds the LightningModule is the server's model; inside a round it is each client's in turn.

    Args:
        trainer: The trainer.
        algorithm: The federated algorithm.
        executor: Computes the tasks of a round.
        settings: How long clients train.
        callback: The callback that installs the loop, on which settings may be set between rounds.
        max_invalid_rounds: Number of :attr:`invalid_rounds` that ends the fit with an error; ``None`` never ends it.

    Attributes:
        training: The clients' local training, once the fit has begun.
        threads: Torch's threads in the fit.
        past_settings: Optimizers' settings of earlier rounds on whose models clients still train.
        invalid_rounds: Rounds in a row, up to now, that left out all clients that reported.
        fingerprints: Of the training clients and of the validation and test data, once they are known.
        executor_states: The executor's state on each process at the last round's end.
        executor_kind: The class of the executor whose states these are; one of another class cannot use them.
        batches_done: The batches that each client has had in each phase, where its epochs go on from round to round.
        restored: The algorithm's state in the checkpoint from which the fit goes on, until it begins.
        restored_values: The values that callbacks monitored when the checkpoint was written.
    """

    training: LocalTraining
    _published: Tensor  # the model that the user sees after the round under way
    _values_before: Mapping[str, Tensor]  # the round that is trained
    _done_before: dict[tuple[int, int], int]
    _metrics: dict[str, Any]  # states of metric objects that are saved with the module, as that round found them

    def __init__(
        self,
        trainer: pl.Trainer,
        algorithm: Algorithm,
        executor: Executor,
        settings: LocalSettings,
        callback: LoopCallback,
        max_invalid_rounds: int | None = None,
    ) -> None:
        super().__init__(trainer)
        self.algorithm = algorithm
        self.executor = executor
        self.settings = settings
        self.callback = callback
        self.past_settings: dict[int, Any] = {}
        self.threads = Threads()
        self.batches_done: dict[tuple[int, int], int] = {}
        self.invalid_rounds, self.max_invalid_rounds = 0, max_invalid_rounds
        self.fingerprints: tuple[str, str] | None = None
        self.executor_states: list[dict[str, Any]] = []
        self.executor_kind = type(executor).__name__
        self.restored: Mapping[str, Any] | None = None
        self.restored_values: Mapping[str, Tensor] = {}

    @property
    def data(self) -> FederatedDataModule:
        """The trainer's federated data module."""
        data = getattr(self.trainer, "datamodule", None)
        assert isinstance(data, FederatedDataModule)
        return data

    # ---- a fit ----

    def run(self) -> None:
        """Run the rounds."""
        self._how_clients_train = ""
        with self.threads.of_fit(self.trainer.strategy.root_device):
            super().run()

    def on_no_round(self) -> None:
        """Let the parts take the checkpoint's state, and clients do what is left, where no round has begun."""
        if self.restored is not None:
            self.prepare()
            if self.is_unfinished:
                self.run_finish()

    def check(self) -> None:
        """Raise ``ValueError`` for settings that cannot work, before any work is done."""
        refuse_unsupported(self.trainer, self.callback)
        cohort = self.algorithm.sampler.cohort_size(self.data.num_clients)
        if cohort < self.trainer.world_size:
            raise ValueError(
                f"`clients_per_round` must be at least {self.trainer.world_size}, the number of processes, got "
                f"{cohort}: some would stay idle. Raise it, or give `Trainer(devices=...)` at most {cohort}."
            )

    def print_clients(self) -> None:
        """Say in one line how many clients train, validate and test; warn of what may go wrong."""
        warn_of_lost_results(self.trainer)
        warn_of_single_samples(self.trainer.lightning_module, self.data)
        print_clients(self.data, self.algorithm.sampler, type(self.callback).__name__)

    def batches_per_client(self) -> int:
        """Return the mean number of batches of one client's local training, rounded up."""
        return ClientBatches(self.trainer, self.data, self.settings, self.algorithm).mean_counted()

    def on_fit_start(self) -> None:
        """Take the module's weights as the server's model, or go on from a checkpoint."""
        self._begin_run()
        self.epoch_loop.optimizers.past = self.past_settings
        check_steps_known(self.trainer, type(self.callback).__name__, self.algorithm)
        if self.training.vector.device.type == "cpu":
            keep_freed_memory()
        if self.round_index == 0 or self.executor_kind != type(self.executor).__name__:
            self.executor.reset()
        elif self.executor_states:
            own = self.trainer.global_rank if len(self.executor_states) == self.trainer.world_size else 0
            self.executor.load_state_dict(self.executor_states[own])
        self.executor.on_fit_start(self.training, self.algorithm)

    def _begin_run(self) -> None:
        """Begin the fit of the algorithm, or go on from a checkpoint or from an earlier fit."""
        algorithm = self.algorithm
        self.training = LocalTraining(self.epoch_loop, self.data, algorithm, self.settings)
        federation = self.federation()
        earlier = algorithm.run if algorithm.has_begun else None
        state, self.restored = self.restored, None
        if state is not None:
            algorithm.run = Run.resume(algorithm, federation, state)
        elif earlier is not None and self.round_index > 0:
            algorithm.run = Run.go_on(earlier, federation)
        else:
            algorithm.run = Run.begin(algorithm, federation, earlier)
        restore_monitored_values(self.trainer, self.restored_values)

    def federation(self) -> Federation:
        """Return what the parts of an algorithm may know about the run."""
        trainer, vector = self.trainer, self.training.vector
        return Federation(
            sizes=self.data.client_sizes,
            model=vector.read(),
            layout=vector.layout,
            seed=self.settings.run_seed,
            rank=trainer.global_rank,
            num_ranks=trainer.world_size,
            state_dir=self.settings.state_dir,
            sum_over_ranks=self.sum_over_ranks,
            gather=self.gather_objects,
            local_work=self._local_work,
            max_rounds=trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None,
        )

    def _local_work(self, kind: str) -> list[int]:
        """Return the samples or batches of each client's local training."""
        count = self.training.batches.num_samples if kind == "samples" else self.training.batches.number
        return [count(Task(0, client, int(size))) for client, size in enumerate(self.data.client_sizes)]

    # ---- a round ----

    def on_round_start(self) -> int:
        """Draw the clients; return how many batches this process will train, or about how many."""
        algorithm, batches = self.algorithm, self.training.batches
        seed_global_generators(self.settings.run_seed, Stream.ROUND, self.round_index)
        self._adopt_changes()
        self._keep_boundary()
        with self.stop.taking_back(self.on_round_abort):
            self.callback.take_settings()
            batches.count_anew()
            algorithm.run.start_round(self.round_index, self.settings.full_work, self.training.score)
            planned, expected = self._share_of(algorithm.tasks), algorithm.schedule.expected_tasks()
            number = sum(map(batches.counted, planned))
        return number - (-expected * batches.mean_counted() // self.trainer.world_size)

    def _keep_boundary(self) -> None:
        """Keep what is put back if the round breaks off, and saved inside of it."""
        self._values_before = monitored_values(self)
        self._done_before = self.batches_done.copy()
        modules = self.training.vector.module.named_modules()
        self._metrics = {path: part.state_dict() for path, part in modules if isinstance(part, Metric)}

    @property
    def is_unfinished(self) -> bool:
        """Whether clients' models are of an earlier round than the last one."""
        return self.round_index > 0 and not self.algorithm.run.personal_is_current

    def finish(self) -> None:
        """Make clients' models of the last round; nothing is logged."""
        self._adopt_changes()
        self._keep_boundary()
        self.training.on_round_start()
        self.epoch_loop.on_clients_start()
        with unnoticed(self.trainer.lightning_module):
            self.algorithm.run.finish(self.round_index - 1, self._execute)

    def train_round(self) -> None:
        """Train this process's clients."""
        algorithm, optimizers = self.algorithm, self.epoch_loop.optimizers
        self.training.on_round_start()
        self._adopt_changes(in_round=True)
        self.epoch_loop.on_clients_start()
        if (under_way := algorithm.schedule.rounds_under_way()) is not None:
            optimizers.keep_settings(self.round_index, under_way)
        self._published = algorithm.run.play(self._execute)

    def _execute(self, tasks: Sequence[Task]) -> Iterator[ClientResult | Upload]:
        """Train this process's share of tasks and yield their results."""
        if self.settings.continue_epochs:
            self.training.batches.place(tasks, self.batches_done)
        share = self._share_of(tasks)
        self.training.announce(share)
        for result in self.executor.run(share, self.training, self.algorithm):
            self.threads.choose(self.training.counts, self.trainer.world_size)
            self._say_how_clients_train()
            yield result

    def _say_how_clients_train(self) -> None:
        how = self.executor.describe()
        if how and how != self._how_clients_train:
            self._how_clients_train = how
            rank_zero_info(f"Clients train {how}.{self.threads}")

    def _adopt_changes(self, *, in_round: bool = False) -> None:
        """Take what hooks have written into the module since the last round as the server's model.

        If the round breaks off, changes by hooks of the round's start are undone, because these hooks run again.
        """
        run, present = self.algorithm.run, self.training.vector.read()
        if not same_values(present, run.shown):
            run.adopt(present)
            if not in_round:
                run.shown = present

    def _share_of(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that this process trains."""
        if self.trainer.world_size == 1:
            return sorted(tasks, key=lambda task: task.slot)
        costs = [self.training.batches.number(task) for task in tasks]
        return balance(tasks, costs, self.trainer.world_size, self.algorithm.run.owner)[self.trainer.global_rank]

    def on_round_end(self) -> None:
        """Load the model that the user sees."""
        self.training.on_round_end()
        executor_states = self.gather_objects(self.executor.state_dict())
        self.training.vector.write(self._published)
        report = self.algorithm.report
        if report.reported or report.left_out:
            self.invalid_rounds = 0 if report.reported else self.invalid_rounds + 1
        self.executor_states, self.executor_kind = executor_states, type(self.executor).__name__

    def on_round_complete(self) -> None:
        """Begin to count the round as done."""
        self.algorithm.run.end_round(self.training.vector.read())

    def call_round_hooks(self) -> None:
        """Call ``on_round_end`` of the callbacks; what is drawn from here to the next round depends on the round."""
        seed_global_generators(self.settings.run_seed, Stream.SERVER, self.round_index - 1)
        report = self.algorithm.report
        if report.left_out:
            rank_zero_warn(
                f"Round {self.round_index}: left out the results of clients {report.left_out[:20]}, with NaN or "
                f"infinite values; {len(report.reported)} others count. What these clients logged still counts in the "
                "round's training metrics. Lower the learning rate or clip gradients."
            )
        elif not report.reported:
            rank_zero_info(f"Round {self.round_index} is empty: no client reported.")
        notify(self.trainer, "on_round_end")

    def on_advance_end(self) -> None:
        """End the round for Lightning.

        Raises:
            FloatingPointError: If all clients hand back invalid values in too many rounds.
        """
        super().on_advance_end()
        # only now, so that the round is complete and its checkpoint written
        if self.max_invalid_rounds is not None and self.invalid_rounds >= self.max_invalid_rounds:
            raise FloatingPointError(
                f"All clients of the last {self.invalid_rounds} rounds handed back NaN or infinite values, so the "
                "model has not moved. Lower the learning rate or clip gradients, and start from an earlier checkpoint "
                "or start again. `max_invalid_rounds` sets after how many such rounds the fit ends; None never ends it."
            )

    def on_round_abort(self) -> None:
        """Put the server's weights back and forget what clients handed in."""
        self.training.vector.write(self.algorithm.run.shown)
        self.batches_done = self._done_before
        for path, state in self._metrics.items():
            self.training.vector.module.get_submodule(path).load_state_dict(state)
        self.algorithm.run.roll_back()

    # ---- checkpoints ----

    def boundary_state(self) -> dict[str, Any]:
        """Return what the next round needs beside the algorithm's state."""
        shown, vector = self.algorithm.run.shown, self.training.vector
        values = self._values_before if self.in_round else monitored_values(self)
        saved = vector.module.state_dict(keep_vars=True)
        tensors = zip(vector.layout.names, vector.views(shown) if self.in_round else vector.tensors(), strict=True)
        return {
            "past": self.past_settings,
            "invalid_rounds": self.invalid_rounds,
            "executors": self.executor_states,
            "executor_kind": self.executor_kind,
            "threads": self.threads.chosen,
            "batches_done": self._done_before if self.in_round else self.batches_done,
            "monitored": {name: value.detach().cpu() for name, value in values.items()},
            "buffers": {name: tensor.detach().cpu().clone() for name, tensor in tensors if name not in saved},
        }

    def load_boundary_state(self, state: Mapping[str, Any]) -> None:
        """Load the state saved by :meth:`boundary_state`."""
        self.past_settings, self.invalid_rounds = state["past"], state["invalid_rounds"]
        self.executor_states, self.threads.chosen = state["executors"], state["threads"]
        self.batches_done = state["batches_done"]
        self.executor_kind, self.restored_values = state["executor_kind"], state["monitored"]
        module = self.trainer.lightning_module
        held = tensors_by_name(module)
        for name, values in state["buffers"].items():  # those that the module's `state_dict` leaves out
            held[name].detach().copy_(values)

    def server_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the module's ``state_dict`` with the weights published last instead of a client's."""
        shown = self.algorithm.run.shown
        metrics = {f"{path}.{name}": value for path, state in self._metrics.items() for name, value in state.items()}
        return self.training.vector.with_values({**state_dict, **metrics}, shown)
