"""One step of a client, in the order of Lightning's loop.

::

    training_step                   the objective may change the loss
    on_before_zero_grad             and `optimizer_zero_grad`, at the first batch of a step
    on_before_backward, backward, on_after_backward
    on_before_optimizer_step        the objective changes the gradients, where its callback stands
    configure_gradient_clipping
    optimizer.step

There are two ways to take it, with the same arithmetic. :class:`LightningStep` calls what Lightning's loop calls, so
that whatever users override sees each act. Strategy and precision plugin pass most of these calls on; with a small
model, that takes longer than the arithmetic. :class:`PlainStep` leaves them out, where nobody overrides any of it.
:func:`make_step` chooses between them, once a round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import lightning.pytorch as pl
import torch
from lightning.pytorch.loops.optimization.automatic import ClosureResult
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer import call
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning._lightning.fit_trainer import fit_trainer
from fl_lightning._lightning.logs.client_log import unnoticed
from fl_lightning._lightning.loops.hooks import Hook, enter_fx, is_profiled
from fl_lightning._lightning.loops.overrides import (
    is_blind_to_loss,
    is_plain_sgd,
    overridden_in_precision,
    overridden_in_strategy,
    step_plain_sgd,
)

if TYPE_CHECKING:
    from fl_lightning._lightning.loops.client_loop import ClientLoop
    from fl_lightning._lightning.loops.passes import Pass, StepPasses

#: ``training_step`` as Lightning calls it: takes a batch and its place, and returns what the module's returns.
TrainingStep = Callable[[Any, int], Any]


class StepCorrection(Protocol):
    """The changes that a client's local objective makes to its steps."""

    def run_step(self, step: TrainingStep, batch: Any, batch_idx: int) -> Any:
        """Run ``training_step``, and return what it returned, with the loss to minimise."""

    def correct(self, optimizer: Optimizer) -> None:
        """Change the gradients that the optimizer is about to use."""

    def value(self) -> Tensor | float:
        """Return the value of the term whose gradient :meth:`correct` adds, at the present weights."""

    @property
    def walk(self) -> Callable[[StepPasses], None] | None:
        """Takes a step of several passes; ``None`` where a step takes one."""


