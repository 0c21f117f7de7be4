"""The private names of Lightning that ``fl_lightning._lightning`` uses exist and take what they are given.

A failure here after an upgrade of Lightning names what changed; adapt ``fl_lightning/_lightning`` and this list.
"""

from __future__ import annotations

import inspect
from functools import reduce
from pkgutil import resolve_name

import lightning as L
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks.timer import Interval, Timer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultCollection, _ResultMetric
from torchmetrics import SumMetric
from torchmetrics import __version__ as torchmetrics_version

from fl_lightning._lightning.evaluation.evaluation_loops import FederatedEvaluation, SharedEvaluation
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning._lightning.loops.round_loop import RoundLoop

#: Functions and methods that are called or replaced, and their parameters.
CALLABLES: dict[str, str] = {
    "trainer.call._call_callback_hooks": "trainer hook_name args monitoring_callbacks kwargs",
    "trainer.call._call_lightning_module_hook": "trainer hook_name args pl_module kwargs",
    "trainer.call._call_strategy_hook": "trainer hook_name args kwargs",
    "utilities.model_helpers.is_overridden": "method_name instance parent",
    "utilities.signature_utils.is_param_in_hook_signature": "hook_fx param explicit min_args",
    "utilities.data.extract_batch_size": "batch",
    "plugins.precision.Precision.optimizer_step": "self optimizer model closure kwargs",
    "plugins.precision.Precision._clip_gradients": "self model optimizer clip_val gradient_clip_algorithm",
    "plugins.precision.Precision.convert_input": "self data",
    "strategies.Strategy.backward": "self closure_loss optimizer args kwargs",
    "strategies.Strategy.reduce": "self tensor group reduce_op",
    "core.module.LightningModule._on_before_batch_transfer": "self batch dataloader_idx",
    "loops.optimization.automatic.ClosureResult.from_training_step_output": "training_step_output normalize",
    "loops.optimization.manual.ManualResult.from_training_step_output": "training_step_output",
    "loops.training_epoch_loop._TrainingEpochLoop.__init__": "self trainer min_steps max_steps",
    "loops.training_epoch_loop._TrainingEpochLoop.update_lr_schedulers": "self interval update_plateau_schedulers",
    "callbacks.ModelCheckpoint._find_last_checkpoints": "self trainer",
    "callbacks.ModelCheckpoint._should_skip_saving_checkpoint": "self trainer",
    "trainer.connectors.signal_connector._SignalConnector._sigterm_notifier_fn": "self signum _",
    "trainer.connectors.signal_connector._SignalConnector._slurm_sigusr_handler_fn": "self signum _",
    "trainer.connectors.data_connector._parse_num_batches": "stage length limit_batches",
    "loops.loop._Loop.state_dict": "self destination prefix",
    "loops.loop._Loop.load_state_dict": "self state_dict prefix",
    "trainer.connectors.logger_connector.logger_connector._LoggerConnector.on_batch_start": "self batch dataloader_idx",
}
#: Methods without parameters.
METHODS: dict[str, str] = {
    "plugins.precision.Precision": "train_step_context forward_context",
    "strategies.Strategy": "lightning_module_state_dict",
    "loops.optimization.manual._ManualOptimization": "on_run_start on_run_end",
    "loops.training_epoch_loop._TrainingEpochLoop": "on_save_checkpoint _should_check_val_epoch _should_accumulate",
    "loops.evaluation_loop._EvaluationLoop": "_store_dataloader_outputs",
    "loops.fit_loop._FitLoop": "setup_data reset on_run_start on_advance_start advance on_advance_end run",
    "trainer.connectors.checkpoint_connector._CheckpointConnector": "_get_loops_state_dict",
    "trainer.connectors.logger_connector.logger_connector._LoggerConnector": (
        "on_batch_end on_epoch_end epoch_end_reached update_train_step_metrics update_train_epoch_metrics"
    ),
}
CALLABLES |= {f"{owner}.{name}": "self" for owner, names in METHODS.items() for name in names.split()}

