"""The base of all algorithms' callbacks: puts the federated loop into the trainer and carries its state."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fl_lightning._lightning.checkpoint_files import use_whole_files
from fl_lightning._lightning.evaluation.evaluation_loops import prepare_evaluation
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.client_log import log_round
from fl_lightning._lightning.logs.round_logging import RoundLog, log_run, rounds_of, wandb_run_ids
from fl_lightning._lightning.loops.round_loop import install_loop
from fl_lightning._lightning.trainer_callbacks import check_alone
from fl_lightning.algorithms.log_lines import log_above_bars, log_as_before
from fl_lightning.algorithms.options import choose_sampler, without_trainer
from fl_lightning.algorithms.resuming import (
    check_checkpoint,
    check_optimizers,
    check_resumable,
    describe_run,
    keep_plain_settings,
    log_changes,
    log_how_to_resume,
)
from fl_lightning.algorithms.run_log import IN_THE_BAR, settings_of_run
from fl_lightning.clients.batches import LocalSettings
from fl_lightning.executors import Executor, make_executor
from fl_lightning.executors.auto import ExecutorName
from fl_lightning.executors.machine import using_threads
from fl_lightning.loop import Carried, FederatedLoop, LoopCallback
from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.algorithm import Algorithm, InvalidUpdates
from fl_lightning.parts.client_optimizers import OptimizerStates
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.buffers import Buffers
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.samplers.base import ClientSampler, are_alike
from fl_lightning.parts.samplers.participation import Participation
from fl_lightning.parts.schedules.base import Schedule
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.settings import Count, Natural, PathLike, check, check_fields, check_lightning
from fl_lightning.signatures import represent


@dataclass(eq=False, repr=False)
class AggregationCallback(LoopCallback):
    """Trains federatedly: one trainer epoch is one round, in which some clients train locally.

    A named algorithm is a subclass whose :meth:`configure_algorithm` returns the parts. Its arguments are its fields.
    One of them is ``clients_per_round``, the clients that train in a round: a float is the fraction C, an int the
    number m. ``None`` is the number of the ``sampler``, from which it may not differ, or else 0.1.

    The fields ``sampler``, ``clients_per_round``, ``local_epochs`` and ``local_steps`` may be set between two rounds,
    ``executor`` between two fits; they count from the next one. ``local_steps = None`` counts epochs again.

    Callbacks may define ``on_client_start(trainer, pl_module, client)``, ``on_client_end(trainer, pl_module, result)``
    and ``on_round_end(trainer, pl_module)``; see :class:`~fl_lightning.diagnostics.RoundObserver`.

    Args:
        local_epochs: Passes E over a client's data in a round; default 1, which it must be with ``local_steps``.
        local_steps: Steps of a client's model in a round, instead of epochs, which then do not count. The client
            repeats its data as needed. An algorithm that takes several gradients for a step says what one step is.
        continue_epochs: Whether a client's ``local_steps`` go on in its epoch where those of its last round ended, so
            that all its samples have their turn; by default each round begins a new epoch.
        sampler: Draws the clients; by default a :class:`UniformSampler` of ``clients_per_round``.
        participation: Clients that cannot be reached, drop out or do part of the work.
        exchange: What travels between the server and its clients: an :class:`~fl_lightning.parts.Exchange` such as
            ``Clip(1.0)`` or ``PersonalParameters("head")``, or a list of them, from the client to the server.
        aggregation: Merges the results, instead of the algorithm's own aggregation.
        buffers: How buffers such as BatchNorm's statistics are exchanged. ``"average"`` treats them like parameters,
            ``"local"`` leaves each client its own, ``"server"`` always uses the server's. See
            :class:`~fl_lightning.parts.BufferExchange`.
        invalid_updates: What to do with a client that hands back NaN or infinite values: ``"skip"`` leaves it out and
            counts it, ``"raise"`` ends the fit.
        optimizer_state: ``"fresh"``: a client's optimizers begin each round empty. ``"kept"``: with the moments and
            counters of steps that the client's last round left in them, and schedules by steps count the client's own
            steps.
        max_invalid_rounds: The fit ends with an error after so many rounds in a row in which every client that reported
            was left out; ``None`` never ends it.
        state_dir: Folder for the vectors that clients keep between rounds, in a memory-mapped file that vanishes with
            the process; ``None`` keeps them in memory.
        executor: How clients are computed: ``"sequential"``, one after the other; ``"vectorized"``, many as a stack if
            the module allows it; ``"auto"`` chooses, or is what ``FL_LIGHTNING_EXECUTOR`` names in the environment; or
            an :class:`~fl_lightning.executors.Executor`. The same result to rounding: ``docs/scaling.md``.
        clients_at_once: Largest stack; ``None``: as many models as memory allows, on a CPU 32 MiB of weights.
        seed: Seed of everything random; by default the seed of ``lightning.seed_everything``, or 0 without one.

    Raises:
        TypeError: If a part has the wrong type.
        ValueError: If an argument is out of its range, two arguments exclude each other, or parts cannot be combined.
    """

    _: KW_ONLY
    local_epochs: Count = 1
    local_steps: Count | None = None
    continue_epochs: bool = False
    sampler: ClientSampler | None = None
    participation: Participation | None = None
    exchange: Exchange | Sequence[Exchange] | None = None
    aggregation: Aggregation | None = None
    buffers: Buffers = "average"
    invalid_updates: InvalidUpdates = "skip"
    optimizer_state: OptimizerStates = "fresh"
    max_invalid_rounds: Count | None = 20
    state_dir: PathLike | None = None
    executor: ExecutorName | Executor = "auto"
    clients_at_once: Count | None = None
    seed: Natural | None = None

    #: The settings of the algorithm's own aggregation, and their defaults; ``aggregation`` replaces them.
    aggregation_settings: ClassVar[Mapping[str, object]] = {}
    #: The clients of a round where nothing is said of them; ``None`` for the default of samplers, a tenth.
    usual_clients_per_round: ClassVar[float | None] = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.aggregation is not None:
            self._check_aggregation_settings()
        self.settings = self._local_settings()
        self._make_executor()
        self.sampler = self.make_sampler(getattr(self, "clients_per_round", None), self.sampler)
        self._note_number()
        self.algorithm = self.configure_algorithm()
        self._fitting = False
        self._loaded_rounds: int | None = None
        self._loaded_threads: int | None = None
        #: The state of a checkpoint, until the fit begins.
        self._resumed: dict[str, Any] | None = None
        self._loop: FederatedLoop | None = None
        self._past: tuple[Carried, Mapping[str, Any] | None] = Carried(), None

    def _check_aggregation_settings(self) -> None:
        """Raise ``ValueError`` if settings are given of the aggregation that the argument ``aggregation`` replaces."""
        for name, usual in self.aggregation_settings.items():
            value = getattr(self, name)
            if value != usual:
                raise ValueError(
                    f"`{name}={value!r}` belongs to the algorithm's own aggregation, which "
                    f"`aggregation={self.aggregation!r}` replaces. Give only one of the two."
                )

    def _make_executor(self) -> None:
        self._executor_given = self.executor
        self._executor = make_executor(self.executor, self.clients_at_once)

    def _note_number(self) -> None:
        """Show the sampler's number of clients; ``None`` if it has no such number."""
        assert self.sampler is not None
        self.clients_per_round: Any = self.sampler.number_or_fraction
        self._number_taken = self.clients_per_round

    def _local_settings(self) -> LocalSettings:
        return LocalSettings(self.local_epochs, self.local_steps, self.seed, self.state_dir, self.continue_epochs)

    @abstractmethod
    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm, by :meth:`compose`; called once, at the end of ``__init__``."""

    def compose(
        self,
        *,
        schedule: Schedule | None = None,
        objective: LocalObjective | None = None,
        exchange: Exchange | Sequence[Exchange] | None = None,
        aggregation: Aggregation | None = None,
        server_optimizer: ServerOptimizer | None = None,
    ) -> Algorithm:
        """Return an algorithm of these parts and of the arguments that all algorithms share.

        Args:
            schedule: From which model clients start, and when the server acts; FedAvg's if ``None``, as for all parts.
            objective: What clients minimise.
            exchange: What travels, one or several, before the exchanges of the argument ``exchange``.
            aggregation: How results are merged, unless the argument ``aggregation`` replaces it.
            server_optimizer: How the server moves.
        """
        own = exchange if isinstance(exchange, Sequence) else [exchange]
        more = self.exchange if isinstance(self.exchange, (list, tuple)) else [self.exchange]
        parts = {
            "sampler": self.sampler,
            "schedule": schedule,
            "objective": objective,
            "exchange": [each for each in (*own, *more) if each is not None],
            "aggregation": aggregation if self.aggregation is None else self.aggregation,
            "server_optimizer": server_optimizer,
            "participation": self.participation,
        }
        given: dict[str, Any] = {name: part for name, part in parts.items() if part is not None}
        return Algorithm(
            **given,
            buffers=self.buffers,
            invalid_updates=self.invalid_updates,
            optimizer_state=self.optimizer_state,
        )

    def make_sampler(self, clients_per_round: int | float | None, sampler: ClientSampler | None) -> ClientSampler:
        """Return the sampler that the two arguments describe.

        Raises:
            ValueError: If both are given and differ.
        """
        if clients_per_round is None and sampler is None:
            clients_per_round = self.usual_clients_per_round
        return choose_sampler(clients_per_round, sampler)

    def __repr__(self) -> str:
        is_number = self.sampler is not None and self.sampler.is_number_of_clients
        return represent(self, leave_out=["sampler" if is_number else "clients_per_round"])

    def take_settings(self) -> None:
        """Take the sampler, or the number of clients, and the local work that were set since the last round.

        The loop calls this before each round.

        Raises:
            TypeError: If the sampler is none.
            ValueError: If a value is out of its range, or the sampler cannot be combined with another part.
        """
        present = self.algorithm.sampler
        # A sampler may change its own number.
        is_new = not are_alike(self.clients_per_round, self._number_taken)
        if self.sampler is present and is_new:
            self.sampler = present.with_clients_per_round(self.clients_per_round)
        if self.sampler is not present:
            self.algorithm.replace_sampler(check("`sampler`", self.sampler, ClientSampler))
        self._note_number()
        work = self._local_settings()
        self.settings.local_epochs = work.local_epochs
        self.settings.local_steps = work.local_steps

    # ---- the loop ----

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Install the federated loop for a fit, and loops that share evaluation over processes.

        Raises:
            ValueError: If a setting of the trainer cannot work federatedly.
            TypeError: If the trainer or a callback is of the package ``pytorch_lightning``.
        """
        check_lightning("The trainer", trainer)
        self._fitting = stage == "fit"
        use_whole_files(trainer)
        prepare_evaluation(trainer, self._with_threads_of_fit)
        if self._fitting:
            self._install_loop(trainer, pl_module)
        else:
            trained = self._loop.round_index if self._loop else 0
            RoundLog(trainer, self._loaded_rounds or trained, final=True).install()

    def _install_loop(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Put a federated loop into the trainer, in the place of its fit loop."""
        log_above_bars()
        self._loaded_rounds = None
        self._loaded_threads = None
        self.take_settings()
        if self.executor is not self._executor_given:
            self._make_executor()
        check_alone(self, AggregationCallback, trainer, "aggregation callbacks", "there is one server")
        loop = FederatedLoop(trainer, self.algorithm, self._executor, self.settings, self, self.max_invalid_rounds)
        if trainer.current_epoch == 0:
            # The seed of a checkpoint is another run's.
            self.settings.resumed_seed = None
        else:
            loop.carried, loop.restored = self._carried_over()
        loop.check()
        install_loop(trainer, loop)
        loop.data.trained_by = type(self).__name__
        self._loop = loop
        self.check_rounds(None if fit_trainer(trainer).fast_dev_run else trainer.max_epochs, loop.data.num_clients)
        loop.print_clients()
        if trainer.loggers:
            log_run(trainer, pl_module, settings_of_run(self, loop))

    def _carried_over(self) -> tuple[Carried, Mapping[str, Any] | None]:
        """Return what an earlier fit leaves to the next, and the checkpoint's state if it never began."""
        if self._loop is None:
            return self._past
        return self._loop.carried, self._loop.restored

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle holds: all but the trainer and its loop."""
        return {**without_trainer(self.__dict__), "_past": self._carried_over()}

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """End the fit for the executor, and an evaluation for the loggers."""
        RoundLog.remove(trainer)
        log_as_before()
        if stage == "fit" and self._loop is not None:
            # The argument `executor` may have been set since then.
            self._loop.executor.on_fit_end()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """End the fit as :meth:`teardown` does, which does not follow an exception; after a signal say how to go on.

        Raises:
            TypeError: If the data module is a class, of which Lightning's own error says nothing.
        """
        data = getattr(trainer, "datamodule", None)
        if isinstance(data, type):
            name = data.__name__
            reason = f"`datamodule` must be an object, got the class {name}. Call it: {name}(...)."
            raise TypeError(reason) from exception
        log_how_to_resume(trainer, exception)
        self.teardown(trainer, pl_module, "fit" if self._fitting else "")

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the optimizers with a checkpoint's, before Lightning restores them.

        Raises:
            ValueError: If the module has optimizers of other classes.
        """
        if self._resumed is not None:
            check_optimizers(self._resumed, trainer.optimizers)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Say with which other settings a run resumes."""
        if self._resumed is not None and self._loop is not None:
            log_changes(self._resumed, self, self._loop)
        self._resumed = None

    def _with_threads_of_fit(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context of an evaluation outside of a fit."""
        chosen = self._loaded_threads or (self._loop.threads.of_evaluation if self._loop else None)
        return using_threads(chosen, device)

    def check_rounds(self, max_epochs: int | None, num_clients: int | None = None) -> None:
        """Warn when the number of rounds does not suit the schedule."""
        if max_epochs is None or max_epochs <= 0:
            return
        schedule = self.algorithm.schedule
        arrivals = 0
        if schedule.asynchronous:
            # A fraction of the clients is no number yet.
            if num_clients is None and not isinstance(self.clients_per_round, int):
                return
            arrivals = self.algorithm.sampler.cohort_size(num_clients or 0)
        warning = schedule.unsuitable_rounds(max_epochs, arrivals)
        if warning:
            rank_zero_warn(warning)

    # ---- logs and checkpoints ----

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log the round's clients and the cost so far; see :meth:`Run.values`."""
        log_round(trainer, pl_module, self.algorithm.run.values(), IN_THE_BAR)

    def state_dict(self) -> dict[str, Any]:
        """Return the server's state at the last round's end, with every circulating model."""
        loop = self._loop
        if loop is None:
            return {}
        if loop.restored is not None:
            return dict(loop.restored)
        if not loop.kept_for_callback:
            return {}
        return {**loop.boundary_state(), **describe_run(self, loop)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a checkpoint's state; the run goes on with the seed that it began with.

        Raises:
            ValueError: If the checkpoint belongs to other clients or another algorithm.
        """
        # A checkpoint may be loaded only to be evaluated.
        if self._loop is None or not self._fitting:
            return
        check_resumable(state_dict, self._loop)
        self._resumed = state_dict
        self._loop.load_boundary_state(state_dict)
        self.settings.resumed_seed = state_dict["seed"]

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to go on from another algorithm's checkpoint; log an evaluation under the checkpoint's round."""
        if self._fitting:
            check_checkpoint(checkpoint, self.state_key, pl_module.hparams, wandb_run_ids(trainer))
        else:
            self._loaded_rounds = rounds_of(checkpoint)
            self._loaded_threads = checkpoint.get("callbacks", {}).get(self.state_key, {}).get("threads")
            RoundLog(trainer, self._loaded_rounds or 0, final=True).install()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep a client's optimizers out of a checkpoint that is written inside a round, and settings plain."""
        keep_plain_settings(checkpoint)
        if self._loop is not None:
            self._loop.patch_checkpoint(checkpoint)
            checkpoint["wandb_run_ids"] = wandb_run_ids(trainer)
