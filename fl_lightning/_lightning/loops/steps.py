"""One step of a client, in the order of Lightning's loop.

A step of one batch, from the outside to the inside::

    ClientLoop._optimize
        Pass.optimize
            Stepper.take
                optimizer.step                        calls the pass, which is its closure
                    Pass.__call__
                        training_step                 the objective may change the loss
                        on_before_zero_grad           and `optimizer_zero_grad`, at the first batch of a step
                        on_before_backward, backward, on_after_backward
                    on_before_optimizer_step          the objective changes the gradients, where its callback stands
                    configure_gradient_clipping
                                                      and changes the weights

A :class:`Pass` is one batch's. The optimizer calls it inside its ``step``: once, or several times as LBFGS does. A
:class:`Stepper` is the way in which all steps of a round are taken.

There are two ways, with the same arithmetic. :class:`LightningStepper` calls what Lightning's loop calls, so that
whatever users override sees each act. Strategy and precision plugin pass most of these calls on; with a small model,
that takes longer than the arithmetic. :class:`PlainStepper` leaves them out, where nobody overrides any of it.
:func:`make_stepper` chooses between them, once a round.
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
from lightning.pytorch.utilities.exceptions import MisconfigurationException
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
    from fl_lightning._lightning.loops.passes import StepPasses

#: ``training_step`` as Lightning calls it: takes a batch and its place, and returns what the module's returns.
TrainingStep = Callable[[Any, int], Any]


class ChangedSteps(Protocol):
    """The steps of one client, as its local objective changes them; see :mod:`fl_lightning.clients.client_steps`."""

    def run_step(self, step: TrainingStep, batch: Any, batch_idx: int) -> Any:
        """Run ``training_step``, and return what it returned, with the loss to minimise."""

    def correct(self, optimizer: Optimizer) -> None:
        """Change the gradients that the optimizer is about to use."""

    def value(self) -> Tensor | float:
        """Return the value of the term whose gradient :meth:`correct` adds, at the present weights."""

    @property
    def walk(self) -> Callable[[StepPasses], None] | None:
        """Takes a step of several passes; ``None`` where a step takes one."""


class Pass:
    """A forward and backward pass over a batch: the closure that an optimizer's step calls.

    Args:
        loop: The clients' loop, with a client at work.
        batch: The batch, on the module's device.
        batch_idx: Position in the client's local training.
        is_quiet: Whether what ``training_step`` logs is dropped.

    Attributes:
        client_steps: What the client's objective does to the pass.
        optimizer: The module's optimizer.
        outputs: What Lightning hands to ``on_train_batch_end``.
        runs: How often it ran.
    """

    def __init__(self, loop: ClientLoop, batch: Any, batch_idx: int, is_quiet: bool = False) -> None:
        assert loop.client_steps is not None
        self._loop = loop
        self._batch = batch
        self.batch_idx = batch_idx
        self._is_quiet = is_quiet
        self.client_steps: ChangedSteps = loop.client_steps
        self.optimizer: Optimizer = loop.trainer.optimizers[0]
        self.outputs: dict[str, Any] = {}
        self.runs = 0

    def __call__(self) -> Tensor | None:
        """Run ``training_step`` and the backward pass; return the loss, None if there is none."""
        self.runs += 1
        loop = self._loop
        stepper = loop.stepper
        optimizer = self.optimizer
        # An optimizer whose `step` runs without gradients counts on the closure for them, as in Lightning.
        with torch.enable_grad():
            output = self._forward()
            if loop.is_window_new:
                stepper.zero_gradients(optimizer, self.batch_idx)
            is_whole_loss = isinstance(output, Tensor) and loop.trainer.accumulate_grad_batches == 1
            if is_whole_loss and not stepper.shows_loss and is_blind_to_loss(optimizer):
                stepper.backward(output, optimizer)
                return output  # type: ignore[no-any-return]
            if is_whole_loss:
                # Lightning would divide by 1.
                result = ClosureResult(output)
            else:
                result = ClosureResult.from_training_step_output(output, loop.trainer.accumulate_grad_batches)
            if result.closure_loss is None or result.loss is None:
                loop._warning_cache.warn("`training_step` returned `None`; if on purpose, ignore this warning.")
                return None
            self.outputs.update(result.asdict())
            stepper.backward(result.closure_loss, optimizer)
            # Most optimizers do not look at the loss, so that the value of the objective's term need not be known.
            if is_blind_to_loss(optimizer):
                return result.loss
            return result.loss + self.client_steps.value()

    def _forward(self) -> Any:
        """Return what ``training_step`` returns, with the loss that the objective makes of it."""
        with unnoticed(self._loop.trainer.lightning_module) if self._is_quiet else nullcontext():
            return self.client_steps.run_step(self._loop.stepper.training_step, self._batch, self.batch_idx)

    def optimize(self) -> None:
        """Let the optimizer take a step, in which it calls the pass.

        Raises:
            MisconfigurationException: If it has not called it.
        """
        self._loop.stepper.take(self)
        if not self.runs:
            raise MisconfigurationException(
                f"`{type(self.optimizer).__name__}.step` was not given the closure, or has not called it, so nothing "
                "was trained. A user-defined `optimizer_step` must call `optimizer.step(closure=optimizer_closure)`."
            )


class Stepper(ABC):
    """The acts of a step; a round has one such object for all steps of all clients.

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
        self._action = f"[Strategy]{type(trainer.strategy).__name__}"
        #: Whether anybody but the optimizer sees the loss, of which Lightning makes a copy for that.
        self.shows_loss = True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Run ``training_step`` on a batch that is where the module is."""
        args = (batch, batch_idx) if self.takes_index else (batch,)
        return self._call("training_step", self._trainer.strategy.training_step, *args)

    def zero_gradients(self, optimizer: Optimizer, batch_idx: int) -> None:
        """Clear the gradients, with the hooks that belong to it."""
        self._hooks["on_before_zero_grad"](optimizer)
        if self._zeroes:
            args = (self._trainer.current_epoch, batch_idx, optimizer)
            call._call_lightning_module_hook(self._trainer, "optimizer_zero_grad", *args)
        elif getattr(optimizer.zero_grad, "__func__", None) is not Optimizer.zero_grad:
            # An optimizer's own, or one that was put into it.
            optimizer.zero_grad()
        else:
            # Torch's own does the same; with a small model, what it tells profilers takes as long as the arithmetic.
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    @abstractmethod
    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        """Add the gradients of a loss to the parameters'."""

    @abstractmethod
    def take(self, closure: Pass) -> None:
        """Let the optimizer step on the gradients of a pass, which it may ask for several times."""

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


