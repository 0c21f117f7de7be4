"""Steps of several clients at once, as Lightning sees them: whether they can be, and progress bars."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import product
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ProgressBar, RichProgressBar, TQDMProgressBar
from lightning.pytorch.callbacks.lr_monitor import LearningRateMonitor
from lightning.pytorch.callbacks.timer import Timer
from lightning.pytorch.core.module import _TORCHMETRICS_GREATER_EQUAL_0_9_1
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.utilities.model_helpers import is_overridden
from torchmetrics.wrappers import BootStrapper

from fl_lightning._lightning.errors import CannotVectorize
from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.client_log import has_own_log
from fl_lightning._lightning.loops.client_loop import ClientLoop
from fl_lightning._lightning.loops.corrections import CorrectsGradients
from fl_lightning._lightning.loops.hooks import STEP_HOOKS, Hook
from fl_lightning._lightning.loops.overrides import (
    changes_batches,
    global_hooks,
    overridden_in_precision,
    overridden_in_strategy,
    replaced_in_optimizer,
)

# Lightning would find it out in the first step that logs a collection of metrics, as a change that all clients see.
bool(_TORCHMETRICS_GREATER_EQUAL_0_9_1)
_OF_MODULE = (*STEP_HOOKS, "backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping")
#: Hooks of the module that see gradients and are captured, in their order.
GRADIENT_HOOKS = ("on_after_backward", "on_before_optimizer_step")
#: The module's hook that sees the models after a step, and is captured.
AFTER_STEP = "on_train_batch_end"
#: Lightning's own callbacks whose hooks look at counters and learning rates alone.
_COUNTING = (Callback, ProgressBar, TQDMProgressBar, RichProgressBar, ModelCheckpoint, Timer, LearningRateMonitor)


class StackedLoop:
    """Lightning's loop, as far as a stack needs it.

    Args:
        loop: The clients' loop, prepared.
    """

    def __init__(self, loop: ClientLoop) -> None:
        self._loop = loop
        self.trainer = loop.trainer
        self.module: pl.LightningModule = loop.trainer.lightning_module
        bars = [callback for callback in fit_trainer(loop.trainer).callbacks if isinstance(callback, ProgressBar)]
        hooks = ("on_train_batch_start", "on_train_batch_end")
        self._bars = [Hook(loop.trainer, name, bars) for name in hooks] if bars else []
        self._shown = 0

    def check(self) -> None:
        """Raise ``CannotVectorize`` if module, callbacks or precision need one model at a time."""
        if (cause := next(self._causes(), None)) is not None:
            raise CannotVectorize(cause)

    def _causes(self) -> Iterator[str]:
        """Yield what needs one model at a time."""
        module = self.module
        trainer = self.trainer
        name = type(module).__name__
        precision = trainer.precision_plugin
        optimizers = trainer.optimizers
        if not module.automatic_optimization:
            yield f"{name} optimises manually"
        if len(optimizers) != 1:
            yield f"{name} has {len(optimizers)} optimizers, not one"
        # Lightning's stand-in for none has no groups.
        if not optimizers[0].param_groups:
            yield f"`{name}.configure_optimizers` returns None, so Lightning steps no optimizer of the clients"
        for hook in _OF_MODULE:
            if is_overridden(hook, module) and hook not in self.captured_hooks:
                yield f"{name} overrides `{hook}`, which sees one model at a time"
        if has_own_log(module):
            yield f"{name} overrides `log`"
        data = fit_trainer(trainer).datamodule
        if changes_batches(data) and not getattr(data, "stacks", False):
            yield "a hook of the data module on the batches' transfer is overridden, which sees one batch at a time"
        for callback, hook in product(fit_trainer(trainer).callbacks, STEP_HOOKS):
            if not self._is_known(callback, hook):
                yield f"the callback {type(callback).__name__} overrides `{hook}`, which sees one model at a time"
        if (hooks := global_hooks()) is not None:
            yield f"{hooks} are registered for the whole process, which see one model at a time"
        if optimizers[0]._optimizer_step_pre_hooks or optimizers[0]._optimizer_step_post_hooks:
            yield "the optimizer has step hooks, which see one model at a time"
        for path, parameter in module.named_parameters():
            if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
                yield f"the parameter {path!r} has hooks, which see one model at a time"
        for path, part in module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                yield f"`self.{path}` is compiled by `torch.jit`, for one model at a time"
            if isinstance(part, BootStrapper):
                yield f"`self.{path}` draws random numbers for one client at a time"
        if self._loop.optimizers.begin_with_state:
            yield "the optimizer holds a state before its first step"
        if self._loop.optimizers.by_step and is_overridden("lr_scheduler_step", module):
            yield f"{name} overrides `lr_scheduler_step`, which sees one model at a time after each step"
        for scheduler in self.schedules_by_step():
            cause = _runs_own_code(scheduler)
            if cause is not None:
                yield (
                    f"{type(scheduler).__name__} {cause} after each step, which sees one client at a time (torch's "
                    "other schedules, `LambdaLR` and `SequentialLR` of them are stacked)"
                )
        if (method := replaced_in_optimizer(optimizers[0])) is not None:
            yield f"the optimizer's `{method}` was replaced by another, which sees one model at a time"
        if (method := overridden_in_strategy(trainer.strategy)) is not None:
            yield f"{type(trainer.strategy).__name__} overrides `{method}`, which sees one model at a time"
        if (method := overridden_in_precision(precision)) is not None:
            yield f"{type(precision).__name__} overrides `{method}`, which sees one model at a time"
        if torch.is_anomaly_enabled():
            yield "anomalies are looked for (`detect_anomaly`), in one model at a time"
        if isinstance(precision, MixedPrecision) and precision.scaler is not None:
            yield f'precision="{precision.precision}" scales gradients of one model (use "bf16-mixed" or "32-true")'

    @property
    def captured_hooks(self) -> list[str]:
        """The module's hooks that a stack can run, in their order.

        A step must take one batch. For hooks that see gradients, all parameters that have some must be trained; no
        schedule may step before the hook that sees the models after a step.
        """
        module = self.module
        if int(self.trainer.accumulate_grad_batches) != 1:
            return []
        trained: set[int] = set()
        for group in self.trainer.optimizers[0].param_groups:
            trained.update(map(id, group["params"]))
        names: list[str] = []
        if all(id(own) in trained for own in module.parameters() if own.requires_grad):
            names += GRADIENT_HOOKS
        if not self._loop.optimizers.by_step:
            names.append(AFTER_STEP)
        return [name for name in names if is_overridden(name, module)]

    def _is_known(self, callback: Callback, hook: str) -> bool:
        """Whether a callback's hook looks at counters and learning rates alone, or corrects gradients as stacks do."""
        own = getattr(callback, hook)
        return any(getattr(own, "__func__", own) is getattr(stock, hook) for stock in (*_COUNTING, CorrectsGradients))

    def schedules_by_step(self) -> Iterator[Any]:
        """Yield the schedules that step after a client's steps, also those that others are made of."""
        waiting = [config.scheduler for config in self._loop.optimizers.by_step]
        while waiting:
            scheduler = waiting.pop()
            yield scheduler
            waiting += getattr(scheduler, "_schedulers", ())

    def changing_in_clients(self) -> set[int]:
        """Return the identities of the objects that hold learning rates which change from step to step."""
        schedulers = list(self.schedules_by_step())
        if not schedulers:
            return set()
        [optimizer] = self.trainer.optimizers
        held: list[Any] = [*schedulers, optimizer, optimizer.param_groups, *optimizer.param_groups]
        return set(map(id, held))

    @property
    def takes_index(self) -> bool:
        """Whether ``training_step`` takes the batch's index."""
        return self._loop.stepper.takes_index

    @property
    def hidden_counters(self) -> Callable[[], AbstractContextManager[None]]:
        """Makes what reads counters of steps raise ``CannotVectorize``."""
        return self._loop.hidden_counters

    @property
    def steps_so_far(self) -> int:
        """The optimizer steps of all clients before the stack."""
        return self._loop.steps_so_far

    @property
    def counting(self) -> Callable[[int], AbstractContextManager[None]]:
        """Makes ``trainer.global_step`` a number."""
        return self._loop.counting

    @property
    def transfer(self) -> Callable[[Any], Any]:
        """Brings a client's batch to the module as a single client's is."""
        return self._loop._transfer

    # ---- progress bars ----

    def begin_stack(self) -> None:
        """Begin a stack of clients."""
        self._shown = self._loop.batch_progress.current.ready

    def show(self, batches: int) -> None:
        """Let progress bars see that some batches, of all clients together, were trained on."""
        if not self._bars:
            return
        self._shown += batches
        start, end = self._bars
        start.call_callbacks(None, self._shown - 1)
        end.call_callbacks({}, None, self._shown - 1)


def _runs_own_code(scheduler: Any) -> str | None:
    """Return what a schedule calls that is a user's own; ``None`` for nothing."""
    if not type(scheduler).__module__.startswith("torch.optim."):
        return "is no schedule of torch's and is called"
    if {"step", "get_lr"} & vars(scheduler).keys():
        return "has another `step` or `get_lr` that is called"
    if getattr(scheduler, "_scale_fn_custom", None) is not None:
        return "calls a function of your own"
    return None
