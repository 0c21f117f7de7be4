"""Objectives whose clients take gradients at several points: at a neighbour of w, at a mixture, after a step.

One step of each, which counters, schedules and logs see as one:

* FedSAM: one descent of w, on one batch, which is passed through twice.
* Per-FedAvg: one step of w along the gradient of the loss after fine-tuning, on two batches; on three with the second
  order.
* pFedMe: one step of w, on one batch, on which theta takes ``inner_steps`` steps.
* APFL: one step of v and one of w, both on one batch.

The loss of a step is the one of its first pass; the other passes are not logged, and update no metric objects.

A walk changes the client's parameters in place and asks for passes. FedSAM's, on a loss of ``w^2 / 2`` at w = 2 with
``rho = 0.5`` and plain SGD with a learning rate of 0.1::

    passes.gradient()                       the gradient at 2 is 2, so uphill is +1
    way.go([2.5])                           w + rho g / |g|
    passes.step(change=way.come_back)       the gradient at 2.5 is 2.5; back at 2, SGD steps to 2 - 0.1 * 2.5 = 1.75
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Generic, Literal, TypeVar

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Passes, Walk, write_to
from fl_lightning.settings import Count, NotNegative, Positive

_Walk = TypeVar("_Walk", bound=Walk)


class Excursion:
    """A way from w to other points; whatever ends it, the parameters hold w again.

    Args:
        parameters: The parameters, which hold w.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        #: w.
        self.origin = copies_of(parameters)
        self._is_away = False

    def __enter__(self) -> Excursion:
        return self

    def __exit__(self, *error: object) -> None:
        self.come_back()

    def go(self, point: Sequence[Tensor]) -> None:
        """Go to a point."""
        self._is_away = True
        write_to(self._parameters, point)

    def come_back(self) -> None:
        """Go to w, if the parameters are elsewhere."""
        if self._is_away:
            write_to(self._parameters, self.origin)
        self._is_away = False


class WalkingObjective(LocalObjective, ABC, Generic[_Walk]):
    """An objective whose clients take gradients at several points, by a walk of their own."""

    @override
    def on_round_start(self, round_index: int) -> None:
        """Forget walks of a round that broke off."""
        self._walks: dict[int, _Walk] = {}

    @override
    def correction(self, client: LocalClient) -> Walk | None:
        """Return the client's walk."""
        walk = self.walk(client)
        self._walks[client.task.client] = walk
        return walk

    @abstractmethod
    def walk(self, client: LocalClient) -> _Walk:
        """Return a new walk."""

    @override
    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Send what the walk has as w."""
        return self._walks.pop(result.client).sent(result)


@dataclass(eq=False)
class SharpnessAware(WalkingObjective["_Ascent"]):
    """Each step has the gradient at ``w + rho g / |g|``, with g the one at w (FedSAM, Qu et al. 2022; eq. (64)).

    Both gradients are taken on the same batch. Its loss is the one at w.

    Args:
        rho: Length of the way to the point; 0 is the plain objective.
    """

    runs_at = "client"
    sends_updates_alone = True
    rho: NotNegative = 0.05

    @override
    def correction(self, client: LocalClient) -> Walk | None:
        """Return the client's walk; ``None`` if it would go nowhere."""
        return super().correction(client) if self.rho else None

    @override
    def walk(self, client: LocalClient) -> _Ascent:
        """Return the way up and back."""
        return _Ascent(self.rho)

    @override
    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Send w."""
        return super().on_client_end(result) if self.rho else result


class _Ascent(Walk):
    """w, and the point uphill of it."""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Go uphill, and step from w along the gradient of there."""
        with Excursion(parameters) as way:
            passes.gradient()
            uphill = gradients_of(parameters)
            norm = torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in uphill]))
            length = self.rho / (norm + 1e-12)
            way.go([w + length * gradient for w, gradient in zip(parameters, uphill, strict=True)])
            passes.step(change=way.come_back)


