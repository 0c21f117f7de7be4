"""A client's steps: the correction of their gradients, and their arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from fl_lightning._lightning.loops.local_optimizers import is_step_skipped, maximized, maximizes, unscale_before_hooks
from fl_lightning._lightning.loops.passes import InfiniteGradient, StepPasses
from fl_lightning._lightning.loops.steps import TrainingStep
from fl_lightning.clients.forward_pass import RecordedPass
from fl_lightning.clients.state_vector import StateVector, unshared
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import Task, same_values
from fl_lightning.parts.objectives.base import Correction
from fl_lightning.parts.objectives.several_points import Walk

_CONVOLUTIONS = ("convolution", "lstm", ".gru", "_gru", "rnn")
#: Operations of steps that are more than products of matrices.
_OTHERS = (
    *_CONVOLUTIONS,
    "batch_norm",
    "layer_norm",
    "group_norm",
    "instance_norm",
    "rms_norm",
    "bmm",
    "attention",
    "embedding",
    "pool",
)


#: Kernels of whole recurrent layers, for which torch's counter has no formula.
_RECURRENT = ("aten.mkldnn_rnn_layer", "aten._cudnn_rnn", "aten.miopen_rnn")


class ClientSteps:
    """Corrects one client's steps as the local objective asks, and sums their learning rates.

    It is what Lightning's loop has as :attr:`~fl_lightning._lightning.loops.client_loop.ClientLoop.correction`.

    Args:
        correction: The term that the local objective adds; ``None`` for none.
        recorded: Runs ``training_step`` for an objective that changes its loss; ``None`` if it is left as it is.
        vector: The federated state of the module, which holds the model from which the client trains.
        start: The model from which the client's training starts, shape ``(size,)``.
        algorithm: The algorithm; many do not need to know of steps.
        trainer: The trainer, with the client's fresh optimizers.
    """

    def __init__(
        self,
        correction: Correction | None,
        recorded: RecordedPass | None,
        vector: StateVector,
        start: Tensor,
        algorithm: Algorithm,
        trainer: pl.Trainer,
    ) -> None:
        self._correction = correction
        self._recorded = recorded
        self._vector = vector
        self._trainer = trainer
        #: Whether a step takes several passes.
        self.walks = isinstance(correction, Walk)
        #: Whether what the client does on a batch is a step of its model.
        self.are_steps = not isinstance(correction, Walk) or correction.is_step
        #: Sum of the learning rates so far, for each parameter tensor; empty unless they are summed.
        self.summed_lr: list[float] = [0.0 for _ in vector.parameters] if algorithm.needs_summed_lr else []
        #: Steps that a gradient scaler has skipped.
        self.skipped = 0
        self._places = {id(p): place for place, p in enumerate(vector.parameters)}
        self._start = [] if correction is None else vector.parameter_views(start)
        linear = None if correction is None else correction.linear
        self._linear = [] if linear is None else vector.parameter_views(linear)
        self._seen = False
        ascending = maximized(trainer.optimizers)
        #: Parameters whose optimizer maximises, so that their gradients are those of minus what clients minimise.
        self._ascending = [parameter for parameter in vector.parameters if id(parameter) in ascending]
        # of the walk's step under way
        self._passes: StepPasses | None = None
        self._change: Callable[[], None] | None = None
        # which of the walk's models the optimizer's state belongs to, and the states of the others
        self._model = 0
        self._states: dict[int, dict[Any, Any]] = {}
        self._taken: list[bool] = []  # whether each of its optimizer steps was taken, and not skipped by a scaler
        by_lightning = trainer.lightning_module.automatic_optimization and trainer.optimizers
        counted = not by_lightning and algorithm.aggregation.counts_on_momentum is not None
        #: The model before the first step, if a step that Lightning does not see would be wrong.
        self._before = vector.read() if counted or correction is not None else None
        prepare_optimizers(correction, trainer)

    # ---- a step of one pass ----

    def run_step(self, step: TrainingStep, batch: Any, batch_idx: int) -> Any:
        """Run ``training_step``, and return what it returned, with the loss that the objective makes of its loss."""
        if self._recorded is None:
            return step(batch, batch_idx)
        return self._recorded.run(step, batch, batch_idx)

    def correct(self, optimizer: Optimizer) -> None:
        """Correct the gradients that the optimizer is about to use."""
        self._seen = True
        is_skipped = is_step_skipped(self._trainer, optimizer)
        if self._passes is not None:
            self._taken.append(not is_skipped)
        elif is_skipped:
            self.skipped += 1
        if is_skipped:
            return
        if self._passes is not None:
            self._change_gradients(self._vector.parameters, self._change)
        else:
            if self._correction is not None:
                self._add_gradient(optimizer, self._correction)
            self._sum_rates(optimizer)

    def value(self) -> Tensor | float:
        """Return the value of the term that the objective adds, at the present weights."""
        correction = self._correction
        if correction is None:
            return 0.0
        ascending = set(map(id, self._ascending))
        total: Tensor | float = 0.0
        for sign in (1, -1):
            parameters = [p for p in self._vector.parameters if (id(p) in ascending) == (sign < 0)]
            if parameters:
                total = total + sign * correction.value(parameters, *self._terms_of(parameters))
        return total

    # ---- a step of several passes ----

    def walk(self, passes: StepPasses) -> None:
        """Let the objective take a step."""
        assert isinstance(self._correction, Walk)
        self._seen = True
        self._passes = passes
        self._taken = []
        try:
            with torch.no_grad():
                self._correction.walk(self._vector.parameters, self)
        except InfiniteGradient:
            self._taken.append(False)
            raise
        finally:
            self._passes = None
            if any(self._taken):
                self._sum_rates(self._trainer.optimizers[0])
            elif self._taken:
                self.skipped += 1

    def gradient(self, batch: int = 0) -> None:
        """Compute gradients of what is minimised; see :meth:`Passes.gradient`."""
        assert self._passes is not None
        self._passes.gradient(batch)
        make_dense(self._vector.parameters)
        self._turn(self._ascending)

    def step(self, batch: int = 0, change: Callable[[], None] | None = None, model: int = 0) -> bool:
        """Let the optimizer take a step; see :meth:`Passes.step`."""
        assert self._passes is not None
        self._change = change
        self._take_state_of(model)
        before = len(self._taken)
        self._passes.step(batch)
        return any(self._taken[before:])

    def _take_state_of(self, model: int) -> None:
        """Let the optimizer have its state for one of the walk's models."""
        if model != self._model:
            state = self._trainer.optimizers[0].state
            self._states[self._model] = dict(state)
            state.clear()
            state.update(self._states.pop(model, {}))
            self._model = model

    # ---- both ----

    def check_seen(self, task: Task, model: Tensor) -> None:
        """Raise ``ValueError`` if the client's weights have changed without a step that was corrected or counted.

        Args:
            task: The client's task.
            model: The model after training, shape ``(size,)``.
        """
        n = self._vector.num_parameters
        if self._before is not None and not self._seen and not same_values(self._before[:n], model[:n]):
            raise ValueError(
                f"{type(self._trainer.lightning_module).__name__} has changed the weights of client {task.client} "
                "without a step of an optimizer that Lightning knows of, which the algorithm's objective corrects, or "
                "its aggregation counts. In `training_step`, take `optimizer = self.optimizers()` and call "
                "`self.manual_backward(loss)` and `optimizer.step()`; or train by FedAvg."
            )

    def _add_gradient(self, optimizer: Optimizer, correction: Correction) -> None:
        stepped = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        for parameter in stepped if correction.frozen else ():
            if self._places[id(parameter)] in correction.frozen:
                parameter.grad = None  # so that no optimizer touches it
        stepped = [parameter for parameter in stepped if parameter.grad is not None]
        if stepped:  # else `training_step` returned None for the batch, or all is frozen
            self._change_gradients(stepped, lambda: correction.add(stepped, *self._terms_of(stepped)))

    def _change_gradients(self, parameters: Sequence[nn.Parameter], change: Callable[[], None] | None) -> None:
        """Let a change see, and make, gradients of what is minimised; an optimizer that maximises gets their negatives.

        Args:
            parameters: The parameters whose gradients it may change.
            change: Changes them; ``None`` for no change.
        """
        if change is None:
            return
        make_dense(parameters)
        known = set(map(id, parameters))
        ascending = [parameter for parameter in self._ascending if id(parameter) in known]
        self._turn(ascending)
        change()
        self._turn(ascending)

    def _turn(self, parameters: Sequence[nn.Parameter]) -> None:
        """Turn the gradients of some parameters into those of the negative loss."""
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.neg_()

    def _terms_of(self, parameters: Sequence[nn.Parameter]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the parameters where the training started, and their part of the linear term, if there is one."""
        places = [self._places[id(parameter)] for parameter in parameters]
        linear = [self._linear[place] for place in places] if self._linear else []
        return [self._start[place] for place in places], linear

    def _sum_rates(self, optimizer: Optimizer) -> None:
        """Add the learning rates of a step to their sums, if they are asked for."""
        if not self.summed_lr:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.summed_lr[self._places[id(parameter)]] += float(group["lr"])


def make_dense(parameters: Sequence[nn.Parameter]) -> None:
    """Make the gradients that parameters have dense, and without shared memory, so that each may change in place."""
    held = [parameter for parameter in parameters if parameter.grad is not None]
    gradients = [parameter.grad for parameter in held if parameter.grad is not None]
    dense = [gradient if gradient.layout is torch.strided else gradient.to_dense() for gradient in gradients]
    for parameter, gradient in zip(held, unshared(dense), strict=True):
        parameter.grad = gradient


def prepare_optimizers(correction: Correction | None, trainer: pl.Trainer) -> None:
    """Prepare the optimizers for the client that begins; add the correction's weight decay to their own.

    Raises:
        ValueError: If gradients at several points meet more than one optimizer, or more than one batch a step; if they,
            or a change of the loss, meet manual optimisation, or an optimizer that maximises some parameters alone.
    """
    if correction is not None:
        of_the_loss = correction.changes_step or isinstance(correction, Walk)
        if of_the_loss and maximizes(trainer.optimizers) is None:
            raise ValueError(
                "The objective needs to know whether the loss is minimised, so all parameter groups of the optimizer "
                "must have the same `maximize`, got True and False."
            )
        if correction.changes_step and not trainer.lightning_module.automatic_optimization:
            raise ValueError(
                "The objective changes the loss of `training_step`, so it needs `automatic_optimization=True`, as "
                "without it the step takes the gradient itself."
            )
        if isinstance(correction, Walk) and not trainer.lightning_module.automatic_optimization:
            raise ValueError(
                "The objective takes gradients at several points, which needs `automatic_optimization=True`, as "
                "without it the step takes the gradient itself."
            )
        if isinstance(correction, Walk) and (trainer.accumulate_grad_batches != 1 or len(trainer.optimizers) != 1):
            raise ValueError(
                "The objective takes gradients at several points, which needs `accumulate_grad_batches=1` and one "
                f"optimizer, got {trainer.accumulate_grad_batches} and {len(trainer.optimizers)}."
            )
        unscale_before_hooks(trainer.optimizers)
        for group in (group for optimizer in trainer.optimizers for group in optimizer.param_groups):
            if correction.weight_decay:
                group["weight_decay"] += correction.weight_decay


def other_optimizers(trainer: pl.Trainer, momentum: float) -> str:
    """Return in words the module's optimizers that are not SGD with the given momentum; "" if there are none.

    Args:
        trainer: Its optimizers are the module's.
        momentum: The momentum that SGD should have, without Nesterov momentum and dampening.
    """
    found: dict[str, None] = {}
    for optimizer in trainer.optimizers:
        kind = type(optimizer).__name__
        if not isinstance(optimizer, torch.optim.SGD):
            found[kind] = None
            continue
        for group in optimizer.param_groups:
            further = [
                f"{name}={group[name]}" for name in ("nesterov", "dampening") if group["momentum"] and group[name]
            ]
            if further or group["momentum"] != momentum:
                found[", ".join([f"{kind} with momentum={group['momentum']}", *further])] = None
    return " and ".join(found)


def changes_within_rounds(trainer: pl.Trainer) -> bool:
    """Return whether a scheduler changes learning rates between a client's steps."""
    return any(config.interval == "step" for config in trainer.lr_scheduler_configs)


def check_steps_known(trainer: pl.Trainer, callback: str, algorithm: Algorithm) -> None:
    """Raise ``ValueError`` if the aggregation needs other local steps than the clients make.

    Args:
        trainer: Its optimizers and schedulers are the module's.
        callback: The name of the aggregation callback.
        algorithm: The algorithm.
    """
    aggregation = algorithm.aggregation
    momentum = aggregation.counts_on_momentum
    if momentum is not None and (other := other_optimizers(trainer, momentum)):
        raise ValueError(
            f"{callback} divides updates by the reach of SGD's steps with `momentum={momentum}`, so the "
            "module needs torch.optim.SGD with the same momentum, without Nesterov momentum and dampening, got "
            f"{other}."
        )
    if aggregation.needs_one_rate and changes_within_rounds(trainer):
        raise ValueError(
            f"{callback} needs one learning rate within a round, but the module has a scheduler with interval='step'. "
            "Give interval='epoch', which steps once a round; QFedAvg may take `lipschitz` instead."
        )


class StepCounts(TorchDispatchMode):
    """Counts the arithmetic of operations while it is entered.

    Attributes:
        flops: Floating-point operations of products, convolutions and recurrences, forward and backward.
        draws: Whether random numbers were drawn from the global generators.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0
        self._names: set[str] = set()
        self.draws = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        out = function(*args, **(kwargs or {}))
        packet, name = function._overloadpacket, str(function._overloadpacket)
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=out)
        elif name.startswith(_RECURRENT) and isinstance(args[0], torch.Tensor):
            self.flops += _of_recurrence(*args[:3]) * (2 if name.endswith("_backward") else 1)
        self._names.add(name)
        seeded = torch.Tag.nondeterministic_seeded in function.tags and (kwargs or {}).get("generator") is None
        self.draws = self.draws or seeded
        return out

    @property
    def convolves(self) -> bool:
        """Whether there are convolutions or recurrent layers."""
        return self._has(_CONVOLUTIONS)

    @property
    def only_matrices(self) -> bool:
        """Whether there are products of matrices and pointwise functions alone."""
        return not self._has(_OTHERS)

    def _has(self, kinds: Sequence[str]) -> bool:
        return any(kind in name for name in self._names for kind in kinds)

    def __str__(self) -> str:
        kind = ", and convolutions or recurrent layers" if self.convolves else ""
        return f"a client's step has {in_words(self.flops)} operations{kind}"


def _of_recurrence(x: torch.Tensor, weight: Any, weight_hidden: Any) -> int:
    """Return the operations of recurrent layers: two for each row of each step and each value of a weight matrix.

    Args:
        x: The input, shape ``(..., features)``; every layer has as many rows.
        weight: The weight matrix of a layer's input; of some kernels, a list with the parameters of all layers.
        weight_hidden: That of its hidden state; not used where there is a list.
    """
    weights = [weight, weight_hidden] if isinstance(weight, torch.Tensor) else weight
    values: int = sum(each.numel() for each in weights if each.dim() == 2)
    return 2 * (x.numel() // max(1, x.shape[-1])) * values


def in_words(number: float) -> str:
    """Return a number with a unit: ``4.1 million``."""
    for unit, size in (("billion", 1e9), ("million", 1e6), ("thousand", 1e3)):
        if number >= size:
            return f"{number / size:.{max(0, 1 - int(math.log10(number / size)))}f} {unit}"
    return f"{number:.0f}"
