"""Objectives of clients that hold a part of the model: all other values stay 0."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.exchanges.partial import PartialModel
from fl_lightning.parts.exchanges.sub_models import SubModels
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Correction, Passes, Term, Walk
from fl_lightning.parts.objectives.several_points import Excursion

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class HeldGradients(LocalObjective):
    """The plain objective, in whose gradients the values are 0 that the client does not hold (eq. (92)).

    The loss may depend on them, as on the weights of a sigmoid of 0. Where values and gradients are 0, SGD, with
    momentum and weight decay, Adam and their relatives leave them 0.

    Equations are numbered as in ``docs/references.md``.

    Args:
        partial: Says what clients hold.
    """

    sends_updates_alone = True
    partial: PartialModel

    @property
    @override
    def uses_gradients_alone(self) -> bool:
        return type(self).correction is HeldGradients.correction

    @override
    def correction(self, client: LocalClient) -> Correction | None:
        """Return what sets gradients to 0; ``None`` for a client that holds all."""
        held = self.partial.held_parameters(client.task)
        return None if held is None else _Held(linear=held.to(client.received.dtype))


class _Held(Term):
    """Sets gradients to 0 where ``linear`` is 0; where it is 1 they stay."""

    stacks: ClassVar[bool] = True

    @override
    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Set the gradients of what is not held to 0, in place."""
        for parameter, held in zip(parameters, linear, strict=True):
            if parameter.grad is not None:
                parameter.grad.masked_fill_(held == 0, 0)

    @override
    def value(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> float:
        """Return 0: nothing is added to the loss."""
        return 0.0


@dataclass(eq=False)
class OrderedDropout(LocalObjective):
    """Each step trains a width that is drawn, up to the client's own (FjORD, Horvath et al. 2021; eq. (93)).

    The gradient is that of the narrow model, with 0 elsewhere; the optimizer steps all that the client holds.

    Equations are numbered as in ``docs/references.md``.

    Args:
        partial: Says what clients hold, and which widths there are.

    Raises:
        ValueError: When an algorithm is made, if the exchange draws a client's widths; when the fit begins, if the
            module has buffers that would move with each width.
    """

    sends_updates_alone = True
    partial: SubModels

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether there is no largest width of a client."""
        if self.partial.is_drawn:
            yield f"{self!r} draws widths up to a client's own, so the exchange must have `drawn=False`, got True."

    @override
    def setup(self, federation: Federation) -> None:
        """Look for buffers that change with each step."""
        moving = [layer.name for layer in federation.layout.layers if "running_mean" in layer.tensors]
        moving += self.partial.hidden or {}
        if moving:
            raise ValueError(
                f"{self!r} needs a module without buffers of hidden units, since a step that is narrower would move "
                f"those of other units, too: {', '.join(moving)}. Use GroupNorm, or `track_running_stats=False`."
            )

    @property
    @override
    def uses_gradients_alone(self) -> bool:
        return type(self).correction is OrderedDropout.correction

    @override
    def correction(self, client: LocalClient) -> Walk:
        """Return the client's steps."""
        largest = self.partial.level(client.task)
        # Equal widths stand for one that is drawn more often.
        widths = [width for width in self.partial.widths if width <= largest]
        layout = self.federation.layout
        masks: list[Sequence[Tensor] | None] = []
        for width in widths:
            mask = self.partial.masks[width]
            masks.append(None if mask is None else layout.views(layout.split(mask)[0]))
        return _NarrowSteps(masks, self.generator(client.task))


class _NarrowSteps(Walk):
    """Steps at models of drawn widths.

    Args:
        masks: What a model of each width holds, shaped as the parameters; ``None`` for all.
        generator: Draws the widths, on the CPU.
    """

    why_alone: ClassVar[str] = "each step of a client has a width of its own"

    def __init__(self, masks: Sequence[Sequence[Tensor] | None], generator: torch.Generator) -> None:
        self._masks = masks
        self._generator = generator

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Take the gradient at the narrow model, and step the client's."""
        masks = self._masks[int(torch.randint(len(self._masks), (), generator=self._generator))]
        if masks is None:
            passes.step()
            return
        with Excursion(parameters) as way:
            way.go([value.where(mask, 0) for value, mask in zip(way.origin, masks, strict=True)])

            def come_back() -> None:
                way.come_back()
                for parameter, mask in zip(parameters, masks, strict=True):
                    if parameter.grad is not None:
                        parameter.grad.masked_fill_(~mask, 0)

            passes.step(change=come_back)
