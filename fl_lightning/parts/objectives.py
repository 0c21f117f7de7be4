"""What a client minimises: each local objective is a correction of the client's gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.checks import Finite, Fraction, Positive, ScheduledWeight, check_fields
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation, ForwardPass, LocalClient
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.part import Part

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


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


@dataclass(eq=False)
class Proximal(LocalObjective):
    """``F_k(w) + mu/2 |w - w'|^2`` with w' the received model (FedProx, Li et al. 2020; eq. (4)).

    With redistribution w' is the circulating model that the client received (RADFedp), not the server's.

    Equations are numbered as in ``docs/references.md``.

    Args:
        mu: Weight of the proximal term, at least 0; 0 is the plain objective. A function of the round makes a schedule.

    Raises:
        ValueError: If ``mu`` is negative or not finite.
    """

    sends_updates_alone = True
    mu: ScheduledWeight

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the proximal term, with the mu of the round in which the client received its model."""
        mu = self.at("mu", client.task.round)
        return pull_to_received(mu, client, self.federation.num_parameters) if mu else None


def proximal(mu: float | Callable[[int], float]) -> LocalObjective:
    """Return the proximal objective; the plain one for a weight of 0."""
    return Proximal(mu) if callable(mu) or mu else LocalObjective()


@dataclass(eq=False)
class DynamicRegularizer(LocalObjective):
    """FedDyn's objective (Acar et al. 2021; eq. (5), (6)): ``F_k(w) - <g_k, w> + alpha_k/2 |w - w_t|^2``.

    Personal parameters have no g_k.

    Client k keeps ``lambda_k = -g_k / alpha_k``, at first 0, and adds its drift ``w_k - w_t`` to it after training,
    which is (6). The mean over all clients, ``-h / alpha``, is the server's part of (7) and (8).

    Equations are numbered as in ``docs/references.md``.

    Args:
        alpha: Greater than 0.
        scale_alpha: ``"size"`` divides alpha by ``n_k K / sum n``, so that the fixed point is the optimum of the
            sample-weighted risk (eq. (12)); ``"none"`` is the paper's form. They are the same for equal sizes.
        penalty: ``"gradient"`` adds the whole term to the gradient, and clipping applies to both. ``"weight_decay"``
            leaves the quadratic part, ``alpha_k/2 |w|^2``, to the optimizer, unclipped, as in the authors' code.

    Attributes:
        duals: Every client's lambda_k.

    Raises:
        ValueError: If an argument is out of its range.
    """

    alpha: Positive
    scale_alpha: Literal["size", "none"] = "size"
    penalty: Literal["gradient", "weight_decay"] = "gradient"
    starts_from_server = True

    def setup(self, federation: Federation) -> None:
        """Start from lambda_k = 0."""
        sizes = federation.sizes
        relative = sizes * len(sizes) / sizes.sum() if self.scale_alpha == "size" else np.ones(len(sizes))
        self._alphas = self.alpha / relative
        self.duals: ClientVectors
        self.add_client_vectors("duals", federation.zeros())
        self.units: list[float | str | None]
        self.add_state("units", [self.alpha, self.scale_alpha])

    def load_state_dict(self, state: Any) -> None:
        """Take a checkpoint's state.

        Raises:
            ValueError: If the lambda_k are in units of another alpha.
        """
        if state["units"] != self.units:
            raise ValueError(f"`alpha` and `scale_alpha` must be the checkpoint's {state['units']}, got {self.units}.")
        super().load_state_dict(state)

    def alpha_of(self, client: int) -> float:
        """Return alpha_k."""
        return float(self._alphas[client])

    def correction(self, client: LocalClient) -> Correction:
        """Return ``alpha_k <lambda_k, w> + alpha_k/2 |w - w_t|^2``."""
        alpha, dual = self.alpha_of(client.task.client), self.duals[client.task.client]
        if self.penalty == "gradient":
            return Correction(pull=alpha, linear=alpha * dual)
        return Correction(linear=alpha * (dual - client.received[: len(dual)]), weight_decay=alpha)

    def on_client_end(self, result: ClientResult) -> None:
        """Add the client's drift to lambda_k."""
        self.duals[result.client] = self.duals[result.client] + self.without_personal(result.delta)


