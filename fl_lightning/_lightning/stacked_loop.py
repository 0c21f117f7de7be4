"""Several clients' steps at once in the eyes of Lightning: the training step, logs, counters, progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ProgressBar, RichProgressBar, TQDMProgressBar
from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor
from lightning.pytorch.callbacks.timer import Timer
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torchmetrics import Metric

from fl_lightning._lightning.client_loop import ClientLoop
from fl_lightning._lightning.hooks import STEP_HOOKS, enter_fx
from fl_lightning._lightning.transfer import is_plain_transfer

_OF_MODULE = (*STEP_HOOKS, "backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")
#: Lightning's own callbacks whose hooks look at counters and learning rates alone.
_COUNTING = (ProgressBar, TQDMProgressBar, RichProgressBar, ModelCheckpoint, Timer, LearningRateMonitor)
_REDUCTIONS = {"mean": "mean", torch.mean: "mean", "sum": "sum", torch.sum: "sum"}
_REDUCTIONS |= {"max": "max", torch.max: "max", "min": "min", torch.min: "min"}
_ARGUMENTS = ("prog_bar", "logger", "on_step", "on_epoch", "reduce_fx", "enable_graph", "sync_dist")


class CannotVectorize(Exception):
    """Something needs one model at a time; the message names it, and the way out where there is one."""


@dataclass
class Logged:
    """What one ``training_step`` logged: names and options, and the values apart."""

    calls: list[tuple[str | None, str, dict[str, Any]]] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class StackedLoop:
    """Runs ``training_step`` for models that stand in the module's place, and reports to Lightning.

    Args:
        loop: The clients' loop, prepared.
        corrector: The callback whose hook corrects gradients; stacks are corrected otherwise.
        module: A copy of the trainer's module; the module itself if ``None``.
    """

    def __init__(self, loop: ClientLoop, corrector: Callback, module: pl.LightningModule | None = None) -> None:
        self._loop, self._corrector = loop, corrector
        self._module: pl.LightningModule = loop.trainer.lightning_module if module is None else module
        self._logged = Logged()

    # ---- whether it can be ----

    def check(self) -> None:
        """Raise ``CannotVectorize`` if module, callbacks or precision need one model at a time."""
        module, trainer = self._module, self._loop.trainer
        name = type(module).__name__
        if not module.automatic_optimization:
            raise CannotVectorize(f"{name} optimises manually")
        if len(trainer.optimizers) != 1:
            raise CannotVectorize(f"{name} has {len(trainer.optimizers)} optimizers, not one")
        for hook in _OF_MODULE:
            if is_overridden(hook, module):
                raise CannotVectorize(f"{name} overrides `{hook}`, which sees one model at a time")
        if type(module).log is not pl.LightningModule.log:
            raise CannotVectorize(f"{name} overrides `log`")
        for callback in trainer.callbacks:
            self._check_callback(callback)
        if trainer.optimizers[0]._optimizer_step_pre_hooks or trainer.optimizers[0]._optimizer_step_post_hooks:
            raise CannotVectorize("the optimizer has step hooks, which see one model at a time")
        for parameter_name, parameter in module.named_parameters():
            if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
                raise CannotVectorize(f"the parameter {parameter_name!r} has hooks, which see one model at a time")
        precision = trainer.precision_plugin
        scales = isinstance(precision, MixedPrecision) and precision.scaler is not None
        own_step = type(precision).optimizer_step not in (Precision.optimizer_step, MixedPrecision.optimizer_step)
        if scales or own_step:
            raise CannotVectorize(
                f'precision="{precision.precision}" scales gradients of one model (use "bf16-mixed" or "32-true")'
            )

    def _check_callback(self, callback: Callback) -> None:
        stock = type(callback).__module__.startswith("lightning.")
        if callback is self._corrector or (stock and isinstance(callback, _COUNTING)):
            return
        for hook in STEP_HOOKS:
            if is_overridden(hook, callback, parent=Callback):
                raise CannotVectorize(
                    f"the callback {type(callback).__name__} overrides `{hook}`, which sees one model at a time"
                )

    # ---- the training step ----

    @contextmanager
    def recording(self) -> Iterator[Logged]:
        """Collect what ``training_step`` logs."""
        attributes = self._module.__dict__
        before = attributes.get("log")
        self._logged = Logged()
        attributes["log"] = self._record
        try:
            yield self._logged
        finally:
            if before is None:
                del attributes["log"]
            else:
                attributes["log"] = before

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Run ``training_step`` with whatever stands in the module's place, and return its loss.

        Raises:
            CannotVectorize: If it returns no loss.
        """
        output = self._loop._training_step(batch, batch_idx, self._module)
        loss: Any = output.get("loss") if isinstance(output, dict) else output
        if not hasattr(loss, "detach"):
            raise CannotVectorize(f"`training_step` returned {type(output).__name__}, not a loss")
        return loss  # type: ignore[no-any-return]

    @property
    def transfer(self) -> Callable[[Any], Any]:
        """Brings a client's batch to the module as a single client's is."""
        return self._loop._transfer

    @property
    def transfers_plainly(self) -> bool:
        """Whether batches are only moved to the device."""
        return is_plain_transfer(self._loop.trainer)

    def _record(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        kwargs = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        if isinstance(value, Metric):
            raise CannotVectorize(
                f"`training_step` logs the metric object {name!r}, which has one state (log a plain mean instead, as "
                "fl_lightning.models.Classifier does)"
            )
        if kwargs.get("reduce_fx", "mean") not in _REDUCTIONS or kwargs.get("enable_graph"):
            raise CannotVectorize(f"`self.log({name!r}, ...)` has a `reduce_fx` of its own or keeps the graph")
        # a stand-in for a tensor, as of a fused step, is none by its type
        tensor = hasattr(value, "detach")
        value = value.detach() if tensor else torch.tensor(float(value), device=self._module.device)
        self._logged.calls.append((self._module._current_fx_name, name, kwargs))
        self._logged.values.append(value.reshape(()))

    # ---- what Lightning is told ----

    def log(self, logged: Logged, values: Sequence[Tensor], first_batch: Callable[[], Any]) -> None:
        """Log one step's values of several clients, weighted as if each had logged its own.

        Args:
            logged: Names and options.
            values: Each of shape ``(K,)``.
            first_batch: Returns the first client's batch, for its size.
        """
        size: int | None = None
        for (fx, name, options), value in zip(logged.calls, values, strict=True):
            weight = options.get("batch_size")
            if weight is None:
                size = weight = extract_batch_size(first_batch()) if size is None else size
            kind = _REDUCTIONS[options.get("reduce_fx", "mean")]
            if not value.is_floating_point():
                value = value.to(torch.get_default_dtype())
            if kind in ("max", "min"):
                joint = value.amax() if kind == "max" else value.amin()
            else:
                joint = value.sum() if kind == "sum" else value.mean()
            previous = enter_fx(self._module, fx)
            self._loop.client_log(name, joint, **{**options, "batch_size": weight * len(value)})
            enter_fx(self._module, previous)

    def begin_step(self) -> None:
        """Prepare a step's logs."""
        self._loop.trainer._logger_connector._first_loop_iter = self._loop.batch_progress.current.ready == 0

    def end_step(self, batches: int, clients: int, loss: Tensor) -> None:
        """Count one optimizer step of each of several clients, and let loggers and progress bars see it.

        Args:
            batches: Batches of all of them.
            clients: How many stepped.
            loss: Their mean loss.
        """
        loop = self._loop
        trainer, progress = loop.trainer, loop.batch_progress
        for tracker in (progress.total, progress.current):
            for count in ("ready", "started", "processed", "completed"):
                setattr(tracker, count, getattr(tracker, count) + batches)
        steps = loop.automatic_optimization.optim_progress.optimizer.step
        for tracker in (steps.total, steps.current):
            tracker.ready += clients
            tracker.completed += clients
        progress.is_last_batch = progress.current.ready >= loop._round_batches
        before, every = loop._batches_that_stepped, trainer.log_every_n_steps
        after = before + clients
        # the step at which loggers write, if this stretch has one
        due = after // every * every - 1 if every else -1
        loop._batches_that_stepped = due if due >= before else after - 1
        loop._accumulating = False
        if progress.is_last_batch:
            trainer._logger_connector.on_batch_end()
        for name, args in (("on_train_batch_start", ()), ("on_train_batch_end", ({"loss": loss},))):
            loop._hooks[name].call_callbacks(*args, None, progress.current.ready - 1)
        if trainer.loggers and due >= before:
            trainer._logger_connector.update_train_step_metrics()
        loop._batches_that_stepped = after


class SilentStackedLoop(StackedLoop):
    """Runs ``training_step`` of a copy of the module, and keeps what it would report to itself.

    Attributes:
        heard: For each hook and name, how many values were logged, and their sum.
    """

    def __init__(self, loop: ClientLoop, corrector: Callback, module: pl.LightningModule) -> None:
        super().__init__(loop, corrector, module)
        self.heard: dict[tuple[str | None, str], tuple[int, float]] = {}

    def log(self, logged: Logged, values: Sequence[Tensor], first_batch: Callable[[], Any]) -> None:
        """Add values of several clients to what was heard."""
        for (fx, name, _), value in zip(logged.calls, values, strict=True):
            count, total = self.heard.get((fx, name), (0, 0.0))
            self.heard[fx, name] = count + len(value), total + float(value.double().sum())

    def begin_step(self) -> None:
        """Do nothing."""

    def end_step(self, batches: int, clients: int, loss: Tensor) -> None:
        """Do nothing."""
