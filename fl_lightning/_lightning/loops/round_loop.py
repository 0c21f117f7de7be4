"""Lightning's fit loop with rounds for epochs.

A fit of one round, as Lightning's trainer calls this loop; what stands to the right is the federated loop's::

    run
        on_run_start
            prepare                 hooks and optimizers are resolved
                                                                          begin_fit
        on_advance_start
                                                                          adopt_changes
            _enter_round            everything that a round may change is kept
                                                                          draw_clients
            hooks: on_train_epoch_start
        advance
            _train_clients          batch by batch
                                                                          train_round
            _complete_round         one step, of which a checkpoint holds all or nothing
                                                                          load_published
                                                                          end_round
        on_advance_end
                                                                          call_round_hooks
            validation, logs, hooks: on_train_epoch_end; checkpoints
        on_run_end                  clients do what is left
                                                                          finish

Whatever fails between ``_enter_round`` and the end of ``_complete_round`` leads to ``_break_off``.

A round begins for one object after the other, before its hooks and after them::

    on_advance_start
        RoundLoop._enter_round                      keeps the boundary's state
        FederatedDataModule.begin_round             samples that change from round to round
        Run.begin_round, Part.begin_round           the algorithm's parts; then the draw
        ClientLoop.prepare_round                   counters and logs
            LocalOptimizers.start_from_kept         clients start from the boundary's learning rates
        on_train_epoch_start
    advance
        FederatedLoop._take_up_changes              what these hooks have changed:
            LocalTraining.prepare_clients           callbacks, batch sizes
            FederatedLoop.adopt_changes             the module's weights
            ClientLoop.take_up_settings             hooks of batches and steps
                LocalOptimizers.start_from_present  and clients start from the learning rates that are set now
        ClientLoop.begin_client                     for each client in turn
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.callbacks.timer import Interval
from lightning.pytorch.loops import _Loop
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.progress import _ProcessedTracker
from lightning.pytorch.loops.utilities import _is_max_limit_reached
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.exceptions import SIGTERMException
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn
from torch import Tensor

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.client_log import join_results
from fl_lightning._lightning.logs.progress_bars import RoundBar
from fl_lightning._lightning.logs.round_logging import counting_rounds
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning._lightning.loops.stopping import STATUS_OF_SIGTERM, StopRequests, interrupts_wait
from fl_lightning._lightning.processes import gather_objects, use_bare_module
from fl_lightning._lightning.refusals import refuse_optimizers
from fl_lightning._lightning.trainer_callbacks import let_checkpoints_save_again, stop_where_stopped
from fl_lightning.parts.kept import Kept

# The flag of Lightning's base class, without what its fit loop does besides when the flag is set.
_RESTARTING: property = vars(_Loop)["restarting"]


class RoundLoop(_FitLoop, ABC):
    """Lightning's fit loop with rounds for epochs.

    A checkpoint is always one of a boundary between rounds: a round counts as done when the server has acted and the
    schedules have stepped, before hooks and validation run. Whatever breaks a round off before that leaves weights,
    optimizers and progress as they were when it began; see :mod:`fl_lightning.parts.kept`.

    Attributes:
        kept_for_lightning: What a round may change and Lightning saves in its own places of a checkpoint.
        kept_for_callback: What a round may change and the callback's state holds in a checkpoint.
        in_round: Whether a round has begun and is not done.
    """

    epoch_loop: ClientLoop
    kept_for_lightning: Sequence[Kept] = ()
    kept_for_callback: Sequence[Kept] = ()
    in_round = False

    def take_over(self, stock: _FitLoop) -> None:
        """Continue with the settings, data source and progress of ``stock``."""
        for name in vars(_FitLoop(self.trainer)):
            self.__dict__[name] = stock.__dict__[name]
        self.epoch_loop = ClientLoop.take_over(stock.epoch_loop)
        self.stop = self.epoch_loop.stop = StopRequests(self.trainer)
        self.clients_train = False

    # ---- what a federated loop defines ----

    @abstractmethod
    def batches_per_client(self) -> int:
        """Return the mean number of batches of one client's local training, rounded up."""

    @abstractmethod
    def begin_fit(self) -> None:
        """Take the module's weights as the server's model, or go on from a checkpoint.

        It is called once a fit, when model, optimizers and checkpoint are loaded, before ``on_train_start``. A fit in
        which no round is left calls it only where a checkpoint's state waits; see :meth:`on_run_over`.
        """

    @abstractmethod
    def adopt_changes(self) -> None:
        """Take what hooks have written into the module as the server's model."""

    @abstractmethod
    def draw_clients(self) -> None:
        """Draw the round's clients."""

    @abstractmethod
    def planned_batches(self) -> int:
        """Return how many batches this process will train in the round, or about how many."""

    @abstractmethod
    def train_round(self) -> None:
        """Train the round's clients, and let the server act on what they send."""

    @abstractmethod
    def load_published(self) -> None:
        """Give the module the model that the user sees."""

    @abstractmethod
    def end_round(self) -> None:
        """Count the round as done for the algorithm."""

    @abstractmethod
    def call_round_hooks(self) -> None:
        """Call the hooks of a round that is done, before it is validated."""

    @property
    @abstractmethod
    def is_unfinished(self) -> bool:
        """Whether clients have something to do after the last round."""

    @abstractmethod
    def finish(self) -> None:
        """Let clients do what is left after the last round."""

    @abstractmethod
    def on_run_over(self) -> None:
        """Called after every fit; a checkpoint's state that no round has taken is taken now."""

    @abstractmethod
    def server_state_dict(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return ``state_dict`` with the weights that the user saw last at a round's end."""

    # ---- Lightning's loop ----

    @property
    def round_index(self) -> int:
        """The round that is being trained or comes next, from 0."""
        rounds = self.epoch_progress.current
        assert isinstance(rounds, _ProcessedTracker)
        return rounds.processed

    @property
    def last_round(self) -> int:
        """The last round that was completed, from 0."""
        return self.round_index - 1

    @property
    def done(self) -> bool:
        """Whether the fit ends; with ``max_steps``, after the round in which all clients' steps together reach it.

        Lightning's line would not say after how many steps that is.
        """
        steps = self.epoch_loop.global_step
        if _is_max_limit_reached(steps, self.max_steps):
            rank_zero_info(
                f"`Trainer.fit` stopped: `max_steps={self.max_steps}` reached in round {self.round_index}, which ends "
                f"with step {steps} of all clients together. Rounds are whole; `max_epochs` counts them."
            )
            return True
        return super().done

    def setup_data(self) -> None:
        """Estimate the steps of a round; clients' data are fetched client by client, never through one loader."""
        if self.trainer.limit_train_batches == 0:
            return
        self.max_batches = self.batches_per_client()

    def reset(self) -> None:
        """Prepare a fit; every checkpoint that is resumed from lies at a round's boundary."""
        torch.set_grad_enabled(True)
        _RESTARTING.__set__(self, False)
        for tracker in (self.epoch_progress.total, self.epoch_progress.current):
            assert isinstance(tracker, _ProcessedTracker)
            tracker.ready = tracker.started = tracker.completed = tracker.processed

    def run(self) -> None:
        """Run the rounds; when the job is asked to stop, leave together with all processes."""
        self.stop.enter()
        try:
            if self.trainer.ckpt_path is not None:
                stop_where_stopped(self)
            before = self.round_index
            super().run()
            if self.trainer.ckpt_path is None and 0 < before == self.round_index:
                rank_zero_warn(
                    f"This fit has trained no round: the trainer had done its {before} before. Make a new Trainer, or "
                    "raise `trainer.fit_loop.max_epochs`."
                )
            self.on_run_over()
        except SIGTERMException as stop:
            # Without it the program would end as if it had done all.
            stop.code = STATUS_OF_SIGTERM
            self.stop.requeue()
            raise

    def on_run_start(self) -> None:
        """Prepare the clients' loop and call ``on_train_start``."""
        self.prepare()
        super().on_run_start()
        self._bar = RoundBar(self.trainer)

    def prepare(self) -> None:
        """Prepare the clients' loop."""
        trainer = self.trainer
        use_bare_module(trainer)
        if not torch.cuda.is_available():
            # With it torch's optimizers would search for the driver's library in each step.
            os.environ.pop("PYTORCH_NVML_BASED_CUDA_CHECK", None)
        self.epoch_loop.prepare(self.batches_per_client)
        refuse_optimizers(trainer)
        self.begin_fit()

    def on_advance_start(self) -> None:
        """Plan a round and call ``on_train_epoch_start``."""
        self.adopt_changes()
        with self.stop.taking_back(self._break_off):
            self._enter_round()
            self.draw_clients()
            planned = self.planned_batches()
            # Without batches Lightning ends the fit, but a round may be empty.
            self.max_batches = max(planned, 1)
            self.epoch_loop.prepare_round(planned)
            self.epoch_progress.increment_ready()
            call._call_callback_hooks(self.trainer, "on_train_epoch_start")
            call._call_lightning_module_hook(self.trainer, "on_train_epoch_start")
            self.epoch_progress.increment_started()
            self._bar.begin_round(self.round_index + 1)

    def advance(self) -> None:
        """Train a round; broken off, it leaves no trace."""
        with self.stop.taking_back(self._break_off):
            self._train_clients(self.train_round)
            self.stop.agree()
            self._join_processes()
            with interrupts_wait():
                self._complete_round()

    def on_advance_end(self) -> None:
        """Call ``on_round_end``, validate, call ``on_train_epoch_end``, step plateau schedules, save checkpoints."""
        trainer = self.trainer
        let_checkpoints_save_again(trainer)
        self._bar.end_round(self.round_index, self.epoch_loop.batch_progress.current.ready)
        self.call_round_hooks()
        if self.epoch_loop._should_check_val_epoch():
            self.stop.agree()
            self._validate()
        trainer._logger_connector.epoch_end_reached()
        call._call_callback_hooks(trainer, "on_train_epoch_end", monitoring_callbacks=False)
        call._call_lightning_module_hook(trainer, "on_train_epoch_end")
        # All metrics are known now, and the checkpoints that follow hold the schedules' step.
        self.epoch_loop.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        call._call_callback_hooks(trainer, "on_train_epoch_end", monitoring_callbacks=True)
        trainer._logger_connector.on_epoch_end()
        with self.epoch_loop.at_last_batch(), counting_rounds(trainer, self.round_index):
            trainer._logger_connector.update_train_epoch_metrics()
        self.epoch_progress.increment_completed()
        self.stop.agree()

    def on_run_end(self) -> None:
        """Let clients do what is left after the last round, and call ``on_train_end``."""
        if self.is_unfinished:
            self.run_finish()
        super().on_run_end()

    def run_finish(self) -> None:
        """Let clients do what is left after the last round; progress, optimizers and schedules stay as they are."""
        self.adopt_changes()
        with self.stop.taking_back(self._break_off):
            self._enter_round()
            self.epoch_loop.prepare_round(num_batches=1)
            self._train_clients(self.finish)
            self.stop.agree()
            with interrupts_wait():
                self._break_off()

    def _validate(self) -> None:
        """Validate the model that the round left."""
        trainer = self.trainer
        trainer.validating = True
        call._call_lightning_module_hook(trainer, "on_validation_model_zero_grad")
        with self.epoch_loop.at_last_batch(), counting_rounds(trainer, self.round_index):
            self.epoch_loop.val_loop.run()
        trainer.training = True

    # ---- a round's ends ----

    def _enter_round(self) -> None:
        """Keep what :meth:`_break_off` puts back; until the round's end, Lightning saves it instead of a client's."""
        with interrupts_wait():
            for each in (*self.kept_for_lightning, *self.kept_for_callback):
                each.keep()
            self.trainer.strategy.lightning_module_state_dict = self._module_state_dict  # type: ignore[method-assign]
            self.in_round = True

    def _train_clients(self, train: Callable[[], None]) -> None:
        """Train clients; a process that is asked to stop leaves off at once, and meets the others after."""
        self.clients_train = True
        try:
            with fit_trainer(self.trainer).profiler.profile("run_training_epoch"):
                train()
                self.epoch_loop.hand_on_rest()
        except SIGTERMException:
            # If all processes know of it, there is nobody to meet.
            if self.trainer.world_size == 1 or self.trainer.received_sigterm:
                raise
        finally:
            self.clients_train = False

    def _complete_round(self) -> None:
        """End the round for the server, the optimizers and the progress: one step, of which a checkpoint holds all."""
        loop = self.epoch_loop
        self.load_published()
        # Nothing of a client stays in the optimizers, which return to the settings of the round's start.
        loop.optimizers.reset()
        loop.close_round()
        self.epoch_progress.increment_processed()
        loop.optimizers.advance_schedules()
        loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        self._leave_round()
        self.end_round()

    def _break_off(self) -> None:
        """Return to the round's start, if the round is not done."""
        if not self.in_round:
            return
        self.epoch_loop.close_round()
        # The numbers that were logged are forgotten, which empties metric objects, before these are put back.
        for each in reversed([*self.kept_for_lightning, *self.kept_for_callback]):
            each.put_back()
        self._leave_round()

    def _leave_round(self) -> None:
        self.in_round = False
        self.trainer.strategy.__dict__.pop("lightning_module_state_dict", None)

    def _module_state_dict(self) -> dict[str, Any]:
        strategy = self.trainer.strategy
        return self.server_state_dict(type(strategy).lightning_module_state_dict(strategy))

    def _join_processes(self) -> None:
        """Join counters, logged numbers and hand-stepped schedules over all processes."""
        trainer = self.trainer
        loop = self.epoch_loop
        if trainer.world_size == 1:
            return
        batches_that_stepped = 0
        steps = 0
        first_ends = []
        for counts, first_end in self.gather_objects((loop.local_counts(), loop.optimizers.first_client_end)):
            batches_that_stepped += counts[0]
            steps += counts[1]
            if first_end is not None:
                first_ends.append(first_end)
        loop.set_round_counts(batches_that_stepped, steps)
        loop.optimizers.first_client_end = min(first_ends, key=itemgetter(0), default=None)
        join_results(loop._results, trainer.lightning_module, self.gather_objects, trainer.strategy.reduce)

    # ---- checkpoints ----

    def boundary_state(self) -> dict[str, Any]:
        """Return the callback's part of a checkpoint. Outside of a round, this moment is a boundary."""
        if not self.in_round:
            for each in self.kept_for_callback:
                each.keep()
        state: dict[str, Any] = {}
        for each in self.kept_for_callback:
            state.update(each.state_dict())
        return state

    def patch_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Give a checkpoint that is written inside a round Lightning's counters and optimizers of the boundary."""
        if self.in_round:
            for each in self.kept_for_lightning:
                checkpoint.update(each.state_dict())

    # ---- processes ----

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Return the sum of ``tensor`` over all processes; the tensor itself, if there is one process."""
        if self.trainer.world_size == 1:
            return tensor
        total = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._meet()
        # This writes to the tensor that it is given.
        return self.trainer.strategy.reduce(total, reduce_op="sum")

    def gather_objects(self, mine: Any) -> list[Any]:
        """Return the object of every process, in the order of ranks."""
        if self.trainer.world_size == 1:
            return [mine]
        self._meet()
        return gather_objects(self.trainer, mine)

    def _meet(self) -> None:
        """While clients train, find out whether all processes still do."""
        if self.clients_train:
            self.stop.agree()


class Progress:
    """Lightning's counters of rounds, batches and steps; see :class:`~fl_lightning.parts.kept.Kept`.

    Args:
        loop: The fit's loop.
    """

    def __init__(self, loop: RoundLoop) -> None:
        self._loop = loop

    def keep(self) -> None:
        """Make the present counts the boundary's."""
        self._kept = self._loop.state_dict()
        self._kept_steps = self._loop.trainer.global_step

    def put_back(self) -> None:
        """Return to the boundary's counts."""
        self._loop.load_state_dict(self._kept)
        # The loop takes a state as one that it restarts from.
        _RESTARTING.__set__(self._loop, False)

    def state_dict(self) -> dict[str, Any]:
        """Return the boundary's counts in the places that Lightning has for them."""
        loops = self._loop.trainer._checkpoint_connector._get_loops_state_dict()
        return {"global_step": self._kept_steps, "loops": {**loops, "fit_loop": self._kept}}


def install_loop(trainer: pl.Trainer, loop: RoundLoop) -> None:
    """Put ``loop`` in the place of the trainer's fit loop, with its progress and settings."""
    loop.take_over(trainer.fit_loop)
    trainer.fit_loop = loop
    loop.stop.install()
    for callback in fit_trainer(trainer).callbacks:
        if isinstance(callback, Timer):
            # The fit stops at a round's end. After every batch, processes would wait for those that train fewer.
            callback._interval = Interval.epoch
    if fit_trainer(trainer).reload_dataloaders_every_n_epochs:
        rank_zero_warn("`reload_dataloaders_every_n_epochs` has no effect on clients: their data come from no loader.")


def begin_with_round(trainer: pl.Trainer, round_index: int) -> None:
    """Let the next fit begin with a round, counted from 0, as a fit does that goes on from a checkpoint."""
    rounds = trainer.fit_loop.epoch_progress.current
    assert isinstance(rounds, _ProcessedTracker)
    rounds.processed = round_index