@dataclass(eq=False)
class MoreauEnvelope(WalkingObjective["_EnvelopeWalk"]):
    """``min_theta F_k(theta) + lam/2 |theta - w|^2`` as a function of w (pFedMe, Dinh et al. 2020, Algorithm 1).

    On each batch the client's model theta takes ``inner_steps`` steps of the module's optimizer, then w one along the
    envelope's gradient: ``w <- w - lr lam (w - theta)``. That is one local step; its loss is the one before the first
    inner step. The client sends w and keeps theta.

    Args:
        lam: Weight of the proximal term.
        inner_steps: K, steps of theta on each batch.
        lr: eta, the learning rate of w.

    Attributes:
        own: Every client's theta.
    """

    runs_at = "client"
    sends_updates_alone = True
    lam: Positive = 15.0
    inner_steps: Count = 5
    lr: Positive = 0.005

    @override
    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.own: ClientVectors
        self.add_client_vectors("own", federation.model)

    @override
    def walk(self, client: LocalClient) -> _EnvelopeWalk:
        """Return the steps of theta and w."""
        return _EnvelopeWalk(self)

    @override
    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Keep theta; send w."""
        self.own[result.client] = result.vector
        return super().on_client_end(result)

    @override
    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return theta."""
        return self.own.get(client)


class _EnvelopeWalk(Walk):
    """theta, which the module holds, and w."""

    def __init__(self, settings: MoreauEnvelope) -> None:
        self.settings = settings
        #: w, shaped as the parameters; empty before the first step.
        self.w: list[Tensor] = []

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Let theta take the inner steps, and then w one towards it."""
        if not self.w:
            self.w = copies_of(parameters)
        has_stepped = False
        for _ in range(self.settings.inner_steps):
            if passes.step(change=partial(self._pull, parameters)):
                has_stepped = True
        if has_stepped:
            rate = self.settings.lr * self.settings.lam
            self.w = [w.lerp(theta.detach(), rate) for w, theta in zip(self.w, parameters, strict=True)]

    def _pull(self, parameters: Sequence[Tensor]) -> None:
        """Add ``lam (theta - w)`` to the gradients."""
        for theta, w in zip(parameters, self.w, strict=True):
            if theta.grad is not None:
                theta.grad += self.settings.lam * (theta.detach() - w)

    @override
    def value(self, parameters: Sequence[Tensor]) -> Tensor | float:
        """Return ``lam/2 |theta - w|^2``."""
        with torch.no_grad():
            squares = [(theta - w).square().sum() for theta, w in zip(parameters, self.w, strict=True)]
            return self.settings.lam / 2 * sum(squares)

    @override
    def sent(self, result: ClientResult) -> ClientResult:
        """Return the result with w; a client without a step has w in it."""
        return with_parameters(result, self.w) if self.w else result


@dataclass(eq=False)
class ModelMixture(WalkingObjective["_MixtureWalk"]):
    """Each client learns the mixture of a model of its own and the server's (APFL, Deng et al. 2020, Algorithm 1).

    On each batch v takes a step along the gradient by v of ``F_k(alpha v + (1 - alpha) w)``, which is alpha times the
    gradient at the mixture, and w one along ``grad F_k(w)``, both from where they were. Both are steps of the module's
    optimizer, which has a state for each; in the paper it is SGD without momentum. Together they are one local step;
    its loss is the one of the mixture. The client sends w.

    Args:
        alpha: Share of the own model, in [0, 1].
        alpha_lr: Learning rate of each client's alpha, ``alpha <- alpha - alpha_lr <v - w, grad>``; 0 keeps it.

    Attributes:
        own: Every client's v.
        alphas: Every client's alpha, shape ``(1,)``.
    """

    runs_at = "client"
    stepped_models = 2
    sends_updates_alone = True
    alpha: Annotated[float, "[0, 1]"] = 0.5
    alpha_lr: NotNegative = 0.0

    @override
    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.own: ClientVectors
        self.add_client_vectors("own", federation.model)
        self.alphas: ClientVectors
        self.add_client_vectors("alphas", torch.full_like(federation.model[:1], self.alpha))

    @override
    def walk(self, client: LocalClient) -> _MixtureWalk:
        """Return the steps of w and v."""
        k = client.task.client
        layout = self.federation.layout
        parameters, _ = layout.split(self.own[k])
        return _MixtureWalk(layout.views(parameters), float(self.alphas[k]), self.alpha_lr)

    @override
    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Keep v and alpha; send w."""
        client = result.client
        walk = self._walks[client]
        self.own[client] = with_parameters(result, walk.own).vector
        self.alphas[client] = torch.full_like(self.alphas[client], walk.alpha)
        return super().on_client_end(result)

    @override
    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the mixture of the client's v and the server's model."""
        own = self.own.get(client)
        if own is None:
            return None
        return torch.lerp(model, own.to(model), float(self.alphas[client]))


class _MixtureWalk(Walk):
    """v, and w, which the module holds.

    Args:
        own: v, shaped as the parameters.
        alpha: Share of v in the mixture.
        alpha_lr: Learning rate of alpha.
    """

    def __init__(self, own: Sequence[Tensor], alpha: float, alpha_lr: float) -> None:
        self.own = list(own)
        self.alpha = alpha
        self.alpha_lr = alpha_lr

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Take v's step by the gradient at the mixture, and w's by the one at w."""
        self.own = [v.to(w) for v, w in zip(self.own, parameters, strict=True)]
        with Excursion(parameters) as way:
            way.go([w.lerp(v, self.alpha) for w, v in zip(parameters, self.own, strict=True)])
            if passes.step(change=partial(self._turn_to_own, parameters, way.origin), model=1):
                self.own = copies_of(parameters)
        passes.step()

    def _turn_to_own(self, parameters: Sequence[Tensor], w: Sequence[Tensor]) -> None:
        """Turn the gradients at the mixture into those by v, let the module hold v, and learn alpha."""
        slope = 0.0
        for parameter, v, received in zip(parameters, self.own, w, strict=True):
            if parameter.grad is not None:
                slope += float((parameter.grad * (v - received)).sum())
                parameter.grad *= self.alpha
        write_to(parameters, self.own)
        self.alpha = min(1.0, max(0.0, self.alpha - self.alpha_lr * slope))


