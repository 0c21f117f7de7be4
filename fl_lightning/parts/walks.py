"""Objectives whose clients take gradients at several points: at a neighbour of w, at a mixture, after a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from fl_lightning.checks import Count, NotNegative, Positive
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives import Correction, LocalObjective, write_to


class Walk(Correction):
    """Steps at several points: the module holds w, or a point to which it went from w."""

    walks = True

    def __init__(self, settings: Any, steps_per_batch: tuple[int, ...]) -> None:
        super().__init__(steps_per_batch=steps_per_batch)
        self.settings, self.turn = settings, 0
        self.outer: list[Tensor] | None = None  # w, while the module holds another point

    def leave(self, parameters: Sequence[Tensor], point: Sequence[Tensor]) -> None:
        """Go to a point, and take no step there."""
        self.outer = [tensor.detach().clone() for tensor in parameters] if self.outer is None else self.outer
        write_to(parameters, point)
        for parameter in parameters:
            parameter.grad = None

    def come_back(self, parameters: Sequence[Tensor]) -> None:
        """Go to w."""
        if self.outer is not None:
            write_to(parameters, self.outer)
            self.outer = None

    def sent(self, result: ClientResult) -> ClientResult:
        """Return the result with w."""
        if self.outer is None:
            return result
        return result.with_vector(torch.cat([*(tensor.flatten() for tensor in self.outer), result.buffers]))


class WalkingObjective(LocalObjective, ABC):
    """An objective whose clients take gradients at several points, by a walk of their own."""

    def on_round_start(self, round_index: int) -> None:
        """Forget walks of a round that broke off."""
        self._walks: dict[int, Any] = {}

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the client's walk."""
        self._walks[client.task.client] = self.walk(client)
        return self._walks[client.task.client]

    @abstractmethod
    def walk(self, client: LocalClient) -> Correction:
        """Return a new walk."""

    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Send what the walk has as w."""
        return self._walks.pop(result.client).sent(result)


@dataclass(eq=False)
class SharpnessAware(WalkingObjective):
    """Each step has the gradient at ``w + rho g / |g|``, with g the one at w (FedSAM, Qu et al. 2022; eq. (64)).

    Both gradients are taken on the same batch.

    Args:
        rho: Length of the way to the point; 0 is the plain objective.
    """

    sends_updates_alone = True
    rho: NotNegative = 0.05

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the client's walk."""
        return super().correction(client) if self.rho else None

    def walk(self, client: LocalClient) -> Correction:
        """Return the way up and back."""
        return _Ascent(self, (2,))

    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Send w."""
        return super().on_client_end(result) if self.rho else result


class _Ascent(Walk):
    """w, and the point uphill of it."""

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Go uphill, or back to w with the gradient of there."""
        if self.outer is not None:
            self.come_back(parameters)
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        length = self.settings.rho / (torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients])) + 1e-12)
        self.leave(parameters, [p + length * g for p, g in zip(parameters, gradients, strict=True)])


@dataclass(eq=False)
class MoreauEnvelope(WalkingObjective):
    """``min_theta F_k(theta) + lam/2 |theta - w|^2`` as a function of w (pFedMe, Dinh et al. 2020, Algorithm 1).

    On each batch the client's model theta takes ``inner_steps`` steps of the module's optimizer, then w one along the
    envelope's gradient: ``w <- w - lr lam (w - theta)``. The client sends w and keeps theta.

    Args:
        lam: Weight of the proximal term.
        inner_steps: K, steps of theta on each batch.
        lr: eta, the learning rate of w.

    Attributes:
        own: Every client's theta.
    """

    sends_updates_alone = True
    lam: Positive = 15.0
    inner_steps: Count = 5
    lr: Positive = 0.005

    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.add_client_vectors("own", federation.model)

    def walk(self, client: LocalClient) -> Correction:
        """Return the steps of theta and w."""
        return _EnvelopeWalk(self, (self.inner_steps,))

    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Keep theta; send w."""
        self.own[result.client] = result.vector
        return super().on_client_end(result)

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return theta."""
        return self.own.get(client)