_OF_EVALUATION = ["_combined_loader", "_data_source", "_max_batches", "_results"]
# attributes that are read or written, by the object that has them (a path from the trainer)
ATTRIBUTES: dict[str, list[str]] = {
    "": ["_logger_connector", "received_sigterm", "num_training_batches", "lr_scheduler_configs", "barebones"],
    "_logger_connector": ["_first_loop_iter", "_progress_bar_metrics"],
    "fit_loop": ["epoch_loop", "epoch_progress", "max_batches", "_restarting"],
    "fit_loop.epoch_progress": ["current", "total"],
    "fit_loop.epoch_progress.current": ["ready", "started", "processed", "completed"],
    "fit_loop.epoch_loop": [
        *("min_steps", "max_steps", "batch_progress", "scheduler_progress", "val_loop", "_results"),
        *("automatic_optimization", "manual_optimization", "_batches_that_stepped", "_warning_cache"),
    ],
    "fit_loop.epoch_loop._results": ["batch", "batch_size", "dataloader_idx"],
    "fit_loop.epoch_loop.batch_progress": ["is_last_batch", "current", "total"],
    "fit_loop.epoch_loop.val_loop": ["run", "batch_progress", *_OF_EVALUATION],
    "validate_loop": _OF_EVALUATION,
    "test_loop": _OF_EVALUATION,
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step": ["total"],
    "fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total": ["ready", "completed"],
    "fit_loop.epoch_loop.manual_optimization.optim_step_progress.total": ["ready", "completed"],
    "strategy": ["_lightning_optimizers", "root_device", "launcher"],
    "_signal_connector": ["received_sigterm", "_sigterm_notifier_fn", "_slurm_sigusr_handler_fn"],
}


def test_functions_take_what_they_are_given() -> None:
    changed = {}
    for name, parameters in CALLABLES.items():
        owner, _, function = f"lightning.pytorch.{name}".rpartition(".")
        given = getattr(resolve_name(owner), function, None)
        found = None if given is None else " ".join(inspect.signature(given).parameters)
        if found != parameters:
            changed[name] = found
    assert not changed, f"Lightning {L.__version__} changed the parameters (None: it is gone)"


_LOGGED = _Metadata("training_step", "x", on_step=True, on_epoch=True)
#: Attributes of other objects.
OTHERS: list[tuple[object, str]] = [
    (_LOGGED, "fx name prog_bar logger on_step on_epoch reduce_fx enable_graph _sync add_dataloader_idx"),
    (
        _ResultMetric(_LOGGED, is_tensor=True),
        "value cumulated_batch_size _forward_cache _computed has_reset _update_count is_tensor",
    ),
    (_ResultCollection, "log"),
    (L.LightningModule(), "_current_fx_name"),
    # what stacks keep of metric objects
    (SumMetric(), "_update_count _forward_cache _computed _defaults _is_synced sum_value"),
]


def test_attributes_exist() -> None:
    trainer, missing = quiet_trainer(), {}
    owners = [(reduce(getattr, filter(None, owner.split(".")), trainer), names) for owner, names in ATTRIBUTES.items()]
    for owner, names in (*owners, *((owner, names.split()) for owner, names in OTHERS)):
        # `strategy` and `trainer` fill some of them in when the fit begins
        if gone := [name for name in names if name not in dir(owner)]:
            missing[type(owner).__name__] = gone
    assert not missing, f"Lightning {L.__version__} or torchmetrics {torchmetrics_version} renamed them"
    assert SumMetric()._copy_state_dict().keys() == {"sum_value"}
    assert vars(SumMetric())["update"].__wrapped__.__func__ is SumMetric.update
    assert getattr(Timer(interval="step"), "_interval", None) == Interval.step


REPLACED: list[tuple[type, type, set[str]]] = [
    (
        *(RoundLoop, _FitLoop),
        {"setup_data", "reset", "on_run_start", "on_advance_start", "advance", "on_advance_end", "run", "on_run_end"},
    ),
    (ClientLoop, _TrainingEpochLoop, {"_should_accumulate", "on_save_checkpoint"}),
    (FederatedEvaluation, _EvaluationLoop, {"run"}),
    (SharedEvaluation, _EvaluationLoop, {"run", "reset", "setup_data", "_store_dataloader_outputs"}),
]


def test_no_new_private_name_of_lightning_is_replaced_by_chance() -> None:
    for ours, stock, replaced in REPLACED:
        common = {name for name, value in vars(ours).items() if hasattr(stock, name) and callable(value)}
        assert common - set(dir(object)) == replaced, f"Lightning {L.__version__}: {ours.__name__}"
