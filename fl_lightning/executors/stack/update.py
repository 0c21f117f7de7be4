"""The optimizer step of a stack: local objectives, clipping and the user's optimizer, in Lightning's order.

Where that is plain SGD alone, the flat list of a step takes it by ``in_place``; else it returns gradients for ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor

from fl_lightning._lightning.loops.local_optimizers import maximized
from fl_lightning._lightning.stacks.stacked_loop import AFTER_STEP
from fl_lightning.clients.state_vector import unshared
from fl_lightning.clients.training import ClientAtWork, LocalTraining
from fl_lightning.executors.stack.corrections import StackedCorrections
from fl_lightning.executors.stack.inplace_sgd import InPlaceSgd
from fl_lightning.executors.stack.models import ModelStack
from fl_lightning.executors.stack.optimizer import StackedOptimizer, clip


class StackUpdate:
    """Steps the models of a stack by their gradients.

    Args:
        training: Trains clients.
        members: The clients, in the order of rows.
        models: Their models.
        hooks: The module's hooks that it runs.

    Attributes:
        in_place: Steps single parameters as soon as their gradients are known; ``None`` where steps are not plain SGD.
    """

    def __init__(
        self, training: LocalTraining, members: Sequence[ClientAtWork], models: ModelStack, hooks: Collection[str]
    ) -> None:
        trainer = training.trainer
        vector = training.vector
        self._models = models
        ascending = maximized(trainer.optimizers)
        ascends = [id(parameter) in ascending for parameter in vector.parameters]
        starts = [member.start for member in members]
        self._terms = StackedCorrections([member.correction for member in members], starts, vector, ascends)
        self._optimizer = StackedOptimizer(trainer.optimizers[0], vector.parameters)
        self._clip_value = float(trainer.gradient_clip_val or 0.0)
        self._clip_algorithm = trainer.gradient_clip_algorithm
        #: Each client's weight decay, where the optimizer cannot take it.
        self._decays: Tensor | None = None
        if any(self._terms.weight_decays):
            self._decays = self._optimizer.add_weight_decay(self._terms.weight_decays)
        is_gradient_enough = int(trainer.accumulate_grad_batches) == 1 and not self._clip_value and self._decays is None
        self.in_place: InPlaceSgd | None = None
        self._hooks = hooks
        if is_gradient_enough and not hooks and self._terms.quadratic and self._optimizer.is_plain:
            self.in_place = InPlaceSgd(self._optimizer, self._terms)

    def attach(self) -> None:
        """Step the models that are still at work from now on."""
        self._optimizer.attach(self._models.parameters)
        self._prepare()

    def refresh(self) -> None:
        """Take the settings that the user's optimizer has now."""
        self._optimizer.refresh()
        self._prepare()

    def _prepare(self) -> None:
        if self.in_place is not None:
            self.in_place.prepare([parameter.detach() for parameter in self._models.parameters])

    def learning_rates(self) -> list[float]:
        """Return the present learning rate of each parameter tensor."""
        return self._optimizer.learning_rates()

    def settings(self) -> list[dict[str, Any]]:
        """Return the present settings of each of the user's parameter groups."""
        return self._optimizer.settings()

    def step(self, gradients: list[Tensor | None], run_hook: Callable[[str, list[Tensor | None]], None]) -> None:
        """Step the models at work.

        Args:
            gradients: Their gradients, shape ``(K, *shape)`` each, which are changed; ``None`` where there is none.
            run_hook: Runs a hook of the module on the gradients, or on the models.
        """
        parameters = self._models.parameters
        if self._terms or self._clip_value or self._hooks or not self._optimizer.is_plain:
            # A linear layer's gradient is transposed in memory: to be read more than once it is turned first.
            gradients[:] = [None if gradient is None else gradient.contiguous() for gradient in unshared(gradients)]
        if "on_after_backward" in self._hooks:
            run_hook("on_after_backward", gradients)
        if self._terms:
            self._terms.correct(parameters, gradients)
        if "on_before_optimizer_step" in self._hooks:
            run_hook("on_before_optimizer_step", gradients)
        if self._clip_value > 0:
            clipped = [gradient for gradient in gradients if gradient is not None]
            clip(clipped, self._clip_value, self._clip_algorithm)
        if self._decays is not None:
            self._terms.decay(parameters, gradients, self._decays)
        self._optimizer.step(parameters, gradients)
        if AFTER_STEP in self._hooks:
            run_hook(AFTER_STEP, gradients)