class _EnvelopeWalk(Walk):
    """theta near w; ``outer`` is w all the time."""

    def on_step_start(self, parameters: Sequence[Tensor]) -> None:
        """Begin at w; after the inner steps of a batch, move w."""
        if self.outer is None:
            self.outer = [tensor.detach().clone() for tensor in parameters]
        elif self.turn == self.settings.inner_steps:
            self.move(parameters)

    def move(self, parameters: Iterable[Tensor]) -> None:
        """Take w's step towards theta."""
        assert self.outer is not None
        self.turn, rate = 0, self.settings.lr * self.settings.lam
        self.outer = [w.lerp(theta.detach().view_as(w), rate) for w, theta in zip(self.outer, parameters, strict=True)]

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Add ``lam (theta - w)``."""
        assert self.outer is not None
        self.turn += 1
        for theta, w in zip(parameters, self.outer, strict=True):
            if theta.grad is not None:
                theta.grad += self.settings.lam * (theta.detach() - w)

    def sent(self, result: ClientResult) -> ClientResult:
        """Return the result with w after its last step."""
        if self.outer is not None and self.turn:
            self.move(result.parameters.split([tensor.numel() for tensor in self.outer]))
        return super().sent(result)


@dataclass(eq=False)
class ModelMixture(WalkingObjective):
    """Each client learns the mixture of a model of its own and the server's (APFL, Deng et al. 2020, Algorithm 1).

    On each batch v takes a step along the gradient by v of ``F_k(alpha v + (1 - alpha) w)``, which is alpha times the
    gradient at the mixture, and w one along ``grad F_k(w)``, both from where they were. Both are steps of the module's
    optimizer, which should be SGD without momentum, as in the paper. The client sends w.

    Args:
        alpha: Share of the own model, in [0, 1].
        alpha_lr: Learning rate of each client's alpha, ``alpha <- alpha - alpha_lr <v - w, grad>``; 0 keeps it.

    Attributes:
        own: Every client's v.
        alphas: Every client's alpha, shape ``(1,)``.
    """

    sends_updates_alone = True
    alpha: Annotated[float, "[0, 1]"] = 0.5
    alpha_lr: NotNegative = 0.0

    def setup(self, federation: Federation) -> None:
        """Give every client the first model."""
        self.add_client_vectors("own", federation.model)
        self.add_client_vectors("alphas", torch.full_like(federation.model[:1], self.alpha))

    def walk(self, client: LocalClient) -> Correction:
        """Return the steps of w and v."""
        k = client.task.client
        own = self.own[k][: self.federation.num_parameters].split(list(self.federation.lengths))
        return _MixtureWalk(self, own, float(self.alphas[k]))

    def on_client_end(self, result: ClientResult) -> ClientResult:
        """Keep v and alpha; send w."""
        walk, sent = self._walks[result.client], super().on_client_end(result)
        self.own[result.client] = torch.cat([*walk.own, result.buffers])
        self.alphas[result.client] = torch.full_like(self.alphas[result.client], walk.alpha)
        return sent

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the mixture of the client's v and the server's model."""
        own = self.own.get(client)
        return None if own is None else torch.lerp(model, own.to(model), float(self.alphas[client]))


class _MixtureWalk(Walk):
    """v at the mixture, then w; ``outer`` is w while the module holds the mixture or v."""

    def __init__(self, settings: ModelMixture, own: Sequence[Tensor], alpha: float) -> None:
        super().__init__(settings, (2,))
        self.own, self.alpha = list(own), alpha

    def on_step_start(self, parameters: Sequence[Tensor]) -> None:
        """Go to the mixture, or from v to w; a step without a loss left the module there."""
        if self.turn == 1 and self.outer is not None:
            self.own = [tensor.detach().clone().flatten() for tensor in parameters]
            self.come_back(parameters)
        elif self.turn == 0 and self.outer is None:
            pairs = zip(parameters, self.own, strict=True)
            self.leave(parameters, [w.lerp(v.view_as(w), self.alpha) for w, v in pairs])

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """At the mixture, prepare v's step and learn alpha."""
        if self.turn == 0:
            assert self.outer is not None
            slope = 0.0
            for parameter, v, w in zip(parameters, self.own, self.outer, strict=True):
                if parameter.grad is not None:
                    slope += float((parameter.grad * (v.view_as(w) - w)).sum())
                    parameter.grad *= self.alpha
            write_to(parameters, [v.view_as(parameter) for v, parameter in zip(self.own, parameters, strict=True)])
            self.alpha = min(1.0, max(0.0, self.alpha - self.settings.alpha_lr * slope))
        self.turn = 1 - self.turn


@dataclass(eq=False)
class MetaLearning(WalkingObjective):
    """``F_k(w - alpha grad F_k(w))``: the loss after one step of fine-tuning (Per-FedAvg, Fallah et al. 2020).

    Each step takes a batch for the inner gradient and another for the gradient g at the point that it leads to. With
    ``"first-order"`` w takes a step of the module's optimizer along g. With ``"hessian-free"`` it is along
    ``g - alpha (grad F(w + delta g) - grad F(w - delta g)) / (2 delta)``, with a third batch. Where a client's batches
    end within a step, its first ones complete it.

    Args:
        alpha: Learning rate of the inner step.
        gradient: ``"first-order"`` or ``"hessian-free"``.
        delta: Length of the difference, relative to g.
    """

    sends_updates_alone = True
    alpha: Positive = 0.01
    gradient: Literal["first-order", "hessian-free"] = "first-order"
    delta: Positive = 1e-3

    def walk(self, client: LocalClient) -> Correction:
        """Return the steps of w."""
        return _MetaWalk(self, (1, 1, 2) if self.gradient == "hessian-free" else (1, 1))


class _MetaWalk(Walk):
    """w, the point of the inner step, and with second order two points beside w along its gradient."""

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        """Go to the next point, or back to w with the gradient for its step."""
        alpha, delta, second = self.settings.alpha, self.settings.delta, self.settings.gradient == "hessian-free"
        here = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]
        if self.turn == 0:
            self.leave(parameters, torch._foreach_sub(list(parameters), torch._foreach_mul(here, alpha)))
        elif self.turn == 1 and second:
            self.gradient = here
            self._go(parameters, delta)
        elif self.turn == 2:
            self.plus = here
            self._go(parameters, -delta)
        else:
            self.come_back(parameters)
            if second:
                for parameter, g, plus, minus in zip(parameters, self.gradient, self.plus, here, strict=True):
                    parameter.grad = g - alpha * (plus - minus) / (2 * delta)
        self.turn = (self.turn + 1) % (4 if second else 2)

    def _go(self, parameters: Sequence[Tensor], delta: float) -> None:
        assert self.outer is not None
        self.leave(parameters, [w + delta * g for w, g in zip(self.outer, self.gradient, strict=True)])