@dataclass(eq=False)
class ControlVariates(LocalObjective):
    """SCAFFOLD's corrected gradient ``grad F_k(w) - c_k + c`` (Karimireddy et al. 2020; eq. (13)-(16)).

    c is the mean of all clients' c_k, at first 0, weighted as the aggregation weighs their models: at the optimum of
    ``sum_k p_k F_k`` the p-weighted mean of the gradients is 0. Personal parameters have no control variates.

    Equations are numbered as in ``docs/references.md``.

    Args:
        option: How c_k is updated: 2 takes ``c_k - c + (w_t - w_k) / (sum of the steps' learning rates)``, 1 the
            gradient of F_k at the received model, at the cost of one more pass over the client's data.
        momentum: Momentum of the clients' SGD, in [0, 1). Option 2 divides by the reach of the steps (|a| of FedNova),
            which momentum lengthens; else control variates would grow without bounds.

    Attributes:
        variates: Every client's c_k.

    Raises:
        ValueError: If an argument is out of its range.
    """

    option: Literal[1, 2] = 2
    momentum: Fraction = 0.0
    vectors_sent = 2
    starts_from_server = True

    @property
    def needs_summed_lr(self) -> bool:  # type: ignore[override]
        """Whether the steps' learning rates are needed."""
        return self.option == 2

    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Take the aggregation's weighting."""
        self._weighting = algorithm.aggregation.weighting
        return ()

    def setup(self, federation: Federation) -> None:
        """Start from c_k = c = 0."""
        self._at_start: dict[int, Tensor] = {}
        self.variates: ClientVectors
        self.add_client_vectors("variates", federation.zeros(), federation.weights(self._weighting))

    def correction(self, client: LocalClient) -> Correction:
        """Return ``<c - c_k, w>``; with option 1, take the gradient at the received model first."""
        own = self.variates[client.task.client]
        if self.option == 1:
            self._at_start[client.task.client] = self.without_personal(full_gradient(client, own))
        return Correction(linear=(self.variates.mean - own).to(own.dtype))

    def on_client_end(self, result: ClientResult) -> None:
        """Renew c_k."""
        variates, client = self.variates, result.client
        own = variates[client]
        if self.option == 1:
            variates[client] = self._at_start.pop(client)
            return
        lengths = torch.tensor(self.federation.lengths)
        lr = torch.tensor(result.summed_lr, dtype=variates.mean.dtype).repeat_interleave(lengths).to(own.device)
        if result.num_steps:
            lr = lr * (effective_steps(result.num_steps, self.momentum) / result.num_steps)
        moved = result.start[: len(own)].to(lr.dtype) - result.parameters
        renewed = own - variates.mean + moved / lr.where(lr > 0, 1.0)
        # what was never stepped, or with a learning rate of 0, keeps its control variate
        variates[client] = self.without_personal(renewed.where(lr > 0, own.to(lr.dtype)).to(own.dtype))


class MeasuredLoss(LocalObjective):
    """The plain objective, whose value at the received model is computed before training: one more pass over the data.

    Attributes:
        losses: F_k at the received model, by the slot of the round's clients that this process trains.
    """

    needs_summed_lr = True

    def on_round_start(self, round_index: int) -> None:
        """Forget the losses of the last round."""
        self.losses: dict[int, float] = {}

    def correction(self, client: LocalClient) -> None:
        """Compute the client's loss; add nothing to it."""
        self.losses[client.task.slot] = client.loss()

    def loss_of(self, task: Task) -> float:
        """Return the loss that was computed."""
        return self.losses[task.slot]


def write_to(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Set a client's parameters."""
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)


def full_gradient(client: LocalClient, like: Tensor) -> Tensor:
    """Return the gradient of the client's mean loss at the present weights, shaped and typed as ``like``."""
    total, samples = torch.zeros_like(like), 0
    for gradients, size in client.gradients():
        total.add_(torch.cat([gradient.flatten() for gradient in gradients.values()]), alpha=size)
        samples += size
    return total / max(1, samples)  # 0 if no batch has a loss


def effective_steps(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return |a| of FedNova: how far steps along a constant gradient go, in steps of plain SGD.

    Args:
        steps: Number of steps.
        momentum: Momentum of SGD, in [0, 1), without dampening and without Nesterov's rule.
        pull: Learning rate times the weight of a proximal term, which draws the client back.
    """
    if not momentum and not pull:
        return float(steps)
    way = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * way
        way += velocity
    return way