class Step(ABC):
    """A step's acts; a round has one such object for all clients.

    Args:
        loop: The clients' loop.
        hooks: The hooks of a step, by name.
    """

    def __init__(self, loop: ClientLoop, hooks: Mapping[str, Hook]) -> None:
        trainer = loop.trainer
        module = trainer.lightning_module
        self._loop = loop
        self._trainer = trainer
        self._module = module
        self._hooks = hooks
        #: Whether ``training_step`` takes the batch's place.
        self.takes_index = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        self._clips = is_overridden("configure_gradient_clipping", module)
        self._zeroes = is_overridden("optimizer_zero_grad", module)
        #: Whether a profiler is told of each act.
        self.is_profiled = is_profiled(trainer)
        self._has_own_zero_grad = any(map(_has_own_zero_grad, trainer.optimizers))
        self._action = f"[Strategy]{type(trainer.strategy).__name__}"

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Run ``training_step`` on a batch that is where the module is."""
        args = (batch, batch_idx) if self.takes_index else (batch,)
        return self._call("training_step", self._trainer.strategy.training_step, *args)

    def take_gradients(self, made: Pass) -> Tensor | None:
        """Run a pass: ``training_step`` and backward; return the loss, ``None`` if there is none."""
        loop = self._loop
        optimizer = made.optimizer
        # An optimizer whose `step` runs without gradients counts on the closure for them, as in Lightning.
        with torch.enable_grad():
            result = self._forward(made)
            if loop.is_window_new:
                self._zero_gradients(made)
            if result.closure_loss is None or result.loss is None:
                loop._warning_cache.warn("`training_step` returned `None`; if on purpose, ignore this warning.")
                return None
            made.outputs.update(result.asdict())
            self._backward(result.closure_loss, optimizer)
            # Most optimizers do not look at the loss, so that the value of the objective's term need not be known.
            if is_blind_to_loss(optimizer):
                return result.loss
            return result.loss + made.correction.value()

    @abstractmethod
    def take(self, made: Pass) -> None:
        """Let the optimizer step on the gradients of a pass, which it may ask for several times."""

    @abstractmethod
    def _backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        """Add the gradients of a loss to the parameters'."""

    def _forward(self, made: Pass) -> ClosureResult:
        """Run ``training_step`` with the loss that the objective makes of it."""
        with unnoticed(self._module) if made.is_quiet else nullcontext():
            output = made.correction.run_step(self.training_step, made.batch, made.batch_idx)
        accumulate = self._trainer.accumulate_grad_batches
        if accumulate == 1 and isinstance(output, Tensor):
            # Lightning would divide by 1.
            return ClosureResult(output)
        return ClosureResult.from_training_step_output(output, accumulate)

    def _zero_gradients(self, made: Pass) -> None:
        self._hooks["on_before_zero_grad"](made.optimizer)
        if self._zeroes:
            args = (self._trainer.current_epoch, made.batch_idx, made.optimizer)
            call._call_lightning_module_hook(self._trainer, "optimizer_zero_grad", *args)
        elif self._has_own_zero_grad:
            made.optimizer.zero_grad()
        else:
            # Torch's own does the same; with a small model, what it tells profilers takes as long as the arithmetic.
            for group in made.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def _call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function as a hook of this name, for ``self.log`` and the profiler."""
        previous = enter_fx(self._module, name)
        if self.is_profiled:
            with fit_trainer(self._trainer).profiler.profile(f"{self._action}.{name}"):
                output = function(*args)
        else:
            output = function(*args)
        enter_fx(self._module, previous)
        return output


class PlainStep(Step):
    """A step without strategy and precision plugin, whose methods would only pass the calls on."""

    def __init__(self, loop: ClientLoop, hooks: Mapping[str, Hook]) -> None:
        super().__init__(loop, hooks)
        self._is_direct = _is_run_as_it_is(loop.trainer)

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if not self._is_direct:
            return super().training_step(batch, batch_idx)
        args = (batch, batch_idx) if self.takes_index else (batch,)
        return self._call("training_step", self._module.training_step, *args)

    @override
    def take(self, made: Pass) -> None:
        optimizer = made.optimizer

        def closure() -> Tensor | None:
            loss = made()
            self._hooks["on_before_optimizer_step"](optimizer)
            self._clip(optimizer)
            return loss

        if is_plain_sgd(optimizer):
            closure()
            step_plain_sgd(optimizer)
        else:
            optimizer.step(closure=closure)  # type: ignore[arg-type]

    @override
    def _backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        self._call("backward", loss.backward)

    def _clip(self, optimizer: Optimizer) -> None:
        trainer = self._trainer
        if self._clips or trainer.gradient_clip_val is not None:
            trainer.precision_plugin._clip_gradients(
                self._module, optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
            )


class LightningStep(Step):
    """A step by strategy, precision plugin and the module's ``optimizer_step``.

    The precision plugin calls ``on_before_optimizer_step`` and clips, after a gradient scaler has unscaled.
    """

    @override
    def take(self, made: Pass) -> None:
        wrapped = self._trainer.strategy._lightning_optimizers[0]
        args = (self._trainer.current_epoch, made.batch_idx, wrapped, made)
        call._call_lightning_module_hook(self._trainer, "optimizer_step", *args)

    @override
    def _backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        self._call("backward", self._trainer.strategy.backward, loss, optimizer)


def make_step(loop: ClientLoop, hooks: Mapping[str, Hook]) -> Step:
    """Return the step of a round: the plain one if nobody would notice the difference.

    Args:
        loop: The clients' loop.
        hooks: The hooks of a step, by name.
    """
    is_noticed = _overrides_a_step(loop.trainer) or hooks["on_before_backward"] or hooks["on_after_backward"]
    return LightningStep(loop, hooks) if is_noticed else PlainStep(loop, hooks)


def _overrides_a_step(trainer: pl.Trainer) -> bool:
    """Whether backward pass or optimizer step of strategy, precision plugin or module are others than usual."""
    if overridden_in_precision(trainer.precision_plugin, (Precision,)) is not None:
        return True
    if overridden_in_strategy(trainer.strategy) is not None:
        return True
    return any(is_overridden(name, trainer.lightning_module) for name in ("backward", "optimizer_step"))


def _is_run_as_it_is(trainer: pl.Trainer) -> bool:
    """Whether the strategy runs ``training_step`` on the module itself, in no context of its precision plugin."""
    precision = type(trainer.precision_plugin)
    has_context = precision.train_step_context is not Precision.train_step_context
    has_context = has_context or precision.forward_context is not Precision.forward_context
    return trainer.strategy.model is trainer.lightning_module and not has_context


def _has_own_zero_grad(optimizer: Optimizer) -> bool:
    """Whether an optimizer does something else in ``zero_grad`` than torch's."""
    return type(optimizer).zero_grad is not Optimizer.zero_grad or "zero_grad" in vars(optimizer)
