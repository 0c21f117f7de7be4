"""Hooks, resolved once a round: only those that somebody overrides are called, in Lightning's order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks.progress import RichProgressBar, TQDMProgressBar
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.utilities.model_helpers import is_overridden

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.progress_bars import set_total

#: Progress bars are redrawn at most this often; drawing after every batch costs more than a small model's step.
PROGRESS_BAR_SECONDS = 0.1
#: When each progress bar was drawn last.
_drawn: WeakKeyDictionary[Callback, float] = WeakKeyDictionary()
#: Hooks of a training step; each sees one model's batch or gradients.
STEP_HOOKS = (
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
)


def enter_fx(module: pl.LightningModule, name: str | None) -> str | None:
    """Tell ``self.log`` which hook runs, and return which one ran before."""
    # This goes past `nn.Module.__setattr__`, which costs more than a small hook.
    attributes = module.__dict__
    previous: str | None = attributes["_current_fx_name"]
    attributes["_current_fx_name"] = name
    return previous


def is_profiled(trainer: pl.Trainer) -> bool:
    """Whether the trainer has a profiler, to which acts are told."""
    return type(fit_trainer(trainer).profiler) is not PassThroughProfiler


class Hook:
    """One hook of the callbacks, then of the module, as ``trainer.call`` would run it.

    Args:
        trainer: The trainer, with its module attached.
        name: The hook.
        callbacks: The callbacks; all of the trainer's, and the module, if ``None``.
    """

    def __init__(self, trainer: pl.Trainer, name: str, callbacks: Sequence[Callback] | None = None) -> None:
        self._trainer = trainer
        self._module = module = trainer.lightning_module
        self._name = name
        #: Tells the profiler of a call; ``None`` without one.
        self._profile = fit_trainer(trainer).profiler.profile if is_profiled(trainer) else None
        #: The hook of each callback that has it, and its name for the profiler.
        self._callbacks: list[tuple[Callable[..., Any], str]] = []
        for callback in fit_trainer(trainer).callbacks if callbacks is None else callbacks:
            if is_overridden(name, callback, parent=Callback):
                self._callbacks.append((_throttled(callback, name), f"[Callback]{callback.state_key}.{name}"))
        self._module_hook: Callable[..., Any] | None = None
        if callbacks is None and is_overridden(name, module):
            self._module_hook = getattr(module, name)
        self._module_action = f"[LightningModule]{type(module).__name__}.{name}"

    def __bool__(self) -> bool:
        """Whether anybody overrides the hook."""
        return bool(self._callbacks) or self._module_hook is not None

    def __call__(self, *args: Any) -> Any:
        """Run the callbacks' hooks, then the module's; return what the module's returned."""
        self.call_callbacks(*args)
        return self.call_module(*args)

    def call_callbacks(self, *args: Any) -> None:
        """Run the callbacks' hooks."""
        if not self._callbacks:
            return
        module = self._module
        trainer = self._trainer
        previous = enter_fx(module, self._name)
        for hook, action in self._callbacks:
            if self._profile is None:
                hook(trainer, module, *args)
            else:
                with self._profile(action):
                    hook(trainer, module, *args)
        enter_fx(module, previous)

    def call_module(self, *args: Any) -> Any:
        """Run the module's hook."""
        if self._module_hook is None:
            return None
        module = self._module
        previous = enter_fx(module, self._name)
        if self._profile is None:
            output = self._module_hook(*args)
        else:
            with self._profile(self._module_action):
                output = self._module_hook(*args)
        enter_fx(module, previous)
        return output


def _throttled(callback: Callback, name: str) -> Callable[..., Any]:
    """Return the callback's hook; for Lightning's own progress bars, one that redraws at most every 0.1 s."""
    hook: Callable[..., Any] = getattr(callback, name)
    of_bars = [getattr(bar, name) for bar in (TQDMProgressBar, RichProgressBar)]
    if name != "on_train_batch_end" or getattr(type(callback), name) not in of_bars:
        return hook

    def redraw(trainer: pl.Trainer, module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        now = time.monotonic()
        number = batch_idx + 1
        is_last = number >= trainer.num_training_batches
        if is_last or now - _drawn.get(callback, 0.0) >= PROGRESS_BAR_SECONDS:
            _drawn[callback] = now
            # An asynchronous round only guesses how many batches there will be.
            if number > trainer.num_training_batches:
                set_total(callback, number)  # type: ignore[arg-type]
            hook(trainer, module, outputs, batch, batch_idx)

    return redraw
