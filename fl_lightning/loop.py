"""The federated loop: an epoch of the trainer is a round of local training.

A round, in the order in which :class:`~fl_lightning._lightning.loops.round_loop.RoundLoop` calls it::

    draw_clients        Round.draw makes a task for each of the round's clients; then comes on_train_epoch_start
    train_round         Round.play
        _execute            the executor hands out the results of this process's tasks, one by one. A client trains
                            (LocalTraining.train) when the schedule's loop asks for its result, for the server to take
                        after the last result, the server moves
    load_published      the module gets the model that users see
    end_round           what the round has changed is kept; had it broken off before, all would be put back
    call_round_hooks    on_round_end, then validation, logs and checkpoints
"""

from __future__ import annotations

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning._lightning.logs.client_log import unnoticed
from fl_lightning._lightning.loops.corrections import CorrectsGradients
from fl_lightning._lightning.loops.local_optimizers import Settings
from fl_lightning._lightning.loops.round_loop import Progress, RoundLoop
from fl_lightning._lightning.processes import warn_of_lost_results
from fl_lightning._lightning.refusals import refuse_unsupported
from fl_lightning._lightning.trainer_callbacks import MonitoredValues, restore_monitored_values
from fl_lightning.clients.batches import ClientBatches, LocalSettings, warn_of_single_samples
from fl_lightning.clients.first_lines import print_clients
from fl_lightning.clients.optimizer_checks import check_schedules_last, check_steps_known
from fl_lightning.clients.shown_module import ShownModule, load_unsaved
from fl_lightning.clients.training import LocalTraining, notify
from fl_lightning.data import FederatedDataModule
from fl_lightning.executors import Executor, balance
from fl_lightning.executors.machine import Threads, keep_freed_memory
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.kept import snapshot
from fl_lightning.parts.messages import ClientResult, Task, Upload
from fl_lightning.parts.run import Run
from fl_lightning.seeding import Stream, seed_global_generators

#: Parameters of a model of which a further one is worth the time to collect garbage, some tenths of a second.
_LARGE = 2**22


