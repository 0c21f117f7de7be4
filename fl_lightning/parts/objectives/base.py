"""The base of objectives, which answer the question: what does a client minimise?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fl_lightning.parts.federation import Federation, ForwardPass, LocalClient
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.part import Part, Place
from fl_lightning.settings import Finite, check_fields


@dataclass(eq=False)
class Correction:
    """The term that an objective adds to one client's F_k: ``<linear, w> + pull/2 |w - w_0|^2``, w_0 where it starts.

    Its gradient is added where Lightning calls ``on_before_optimizer_step``: after the backward pass and before
    clipping, so any ``training_step`` works unchanged. For a term of another form override :meth:`add`, and
    :meth:`value` for optimizers that look at the loss.

    ``loss(value, forward)`` makes the loss to minimise of the one that ``training_step`` returned and of its
    :class:`ForwardPass`; a subclass may define it as a method. ``shift`` is added to the logits inside
    ``training_step``, so that the loss, whatever it is, is that of the shifted logits. With either, clients train one
    after the other.

    Gradients are those of what is minimised: where the module's optimizer maximises (``maximize=True``), of minus its
    loss.

    Attributes:
        pull: Weight of the quadratic term.
        linear: Coefficients of the linear term, shape ``(num_parameters,)``.
        weight_decay: Added to the optimizer's own ``weight_decay``: a term ``weight_decay/2 |w|^2``, not clipped.
        frozen: Places of the parameter tensors that the client leaves as they are.
        loss: Changes the loss; ``None`` leaves it as it is. The returned tensor needs a gradient.
        shift: Added to what the output layer returns where gradients are taken, shape ``(classes,)``. Classes beyond it
            do not count: their shift is minus infinity.
        output_layer: The name of the layer that returns the logits; ``None`` for the one linear layer on which the loss
            depends and after which no other comes.

    Raises:
        ValueError: If ``pull`` or ``weight_decay`` is no finite number.
    """

    pull: Finite = 0.0
    linear: Tensor | None = None
    weight_decay: Finite = 0.0
    frozen: frozenset[int] = frozenset()
    loss: Callable[[Tensor, ForwardPass], Tensor] | None = None
    shift: Tensor | None = None
    output_layer: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.loss is None:
            del self.loss  # a subclass's method would be hidden

    @property
    def changes_step(self) -> bool:
        """Whether it changes what ``training_step`` computes or returns."""
        return self.loss is not None or self.shift is not None

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Add the gradient to each ``parameter.grad``, in place.

        Args:
            parameters: Parameters that the optimizer is about to step and that have a gradient.
            start: The same parameters where the client's training started.
            linear: The same parameters' part of ``linear``; empty if there is none.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            if self.pull:
                drift = torch._foreach_sub([parameter.detach() for parameter in parameters], list(start))
                torch._foreach_add_(gradients, drift, alpha=self.pull)
            if linear:
                torch._foreach_add_(gradients, list(linear))

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


def pull_to_received(weight: float, client: LocalClient, num_parameters: int) -> Correction:
    """Return ``weight/2 |w - w'|^2`` with w' the model that the client received, wherever its training starts."""
    if client.start is client.received:
        return Correction(pull=weight)
    apart = client.start[:num_parameters] - client.received[:num_parameters]
    return Correction(pull=weight, linear=weight * apart)


class LocalObjective(Part):
    """The plain objective F_k, and the base of all others."""

    runs_at: ClassVar[Place | None] = "client"
    #: Vectors of the model's length that travel each way for a client: SCAFFOLD sends its control variate too.
    vectors_sent: int = 1
    #: Whether :attr:`ClientResult.summed_lr` is needed.
    needs_summed_lr: bool = False
    #: Whether all clients of a round must start from the server's model.
    starts_from_server: bool = False
    sends_updates_alone = True
    #: Batches that a client takes for one optimizer step.
    batches_per_step: int = 1

    @property
    def numbers_down(self) -> int:
        """Numbers that the server sends to a client besides vectors of the model's length."""
        return 0

    def numbers_up(self, result: ClientResult) -> int:
        """Return how many numbers the client sends besides those and a loss; called after :meth:`on_client_end`."""
        return 0

    @property
    def sends_numbers(self) -> bool:
        """Whether clients send such numbers."""
        return type(self).numbers_up is not LocalObjective.numbers_up

    @property
    def sends_loss(self) -> bool:
        """Whether clients send a loss; see :meth:`loss_of`."""
        return type(self).loss_of is not LocalObjective.loss_of

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the term that is added to F_k; ``None`` for nothing. Called before the client's first batch."""
        return None

    def on_client_end(self, result: ClientResult) -> ClientResult | None:
        """Called when a client is done, with its result as it leaves the client: before any exchange.

        It may return another result, which the client then sends. A client that hands back NaN or infinite values is
        left out before, without this call.
        """

    def on_arrival(self, client: int, slot: int, *, is_used: bool) -> None:
        """Called when a client's result has reached the server, after :meth:`on_client_end`.

        In rounds that is at once, on the client's process. Asynchronous clients may be trained before their results are
        due; it is called at the end of the round in which they are, on all processes.

        Args:
            client: The client.
            slot: The slot of its task.
            is_used: Whether the server merges the result.
        """

    def untrained(self, federation: Federation) -> Collection[str]:
        """Return the names of the parameters that no client trains, so that they need not travel."""
        return ()

    def loss_of(self, task: Task) -> float | None:
        """Return the loss that the client sends with its result; ``None`` for none.

        Called when it is done, before :meth:`on_client_end`.
        """
        return None

    def without_personal(self, values: Tensor) -> Tensor:
        """Return values with 0 at the places of personal parameters, shape ``(num_parameters,)``."""
        places = self.federation.traveling_places
        return values if places is None else torch.zeros_like(values).index_copy(0, places, values[places])


def write_to(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Set a client's parameters."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