class PlainStepper(Stepper):
    """A step without strategy and precision plugin, whose methods would only pass the calls on."""

    def __init__(self, loop: ClientLoop, hooks: Mapping[str, Hook]) -> None:
        super().__init__(loop, hooks)
        self._is_direct = _is_run_as_it_is(loop.trainer)
        self.shows_loss = bool(hooks["on_train_batch_end"])

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if not self._is_direct:
            return super().training_step(batch, batch_idx)
        args = (batch, batch_idx) if self.takes_index else (batch,)
        return self._call("training_step", self._module.training_step, *args)

    @override
    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        self._call("backward", loss.backward)

    @override
    def take(self, closure: Pass) -> None:
        optimizer = closure.optimizer
        trainer = self._trainer

        def gradients() -> Tensor | None:
            loss = closure()
            self._hooks["on_before_optimizer_step"](optimizer)
            if self._clips or trainer.gradient_clip_val is not None:
                trainer.precision_plugin._clip_gradients(
                    self._module, optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm
                )
            return loss

        if is_plain_sgd(optimizer):
            gradients()
            step_plain_sgd(optimizer)
        else:
            optimizer.step(closure=gradients)  # type: ignore[arg-type]


class LightningStepper(Stepper):
    """A step by strategy, precision plugin and the module's ``optimizer_step``.

    The precision plugin calls ``on_before_optimizer_step`` and clips, after a gradient scaler has unscaled.
    """

    @override
    def backward(self, loss: Tensor, optimizer: Optimizer) -> None:
        self._call("backward", self._trainer.strategy.backward, loss, optimizer)

    @override
    def take(self, closure: Pass) -> None:
        wrapped = self._trainer.strategy._lightning_optimizers[0]
        args = (self._trainer.current_epoch, closure.batch_idx, wrapped, closure)
        call._call_lightning_module_hook(self._trainer, "optimizer_step", *args)


def make_stepper(loop: ClientLoop, hooks: Mapping[str, Hook]) -> Stepper:
    """Return the stepper of a round: the plain one if nobody would notice the difference.

    Args:
        loop: The clients' loop.
        hooks: The hooks of a step, by name.
    """
    is_noticed = _overrides_a_step(loop.trainer) or hooks["on_before_backward"] or hooks["on_after_backward"]
    return LightningStepper(loop, hooks) if is_noticed else PlainStepper(loop, hooks)


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