@dataclass(eq=False)
class MetaLearning(WalkingObjective["_MetaWalk"]):
    """``F_k(w - alpha grad F_k(w))``: the loss after one step of fine-tuning (Per-FedAvg, Fallah et al. 2020).

    Each step takes a batch for the inner gradient and another for the gradient g at the point that it leads to. With
    ``"first-order"`` w takes a step of the module's optimizer along g. With ``"hessian-free"`` it is along
    ``g - alpha (grad F(w + delta g) - grad F(w - delta g)) / (2 delta)``, with a third batch. That is one local step;
    its loss is the one of the first batch at w. Where a client's batches end within a step, its first ones complete it.

    Args:
        alpha: Learning rate of the inner step.
        gradient: ``"first-order"`` or ``"hessian-free"``.
        delta: Length of the difference, relative to g.
    """

    runs_at = "client"
    sends_updates_alone = True
    alpha: Positive = 0.01
    gradient: Literal["first-order", "hessian-free"] = "first-order"
    delta: Positive = 1e-3

    @property
    @override
    def batches_per_step(self) -> int:  # type: ignore[override]
        """One for each gradient; both of the difference share one."""
        return 3 if self.gradient == "hessian-free" else 2

    @override
    def walk(self, client: LocalClient) -> _MetaWalk:
        """Return the steps of w."""
        return _MetaWalk(self)


class _MetaWalk(Walk):
    """w, the point of the inner step, and with second order two points beside w along its gradient."""

    def __init__(self, settings: MetaLearning) -> None:
        self.settings = settings

    @override
    def walk(self, parameters: Sequence[Tensor], passes: Passes) -> None:
        """Step from w along the gradient of the loss after fine-tuning."""
        alpha = self.settings.alpha
        with Excursion(parameters) as way:
            passes.gradient(0)
            inner = torch._foreach_mul(gradients_of(parameters), alpha)
            way.go(torch._foreach_sub(list(parameters), inner))
            if self.settings.gradient == "first-order":
                passes.step(1, way.come_back)
                return
            passes.gradient(1)
            meta = gradients_of(parameters)
            delta = self.settings.delta
            way.go([w + delta * g for w, g in zip(way.origin, meta, strict=True)])
            passes.gradient(2)
            plus = gradients_of(parameters)
            way.go([w - delta * g for w, g in zip(way.origin, meta, strict=True)])

            def come_back() -> None:
                """Go to w, with the gradient for its step."""
                minus = gradients_of(parameters)
                way.come_back()
                for parameter, g, above, below in zip(parameters, meta, plus, minus, strict=True):
                    change = alpha * (above - below) / (2 * delta)
                    parameter.grad = g - change

            passes.step(2, come_back)


def copies_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the parameters."""
    return [parameter.detach().clone() for parameter in parameters]


def gradients_of(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Return copies of the gradients, 0 for parameters that have none."""
    gradients: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            gradients.append(torch.zeros_like(parameter))
        else:
            gradients.append(parameter.grad.detach().clone())
    return gradients


def with_parameters(result: ClientResult, parameters: Sequence[Tensor]) -> ClientResult:
    """Return a client's result with other parameters, and its buffers."""
    vector = torch.cat([*(tensor.flatten() for tensor in parameters), result.buffers])
    return result.with_vector(vector.to(result.vector))
