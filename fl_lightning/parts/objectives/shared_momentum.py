"""Mime's local steps, which take the server's momentum as it is, and correct gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.control_variates import full_gradient
from fl_lightning.parts.objectives.corrections import Passes, Walk
from fl_lightning.parts.objectives.several_points import Excursion, gradients_of
from fl_lightning.settings import Fraction
from fl_lightning.vectors import sum_dtype


@dataclass(eq=False)
class SharedMomentum(LocalObjective):
    """Steps along ``(1 - beta) g + beta s``, with s the server's momentum (Mime; eq. (86)-(88)).

    Karimireddy et al. 2020, Mime. s stays as it is in a round. In Mime ``g = grad F_b(y) - grad F_b(x) + c`` on a batch
    b, with x the model that the client received and c the mean of the full gradients at x of the round's clients; in
    MimeLite ``g = grad F_b(y)``. After the round s becomes ``(1 - beta) c + beta s``.

    Use it with :class:`GradientFirst`. Equations are numbered as in ``docs/references.md``.

    Args:
        beta: Share of s, in [0, 1).
        is_corrected: Whether gradients are corrected, as in Mime; else this is MimeLite.

    Attributes:
        momentum: s, shape ``(num_parameters,)``.

    Raises:
        ValueError: If ``beta`` is out of its range; when the fit begins, if parameters are personal.
    """

    beta: Fraction = 0.9
    is_corrected: bool = True
    #: The server sends s too, and each client its gradient.
    vectors_sent = 2
    looks_at_samples = True
    starts_from_server = True

    @property
    @override
    def numbers_down(self) -> int:
        """Numbers of c."""
        return self.federation.num_parameters if self.is_corrected else 0

    @override
    def setup(self, federation: Federation) -> None:
        """Start from s = 0."""
        if federation.traveling is not None:
            raise ValueError(
                f"{self!r} needs all parameters to travel, since its momentum is of the whole model, but some are "
                "personal. Leave the personal parameters out, or take another algorithm."
            )
        self.momentum: Tensor
        self.add_state("momentum", federation.zeros().to(sum_dtype(federation.model)))

    @override
    def on_round_start(self, round_index: int) -> None:
        """Forget the gradients of an earlier round."""
        self._sum = torch.zeros_like(self.momentum)
        self._number = 0
        #: c, shape ``(num_parameters,)``, once all clients have sent their gradients; ``None`` if none has.
        self.mean: Tensor | None = None

    def add_gradient(self, client: LocalClient) -> None:
        """Add a client's full gradient at the model that it received; one that is not finite is left out."""
        gradient = full_gradient(client, self.federation.zeros())
        if gradient.isfinite().all():
            self._sum += gradient
            self._number += 1

    def take_mean(self) -> None:
        """Take the mean of the gradients of all processes' clients."""
        number = self._sum.new_tensor([self._number])
        total = self.federation.sum_over_ranks(torch.cat([self._sum, number]))
        if total[-1]:
            self.mean = total[:-1] / total[-1]

    def move(self) -> None:
        """Let s take the mean gradient in."""
        if self.mean is not None:
            self.momentum = torch.lerp(self.mean, self.momentum, self.beta)

    @override
    def correction(self, client: LocalClient) -> Walk:
        """Return the client's steps."""
        layout = self.federation.layout
        momentum = layout.views(self.momentum)
        if not self.is_corrected or self.mean is None:
            return _MomentumSteps(self.beta, momentum)
        received, _ = layout.split(client.received)
        return _CorrectedSteps(self.beta, momentum, layout.views(received), layout.views(self.mean))


class _MomentumSteps(Walk):
    """MimeLite's steps.

    Args:
        beta: Share of s.
        momentum: s, shaped as the parameters.
    """

    def __init__(self, beta: float, momentum: Sequence[Tensor]) -> None:
        self.beta = beta
        self.momentum = momentum

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Step along the gradient and s."""
        passes.step(change=lambda: self._mix(parameters, gradients_of(parameters)))

    def _mix(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Set each gradient to its part and that of s."""
        for parameter, gradient, momentum in zip(parameters, gradients, self.momentum, strict=True):
            parameter.grad = torch.lerp(gradient, momentum.to(gradient), self.beta)


class _CorrectedSteps(_MomentumSteps):
    """Mime's steps.

    Args:
        beta: Share of s.
        momentum: s, shaped as the parameters.
        received: x, shaped as the parameters.
        mean: c, shaped as the parameters.
    """

    def __init__(
        self, beta: float, momentum: Sequence[Tensor], received: Sequence[Tensor], mean: Sequence[Tensor]
    ) -> None:
        super().__init__(beta, momentum)
        self.received = received
        self.mean = mean

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Take the gradients at y and at x, and step from y."""
        with Excursion(parameters) as way:
            passes.gradient()
            here = gradients_of(parameters)
            way.go(self.received)

            def correct() -> None:
                there = gradients_of(parameters)
                way.come_back()
                corrected = [
                    at_y - at_x + mean.to(at_y) for at_y, at_x, mean in zip(here, there, self.mean, strict=True)
                ]
                self._mix(parameters, corrected)

            passes.step(change=correct)