class FederatedLoop(RoundLoop):
    """Trains the clients of each round and lets the algorithm act on their results.

    Between rounds the LightningModule is the server's model; inside a round it is each client's in turn.

    Args:
        trainer: The trainer.
        algorithm: The federated algorithm.
        executor: Computes the tasks of a round.
        settings: How long clients train.
        callback: The callback that installs the loop, on which settings may be set between rounds.
        max_invalid_rounds: Number of :attr:`Carried.invalid_rounds` that ends the fit with an error; ``None`` never
            ends it.

    Attributes:
        training: The clients' local training, once the fit has begun.
        threads: Torch's threads in the fit.
        carried: What a round hands to the next, besides models and the states of parts.
        fingerprints: Of the training clients and of the validation and test data, once they are known.
        restored: The callback's state in the checkpoint from which the fit goes on, until it begins.
    """

    training: LocalTraining
    _shown_module: ShownModule

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
        self.max_invalid_rounds = max_invalid_rounds
        self.threads = Threads()
        self.carried = Carried()
        self.fingerprints: tuple[str, str] | None = None
        self.restored: Mapping[str, Any] | None = None

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
        # The steps of a round, and the parts, go by the samples of the first round to come.
        self.data.begin_round(self.round_index)
        with self.threads.of_fit(self.trainer.strategy.root_device):
            super().run()

    def on_run_over(self) -> None:
        """Where no round has begun, let the parts take the checkpoint's state, and clients do what is left."""
        if self.restored is not None:
            self.prepare()
            if self.is_unfinished:
                self.run_finish()

    def check(self) -> None:
        """Raise ``ValueError`` for settings that cannot work, before any work is done."""
        refuse_unsupported(self.trainer, self.callback)
        if self.data.changes is not None:
            self._check_changes()
        cohort = self.algorithm.sampler.cohort_size(self.data.num_clients)
        if cohort < self.trainer.world_size:
            raise ValueError(
                f"`clients_per_round` must be at least {self.trainer.world_size}, the number of processes, got "
                f"{cohort}: some would stay idle. Raise it, or give `Trainer(devices=...)` at most {cohort}."
            )

    def _check_changes(self) -> None:
        """Raise ``ValueError`` for what counts on samples that stay from round to round."""
        changes = self.data.changes
        schedule = self.algorithm.schedule
        if schedule.asynchronous:
            raise ValueError(
                f"`changes` needs rounds that all clients share, got {changes!r} with {schedule!r}, whose clients work "
                "at their own pace. Give a synchronous algorithm, such as FedAvg."
            )
        if self.settings.continue_epochs:
            raise ValueError(
                f"`continue_epochs` must be False where a client's samples change, got {changes!r}: an epoch cannot go "
                "on with others."
            )

    def print_clients(self) -> None:
        """Say with which settings the fit begins, and who trains, validates and tests; warn of what may go wrong."""
        warn_of_lost_results(self.trainer)
        warn_of_single_samples(self.trainer.lightning_module, self.data)
        print_clients(self.data, self.algorithm.sampler, self.callback)

    def batches_per_client(self) -> int:
        """Return the mean number of batches of one client's local training, rounded up."""
        return ClientBatches(self.trainer, self.data, self.settings, self.algorithm).mean_counted()

    def begin_fit(self) -> None:
        """Take the module's weights as the server's model, or go on from a checkpoint.

        The clients' training and the :class:`Run` are made here, ``algorithm.run`` with it.
        """
        state = self.restored
        self.restored = None
        self.training = LocalTraining(self.epoch_loop, self.data, self.algorithm, self.settings, self._choose_threads)
        if self.training.vector.layout.size >= _LARGE:
            # An earlier fit's trainer, loops and callbacks refer to each other, and hold its models until then.
            gc.collect()

        # The fit of the algorithm goes on from a checkpoint, or from an earlier fit, or begins.
        algorithm = self.algorithm
        federation = self.federation()
        earlier = algorithm.run if algorithm.has_begun else None
        if state is not None:
            algorithm.run = Run.resume(algorithm, federation, state)
            restore_monitored_values(self.trainer, state["monitored"])
        elif earlier is not None and self.round_index > 0:
            algorithm.run = Run.go_on(earlier, federation)
        else:
            algorithm.run = Run.begin(algorithm, federation, earlier)

        check_steps_known(self.trainer, type(self.callback).__name__, algorithm)
        if algorithm.optimizers.keeps:
            check_schedules_last(self.trainer, federation.max_rounds, federation.local_work("steps"))
        if self.training.vector.device.type == "cpu":
            keep_freed_memory()
        self._begin_executor(is_resumed=state is not None)

        # Everything that a round may change is in these two lists. A round that breaks off puts it back.
        self._shown_module = ShownModule(self.training.vector, algorithm.run)
        self.kept_for_lightning = [
            # The counters of rounds, batches and steps.
            Progress(self),
            # Optimizers and learning-rate schedules.
            self.epoch_loop.optimizers,
        ]
        self.kept_for_callback = [
            # The module's weights and metric objects.
            self._shown_module,
            # The server's model, the states of all parts with clients' vectors, and the traffic.
            algorithm.run,
            # Where clients' epochs go on, earlier settings, invalid rounds in a row, and the executors' states.
            self.carried,
            # What callbacks monitor.
            MonitoredValues(self),
        ]

    def _begin_executor(self, is_resumed: bool) -> None:
        """Let the executor begin; after a checkpoint with what one of its class has found."""
        executor = self.executor
        states = self.carried.executor_states
        is_other = is_resumed and self.carried.executor_kind != type(executor).__name__
        if self.round_index == 0 or is_other:
            executor.reset()
        elif is_resumed and states:
            same_processes = len(states) == self.trainer.world_size
            executor.load_state_dict(states[self.trainer.global_rank if same_processes else 0])
        executor.on_fit_start(self.training, self.algorithm)

    def federation(self) -> Federation:
        """Return what the parts of an algorithm may know about the run."""
        trainer = self.trainer
        vector = self.training.vector
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
            optimizer_state=self.epoch_loop.optimizers.first_state,
            max_rounds=trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None,
            sizes_change=self.data.changes is not None,
        )

    def _local_work(self, kind: str) -> list[int]:
        """Return the samples or batches of each client's local training."""
        count = self.training.batches.num_samples if kind == "samples" else self.training.batches.number
        return [count(Task(0, client, int(size))) for client, size in enumerate(self.data.client_sizes)]

    # ---- a round ----

    def draw_clients(self) -> None:
        """Begin a round of the algorithm, with what was set since the last one, and draw its clients."""
        seed_global_generators(self.algorithm.federation.seed, Stream.ROUND, self.round_index)
        self.callback.take_settings()
        self.data.begin_round(self.round_index)
        self._check_sampler()
        self.training.batches.count_anew()
        begun = self.algorithm.run.begin_round(self.round_index, self.settings.full_work)
        begun.draw(self._score)

    def _check_sampler(self) -> None:
        """Raise ``ValueError`` if clients are scored that have no samples in the round."""
        sampler = self.algorithm.sampler
        sizes = self.data.client_sizes
        if sampler.asks_clients and not sizes.all():
            raise ValueError(
                f"`sampler` cannot be {sampler!r} in round {self.round_index + 1}: it scores clients, and client "
                f"{int(sizes.argmin())} has no samples. Give UniformSampler, or `changes` by which each client has "
                "some."
            )

    def train_round(self) -> None:
        """Play the round: this process's clients train, and the server takes their results and moves."""
        self._take_up_changes()
        under_way = self.algorithm.schedule.rounds_under_way()
        if under_way is not None:
            self.carried.past_settings = self.epoch_loop.optimizers.keep_settings(self.round_index, under_way)
        self.algorithm.run.round.play(self._execute)

    def _take_up_changes(self) -> None:
        """Let clients begin with what hooks have set, and written into the module, at the round's start."""
        self.training.prepare_clients()
        self.adopt_changes()
        self.epoch_loop.optimizers.past = self.carried.past_settings
        self.epoch_loop.take_up_settings()

    def _execute(self, tasks: Sequence[Task]) -> Iterable[ClientResult | Upload]:
        """Let the executor train this process's share of tasks; return their results, which come one by one."""
        if self.settings.continue_epochs:
            self.training.batches.place(tasks, self.carried.batches_done)
        share = self._share_of(tasks)
        self.training.announce(share)
        return self.executor.run(share, self.training, self.algorithm)

    def load_published(self) -> None:
        """Give the module the model that the user sees, and note what the next round needs."""
        # Where all clients are other machines, none has trained here, after which threads would have been chosen.
        self._choose_threads()
        self.training.vector.check_constant()
        self._carry_over()
        self.training.vector.write(self.algorithm.run.round.published)

    def end_round(self) -> None:
        """Count the round as done: what it has changed is now the state to which a later round is put back."""
        run = self.algorithm.run
        vector = self.training.vector
        published = run.round.published
        # Hooks may have written to the module since.
        run.end_round(published if vector.holds(published) else vector.read())

    def call_round_hooks(self) -> None:
        """Call ``on_round_end`` of the callbacks; what is drawn from here to the next round depends on the round."""
        seed_global_generators(self.algorithm.federation.seed, Stream.SERVER, self.last_round)
        # Users count rounds from 1.
        number = self.last_round + 1
        report = self.algorithm.run.round.report
        if report.left_out:
            rank_zero_warn(
                f"Round {number}: left out the results of clients {report.left_out[:20]}, with NaN or "
                f"infinite values; {len(report.reported)} others count. What these clients logged still counts in the "
                "round's training metrics. Look for NaN in their samples, lower the learning rate, or clip gradients."
            )
        elif not report.reported:
            rank_zero_info(f"Round {number} is empty: no client reported.")
        notify(self.trainer, "on_round_end")

    def on_advance_end(self) -> None:
        """End the round for Lightning.

        Raises:
            FloatingPointError: If all clients hand back invalid values in too many rounds.
        """
        super().on_advance_end()
        # The error comes only now, when the round is complete and its checkpoint written.
        invalid_rounds = self.carried.invalid_rounds
        if self.max_invalid_rounds is not None and invalid_rounds >= self.max_invalid_rounds:
            raise FloatingPointError(
                f"All clients of the last {invalid_rounds} rounds returned NaN or infinite values, so the "
                "model has not moved. Lower the learning rate or clip gradients, and start from an earlier checkpoint "
                "or start again. `max_invalid_rounds` sets after how many such rounds the fit ends; None never ends it."
            )

    # ---- around a round ----

    def adopt_changes(self) -> None:
        """Take what hooks have written into the module as the server's model.

        What hooks of the round's start have written is undone if the round breaks off, because they run again.
        """
        run = self.algorithm.run
        vector = self.training.vector
        if not vector.holds(run.shown):
            run.adopt(vector.read())

    def planned_batches(self) -> int:
        """Return how many batches this process will train in the round, or about how many."""
        algorithm = self.algorithm
        batches = self.training.batches
        planned = sum(batches.counted(task) for task in self._share_of(algorithm.tasks))
        # An asynchronous round's further tasks are shared out over the processes, rounded up.
        further = math.ceil(algorithm.schedule.expected_tasks() * batches.mean_counted() / self.trainer.world_size)
        return planned + further

    def _score(self, tasks: Sequence[Task]) -> Mapping[int, float]:
        """Return the scores of clients before the draw."""
        return self.executor.score(tasks, self.training, self.algorithm)

    def _carry_over(self) -> None:
        """Note what the round hands to the next, besides models and the states of parts."""
        carried = self.carried
        report = self.algorithm.run.round.report
        if report.reported:
            carried.invalid_rounds = 0
        elif report.left_out:
            carried.invalid_rounds += 1
        carried.executor_states = self.gather_objects(self.executor.state_dict())
        carried.executor_kind = type(self.executor).__name__

    def _share_of(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that this process trains."""
        if self.trainer.world_size == 1:
            return sorted(tasks, key=lambda task: task.slot)
        costs = [self.training.batches.number(task) for task in tasks]
        shares = balance(tasks, costs, self.trainer.world_size, self.algorithm.run.owner)
        return shares[self.trainer.global_rank]

    def _choose_threads(self) -> None:
        """Choose the threads once a client has trained, and say how clients train when that changes."""
        self.threads.choose(self.training.counts, self.trainer.world_size)
        how = self.executor.describe()
        if how and how != self._how_clients_train:
            self._how_clients_train = how
            rank_zero_info(f"Clients train {how}.{self.threads}")

    @property
    def is_unfinished(self) -> bool:
        """Whether clients' models are of an earlier round than the last one."""
        return self.round_index > 0 and not self.algorithm.run.personal_is_current

    def finish(self) -> None:
        """Make clients' models of the last round; nothing is logged."""
        self.data.begin_round(self.last_round)
        self._take_up_changes()
        with unnoticed(self.trainer.lightning_module):
            self.algorithm.run.finish(self.last_round, self._execute)

    # ---- checkpoints ----

    def boundary_state(self) -> dict[str, Any]:
        """Return the callback's part of a checkpoint, with torch's threads, which a fit chooses once."""
        return {**super().boundary_state(), "threads": self.threads.chosen}

    def load_boundary_state(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's state, but for what must wait until the fit begins; see :attr:`restored`."""
        self.restored = state
        self.carried.load_state_dict(state)
        self.threads.chosen = state["threads"]
        load_unsaved(self.trainer.lightning_module, state["buffers"])

    def server_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the module's ``state_dict`` with the weights published last instead of a client's."""
        return self._shown_module.of_boundary(state_dict)


class LoopCallback(CorrectsGradients, ABC):
    """A Lightning callback that installs a :class:`FederatedLoop`; settings may be set on it between rounds."""

    @abstractmethod
    def take_settings(self) -> None:
        """Let what was set on the callback hold from the next round on."""


@dataclass
class Carried:
    """State that a round hands to the next, besides models and the states of parts.

    Attributes:
        past_settings: Optimizers' settings of earlier rounds on whose models clients still train.
        batches_done: The batches that each client has had in each phase, where its epochs go on from round to round.
        invalid_rounds: Rounds in a row, up to now, that left out all clients that reported.
        executor_states: The executor's state on each process at the last round's end.
        executor_kind: The class of the executor whose states these are; one of another class cannot use them.
    """

    past_settings: dict[int, Settings] = field(default_factory=dict)
    batches_done: dict[tuple[int, int], int] = field(default_factory=dict)
    invalid_rounds: int = 0
    executor_states: list[dict[str, Any]] = field(default_factory=list)
    executor_kind: str = ""

    def keep(self) -> None:
        """Make the present state the boundary's; see :class:`~fl_lightning.parts.kept.Kept`."""
        self._kept = {each.name: snapshot(getattr(self, each.name)) for each in fields(self)}

    def put_back(self) -> None:
        """Return to the boundary's state."""
        self.load_state_dict(self._kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's state."""
        return dict(self._kept)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state."""
        for each in fields(self):
            setattr(self, each.name, snapshot(state[each.name]))
