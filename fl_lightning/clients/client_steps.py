"""The changes that a client's local objective makes to its steps.

Lightning's loop over a client's batches asks one object for all that an objective changes:
:attr:`~fl_lightning._lightning.loops.client_loop.ClientLoop.client_steps`. Which one that is follows from what the
objective asks for (:mod:`fl_lightning.parts.objectives.corrections`):

=============== ======================== ====================================================================
nothing         :class:`ClientSteps`     looks at the steps: counts them, and sums their learning rates
``Term``        :class:`TermSteps`       adds the term's gradient to the parameters' gradients
``ChangedLoss`` :class:`LossSteps`       also runs ``training_step`` and returns another loss
``Walk``        :class:`WalkSteps`       takes gradients at several points, and lets the optimizer step
=============== ======================== ====================================================================

For example, a step of FedProx, which adds ``mu/2 |w - w'|^2``::

    run_step          training_step returns the loss, and backward makes the gradient g
    correct           the gradient becomes g + mu (w - w')
                      Lightning clips it, and the optimizer steps

Gradients that a term or a walk sees are those of what is minimised. Where an optimizer maximises, they are turned
before, and turned back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from fl_lightning._lightning.loops.local_optimizers import is_step_skipped, maximized, maximizes, unscale_before_hooks
from fl_lightning._lightning.loops.passes import InfiniteGradient, StepPasses
from fl_lightning._lightning.loops.steps import TrainingStep
from fl_lightning.clients.forward_pass import RecordedPass
from fl_lightning.clients.state_vector import StateVector, unshared
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import Task, same_values
from fl_lightning.parts.objectives.corrections import Term, Walk


class ClientSteps:
    """The steps of one client whose objective changes nothing.

    Args:
        start: The model from which the client's training starts, shape ``(size,)``.
        vector: The federated state of the module, which holds that model.
        algorithm: The algorithm, which may need the sum of the learning rates.
        trainer: The trainer, with the client's fresh optimizers.

    Attributes:
        takes_steps: Whether what the client does on a batch is a step of its model.
        summed_lr: Sum of the learning rates so far, for each parameter tensor; empty unless they are needed.
        skipped: Steps that a gradient scaler has skipped.
    """

    #: Whether a step that Lightning does not see would be wrong, since it would not be corrected.
    _corrects: ClassVar[bool] = False

    def __init__(self, start: Tensor, vector: StateVector, algorithm: Algorithm, trainer: pl.Trainer) -> None:
        self._vector = vector
        self._trainer = trainer
        self.takes_steps = True
        self.summed_lr: list[float] = []
        if algorithm.needs_summed_lr:
            self.summed_lr = [0.0 for _ in vector.parameters]
        self.skipped = 0
        self._may_skip = getattr(trainer.precision_plugin, "scaler", None) is not None
        self._places = {id(parameter): place for place, parameter in enumerate(vector.parameters)}
        self._has_stepped = False
        # Lightning sees all steps of its automatic optimisation, unless they are the module's own.
        sees_all = trainer.lightning_module.automatic_optimization and trainer.optimizers
        counts = algorithm.aggregation.counts_on_momentum is not None and not sees_all
        #: The model before the first step, where a step that Lightning does not see would be wrong.
        self._before: Tensor | None = None
        if counts or self._corrects:
            self._before = start if vector.holds(start) else vector.read()

    def run_step(self, step: TrainingStep, batch: Any, batch_idx: int) -> Any:
        """Run ``training_step``, and return what it returned, with the loss to minimise."""
        return step(batch, batch_idx)

    def correct(self, optimizer: Optimizer) -> None:
        """Correct the gradients that the optimizer is about to use."""
        # Without gradients, as after a `training_step` that returns no loss, the optimizer changes nothing.
        self._has_stepped = self._has_stepped or _has_gradients(optimizer)
        if self._may_skip and is_step_skipped(self._trainer, optimizer):
            self.skipped += 1
            return
        self._add_gradient(optimizer)
        if self.summed_lr:
            self._sum_rates(optimizer)

    def value(self) -> Tensor | float:
        """Return the value of the term that the objective adds, at the present weights."""
        return 0.0

    @property
    def walk(self) -> Callable[[StepPasses], None] | None:
        """Takes a step of several passes; ``None`` where a step takes one."""
        return None

    def end(self) -> None:
        """Take back what was changed in the optimizers' options, before they are kept."""

    def check_seen(self, task: Task, model: Tensor) -> None:
        """Raise ``ValueError`` if the client's weights have changed without a step that was corrected or counted.

        Args:
            task: The client's task.
            model: The model after training, shape ``(size,)``.
        """
        if self._before is None or self._has_stepped:
            return
        before, _ = self._vector.layout.split(self._before)
        after, _ = self._vector.layout.split(model)
        if not same_values(before, after):
            raise ValueError(
                f"{type(self._trainer.lightning_module).__name__} has changed the weights of client {task.client} "
                "without a step of an optimizer that Lightning knows of, which the algorithm's objective corrects, or "
                "its aggregation counts. Return the optimizer from `configure_optimizers` and the loss from "
                "`training_step`. With manual optimisation, take `optimizer = self.optimizers()` there, and call "
                "`self.manual_backward(loss)` and `optimizer.step()`. Or train by FedAvg."
            )

    def _add_gradient(self, optimizer: Optimizer) -> None:
        """Add to the gradients what the objective adds."""

    def _sum_rates(self, optimizer: Optimizer) -> None:
        """Add the learning rates of a step to their sums."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.summed_lr[self._places[id(parameter)]] += float(group["lr"])


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


class TermSteps(ClientSteps):
    """The steps of one client whose objective adds a term.

    Args:
        term: The term.
        start: As for :class:`ClientSteps`.
        vector: As for :class:`ClientSteps`.
        algorithm: As for :class:`ClientSteps`.
        trainer: As for :class:`ClientSteps`; its optimizers take the term's weight decay.
    """

    _corrects = True

    def __init__(
        self, term: Term, start: Tensor, vector: StateVector, algorithm: Algorithm, trainer: pl.Trainer
    ) -> None:
        super().__init__(start, vector, algorithm, trainer)
        self._term = term
        self._start = vector.parameter_views(start)
        self._linear = [] if term.linear is None else vector.parameter_views(term.linear)
        self._gradients = MinimizedGradients(vector.parameters, trainer)
        unscale_before_hooks(trainer.optimizers)
        #: Groups to which the term's weight decay was added, and what they had before.
        self._decays: list[tuple[dict[str, Any], Any]] = []
        if term.weight_decay:
            for optimizer in trainer.optimizers:
                for group in optimizer.param_groups:
                    self._decays.append((group, group["weight_decay"]))
                    group["weight_decay"] += term.weight_decay

    @override
    def end(self) -> None:
        for group, weight_decay in self._decays:
            group["weight_decay"] = weight_decay

    @override
    def value(self) -> Tensor | float:
        # Where an optimizer maximises some parameters, the loss that it sees is minus what is minimised.
        descending, ascending = self._gradients.by_direction()
        total: Tensor | float = 0.0
        if descending:
            total = total + self._value_of(descending)
        if ascending:
            total = total - self._value_of(ascending)
        return total

    def _value_of(self, parameters: Sequence[nn.Parameter]) -> Tensor | float:
        return self._term.value(parameters, self._start_of(parameters), self._linear_of(parameters))

    @override
    def _add_gradient(self, optimizer: Optimizer) -> None:
        stepped: list[nn.Parameter] = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if self._places.get(id(parameter)) in self._term.frozen:
                    # An optimizer leaves a parameter without a gradient as it is.
                    parameter.grad = None
                if parameter.grad is not None:
                    stepped.append(parameter)
        # There is none where `training_step` returned None for the batch, or where all are frozen.
        if stepped:
            start = self._start_of(stepped)
            linear = self._linear_of(stepped)
            self._gradients.change(stepped, lambda: self._term.add(stepped, start, linear))

    def _start_of(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Return parameters where the training started."""
        return [self._start[self._places[id(parameter)]] for parameter in parameters]

    def _linear_of(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Return parameters' part of the linear term; nothing if there is none."""
        if not self._linear:
            return []
        return [self._linear[self._places[id(parameter)]] for parameter in parameters]


class LossSteps(TermSteps):
    """The steps of one client whose objective changes the loss.

    Args:
        recorded: Runs ``training_step``, and makes another loss of its loss.
        term: The term that the objective also adds.
        start: As for :class:`ClientSteps`.
        vector: As for :class:`ClientSteps`.
        algorithm: As for :class:`ClientSteps`.
        trainer: As for :class:`ClientSteps`.

    Raises:
        ValueError: If optimisation is manual, or an optimizer maximises some parameters alone.
    """

    def __init__(
        self,
        recorded: RecordedPass,
        term: Term,
        start: Tensor,
        vector: StateVector,
        algorithm: Algorithm,
        trainer: pl.Trainer,
    ) -> None:
        _check_one_loss(trainer, "changes the loss of `training_step`, so it needs")
        super().__init__(term, start, vector, algorithm, trainer)
        self._recorded = recorded

    @override
    def run_step(self, step: TrainingStep, batch: Any, batch_idx: int) -> Any:
        return self._recorded.run(step, batch, batch_idx)


class WalkSteps(ClientSteps):
    """The steps of one client whose objective takes gradients at several points.

    It is what the walk gets as :class:`~fl_lightning.parts.objectives.corrections.Passes`.

    Args:
        walk: The walk.
        start: As for :class:`ClientSteps`.
        vector: As for :class:`ClientSteps`.
        algorithm: As for :class:`ClientSteps`.
        trainer: As for :class:`ClientSteps`.

    Raises:
        ValueError: If optimisation is manual, if there are several optimizers, or several batches a step, or if the
            optimizer maximises some parameters alone.
    """

    _corrects = True

    def __init__(
        self, walk: Walk, start: Tensor, vector: StateVector, algorithm: Algorithm, trainer: pl.Trainer
    ) -> None:
        _check_one_loss(trainer, "takes gradients at several points, which needs")
        if trainer.accumulate_grad_batches != 1 or len(trainer.optimizers) != 1:
            raise ValueError(
                "The objective takes gradients at several points, which needs `accumulate_grad_batches=1` and one "
                f"optimizer, got {trainer.accumulate_grad_batches} and {len(trainer.optimizers)}."
            )
        super().__init__(start, vector, algorithm, trainer)
        self._walk = walk
        self.takes_steps = walk.is_step
        self._gradients = MinimizedGradients(vector.parameters, trainer)
        self._is_maximized = bool(maximizes(trainer.optimizers))
        unscale_before_hooks(trainer.optimizers)
        #: The passes of the step under way.
        self._passes: StepPasses | None = None
        #: What the walk changes before the optimizer's step under way.
        self._change: Callable[[], None] | None = None
        #: Whether each of the optimizer's steps was taken, and not skipped by a gradient scaler.
        self._taken: list[bool] = []
        #: Which of the walk's models the optimizer's state belongs to, and the states of the others.
        self._model = 0
        self._states: dict[int, dict[Any, Any]] = {}

    @property
    @override
    def walk(self) -> Callable[[StepPasses], None]:
        return self._take_step

    def _take_step(self, passes: StepPasses) -> None:
        """Let the walk take a step."""
        self._has_stepped = True
        self._passes = passes
        self._taken = []
        try:
            with torch.no_grad():
                self._walk.walk(self._vector.parameters, self)
        except InfiniteGradient:
            self._taken.append(False)
            raise
        finally:
            self._passes = None
            if any(self._taken):
                if self.summed_lr:
                    self._sum_rates(self._trainer.optimizers[0])
            elif self._taken:
                self.skipped += 1

    def gradient(self, batch: int = 0) -> None:
        """Compute gradients of what is minimised; see :meth:`Passes.gradient`."""
        assert self._passes is not None
        self._passes.gradient(batch)
        make_dense(self._vector.parameters)
        self._gradients.turn(self._vector.parameters)

    def step(self, batch: int = 0, change: Callable[[], None] | None = None, model: int = 0) -> bool:
        """Let the optimizer take a step; see :meth:`Passes.step`."""
        assert self._passes is not None
        self._change = change
        self._take_state_of(model)
        before = len(self._taken)
        self._passes.step(batch)
        return any(self._taken[before:])

    @override
    def correct(self, optimizer: Optimizer) -> None:
        is_skipped = is_step_skipped(self._trainer, optimizer)
        self._taken.append(not is_skipped)
        if self._change is not None and not is_skipped:
            self._gradients.change(self._vector.parameters, self._change)

    @override
    def value(self) -> Tensor | float:
        value = self._walk.value(self._vector.parameters)
        return -value if self._is_maximized else value

    def _take_state_of(self, model: int) -> None:
        """Let the optimizer have its state for one of the walk's models."""
        if model == self._model:
            return
        state = self._trainer.optimizers[0].state
        self._states[self._model] = dict(state)
        state.clear()
        state.update(self._states.pop(model, {}))
        self._model = model


class MinimizedGradients:
    """Parameters' gradients as those of what is minimised: an optimizer that maximises has their negatives.

    Args:
        parameters: The trained parameters.
        trainer: Its optimizers say which parameters are maximised.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], trainer: pl.Trainer) -> None:
        self._parameters = parameters
        self._ascending = maximized(trainer.optimizers)

    def by_direction(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Return the parameters whose optimizers minimise, and those whose optimizers maximise."""
        descending = [parameter for parameter in self._parameters if id(parameter) not in self._ascending]
        ascending = [parameter for parameter in self._parameters if id(parameter) in self._ascending]
        return descending, ascending

    def change(self, parameters: Sequence[nn.Parameter], change: Callable[[], None]) -> None:
        """Let a change see and make gradients of what is minimised.

        Args:
            parameters: The parameters whose gradients it may change.
            change: Changes them in place.
        """
        make_dense(parameters)
        self.turn(parameters)
        change()
        self.turn(parameters)

    def turn(self, parameters: Sequence[nn.Parameter]) -> None:
        """Negate the gradients of those parameters whose optimizers maximise."""
        for parameter in parameters:
            if id(parameter) in self._ascending and parameter.grad is not None:
                parameter.grad.neg_()


def make_dense(parameters: Sequence[nn.Parameter]) -> None:
    """Make the gradients that parameters have dense, and without shared memory, so that each may change in place."""
    held: list[nn.Parameter] = []
    dense: list[Tensor | None] = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            held.append(parameter)
            dense.append(gradient if gradient.layout is torch.strided else gradient.to_dense())
    for parameter, gradient in zip(held, unshared(dense), strict=True):
        parameter.grad = gradient


def _check_one_loss(trainer: pl.Trainer, why: str) -> None:
    """Raise ``ValueError`` if Lightning does not see the loss, or some parameters maximise it and others minimise it.

    Args:
        trainer: The trainer.
        why: What the objective does that needs it; the message says "The objective ...".
    """
    if maximizes(trainer.optimizers) is None:
        raise ValueError(
            "The objective needs to know whether the loss is minimised, so all parameter groups of the optimizer "
            "must have the same `maximize`, got True and False."
        )
    if not trainer.lightning_module.automatic_optimization:
        raise ValueError(
            f"The objective {why} `automatic_optimization=True`, as without it the step takes the gradient itself."
        )
