"""Terms that a local objective adds to a client's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_lightning.arguments import check_finite, got
from fl_lightning.signatures import ShowsSignature


@dataclass(frozen=True)
class Correction(ShowsSignature):
    """The term that an objective adds to one client's F_k: ``<linear, w> + pull/2 |w - w'|^2``, w' the received model.

    Its gradient is added where Lightning calls ``on_before_optimizer_step``: after the backward pass and before
    clipping, so any ``training_step`` works unchanged. For a term of another form override :meth:`add`, and
    :meth:`value` beside optimizers that look at the loss.

    Attributes:
        pull: Weight of the quadratic term.
        linear: Coefficients of the linear term, shape ``(num_parameters,)``.
        weight_decay: Added to the optimizer's own ``weight_decay``: a term ``weight_decay/2 |w|^2``, not clipped.

    Raises:
        TypeError: If ``linear`` is no floating-point tensor.
        ValueError: If ``pull`` or ``weight_decay`` is no finite number.
    """

    pull: float = 0.0
    linear: Tensor | None = None
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_finite("pull", self.pull, "It is the weight of the quadratic term.")
        check_finite("weight_decay", self.weight_decay)
        if self.linear is not None and not (isinstance(self.linear, Tensor) and self.linear.is_floating_point()):
            raise TypeError(
                f"`linear` must be a floating-point tensor with a coefficient for each parameter, got "
                f"{got(self.linear)}. Make one with `torch.as_tensor(...)`."
            )

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Add the gradient to each ``parameter.grad``, in place.

        Args:
            parameters: Parameters that the optimizer is about to step and that have a gradient.
            start: The same parameters as the client received them.
            linear: The same parameters' part of ``linear``; empty if there is none.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            if self.pull:
                drift = torch._foreach_sub([parameter.detach() for parameter in parameters], list(start))
                torch._foreach_add_(gradients, drift, alpha=self.pull)
            if linear:
                torch._foreach_add_(gradients, list(linear))

    def apply(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Call :meth:`add`.

        Raises:
            TypeError: If it returns the term instead of adding its gradient.
        """
        returned: object = self.add(parameters, start, linear)  # type: ignore[func-returns-value]
        if returned is not None:
            raise TypeError(
                f"`{type(self).__name__}.add` returned {got(returned)}, which has no effect. It must add the gradient "
                "of its term to each `parameter.grad` in place, such as `parameter.grad.add_(gradient)`, and return "
                "nothing."
            )

    def value(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> Tensor | float:
        """Return the term's value, for optimizers that look at the loss, such as those that search along a line.

        Args:
            parameters: As for :meth:`add`.
            start: As for :meth:`add`.
            linear: As for :meth:`add`.
        """
        with torch.no_grad():
            pulls = [self.pull / 2 * (now - old).square().sum() for now, old in zip(parameters, start, strict=True)]
            return sum(pulls + [(now * slope).sum() for now, slope in zip(parameters, linear, strict=False)])
