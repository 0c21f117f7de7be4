"""Corrections: the three kinds of requests that an objective may make of a client's steps.

:class:`Term`
    A term beside F_k, whose gradient is added to the one of ``training_step``. Clients with terms can train in a stack.
:class:`ChangedLoss`
    Another loss than the one that ``training_step`` returned, or other logits within it.
:class:`Walk`
    Steps that take gradients at several points.

For example, FedProx minimises ``F_k(w) + mu/2 |w - w'|^2``, so its objective returns ``Term(pull=mu)`` before a client
begins. After each backward pass of the client, ``mu (w - w')`` is added to the gradient.

Gradients are those of what is minimised: where the module's optimizer maximises (``maximize=True``), of minus its loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fl_lightning.parts.federation import ForwardPass, LocalClient
from fl_lightning.parts.layout import Layout
from fl_lightning.parts.messages import ClientResult
from fl_lightning.settings import Finite, check_fields


@dataclass(eq=False)
class Term:
    """A term that is added to one client's F_k: ``<linear, w> + pull/2 |w - w_0|^2``, w_0 where its training starts.

    Its gradient is added where Lightning calls ``on_before_optimizer_step``: after the backward pass and before
    clipping, so any ``training_step`` works unchanged. For a term of another form override :meth:`add`, and
    :meth:`value` for optimizers that look at the loss.

    Attributes:
        pull: Weight of the quadratic term.
        linear: Coefficients of the linear term, shape ``(num_parameters,)``.
        weight_decay: Added to the optimizer's own ``weight_decay``: a term ``weight_decay/2 |w|^2``, not clipped.
        frozen: Places of the parameter tensors that the client leaves as they are.
        stacks: Whether an overridden :meth:`add` keeps nothing from step to step, so that clients can train in a stack.

    Raises:
        ValueError: If ``pull`` or ``weight_decay`` is no finite number.
    """

    pull: Finite = 0.0
    linear: Tensor | None = None
    weight_decay: Finite = 0.0
    frozen: frozenset[int] = frozenset()
    stacks: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_quadratic(self) -> bool:
        """Whether its gradient is the one that the attributes say: :meth:`add` is not overridden."""
        return type(self).add is Term.add

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
        total: Tensor | float = 0.0
        with torch.no_grad():
            for now, old in zip(parameters, start, strict=True):
                total = total + self.pull / 2 * (now - old).square().sum()
            if linear:
                for now, slope in zip(parameters, linear, strict=True):
                    total = total + (now * slope).sum()
        return total


def pull_to_received(weight: float, client: LocalClient, layout: Layout) -> Term:
    """Return ``weight/2 |w - w'|^2`` with w' the model that the client received, wherever its training starts.

    Args:
        weight: Weight of the term.
        client: The client.
        layout: Where parameters lie in the client's models.
    """
    if client.start is client.received:
        return Term(pull=weight)
    start, _ = layout.split(client.start)
    received, _ = layout.split(client.received)
    # The pull is to the start; the linear term moves its centre to the received model.
    return Term(pull=weight, linear=weight * (start - received))


@dataclass(eq=False)
class ChangedLoss:
    """Another loss than the one of ``training_step``, which runs as the user wrote it.

    Clients with it train one after the other.

    Attributes:
        loss: Called as ``loss(value, forward)``. Returns the loss to minimise, a tensor with a gradient, given the loss
            that ``training_step`` returned and its :class:`ForwardPass`. ``None`` leaves it as it is.
        shift: Added to what the output layer returns where gradients are taken, shape ``(classes,)``: inside
            ``training_step``, so that the loss, whatever it is, is that of the shifted logits. Classes beyond it do not
            count: their shift is minus infinity. ``None`` adds nothing.
        output_layer: The name of the layer that returns the logits; ``None`` for the one linear layer on which the loss
            depends and after which no other comes.
        term: A term beside the loss.
    """

    loss: Callable[[Tensor, ForwardPass], Tensor] | None = None
    shift: Tensor | None = None
    output_layer: str | None = None
    term: Term = field(default_factory=Term)


class Walk(ABC):
    """A client's steps, each of which takes gradients at several points; see :mod:`.several_points`.

    Clients with it train one after the other.
    """

    #: Whether what it does on a batch is a step, which counters, schedules, logs and hooks see.
    is_step: ClassVar[bool] = True
    #: Why clients train one after the other, as the end of a sentence.
    why_alone: ClassVar[str] = "the local objective takes gradients at several points"

    @abstractmethod
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Take one step.

        Args:
            parameters: All trained parameters of the client's model.
            passes: Computes gradients and lets the optimizer step.
        """

    def value(self, parameters: Sequence[Tensor]) -> Tensor | float:
        """Return what it adds to the loss, for optimizers that look at the loss.

        Args:
            parameters: As for :meth:`walk`.
        """
        return 0.0

    def sent(self, result: ClientResult) -> ClientResult:
        """Return the result as the client sends it."""
        return result


class Passes(Protocol):
    """The passes of one step of a :class:`Walk`: forward and backward, at the parameters' present values."""

    def gradient(self, batch: int = 0) -> None:
        """Compute each ``parameter.grad``; nothing is stepped. Where there is no gradient, the step ends here.

        Args:
            batch: Which of the step's batches to take, from 0.
        """

    def step(self, batch: int = 0, change: Callable[[], None] | None = None, model: int = 0) -> bool:
        """Let the module's optimizer take a step; return False if a gradient scaler has skipped it.

        Args:
            batch: Which of the step's batches to take, from 0.
            change: Called before the optimizer steps, when each ``parameter.grad`` is known, to change gradients and
                parameters.
            model: Which of the walk's models is stepped, from 0: the optimizer has a state, such as its momentum, for
                each.
        """


#: What an objective may ask of one client's steps.
Correction = Term | ChangedLoss | Walk


def write_to(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Set a client's parameters."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
