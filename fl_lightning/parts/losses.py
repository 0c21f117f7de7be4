"""Objectives that change the loss of ``training_step``.

Features and logits are the input and the output of the module's output layer; see
:class:`~fl_lightning.parts.federation.ForwardPass`. Equations are numbered as in ``docs/references.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from fl_lightning.checks import NotNegative, Positive
from fl_lightning.parts.federation import Federation, ForwardPass, LocalClient, Patterns
from fl_lightning.parts.messages import ClientResult, accumulator
from fl_lightning.parts.objectives import Correction, LocalObjective


@dataclass(eq=False)
class ModelContrast(LocalObjective):
    """A client's features are drawn to the received model's, away from its former model's (MOON, Li et al. 2021).

    Adds ``mu mean(-log(e^(near/tau) / (e^(near/tau) + e^(far/tau))))`` (eq. (60)), with the cosines of a sample's
    features to those of the two models. In a client's first training both are the same, and nothing is added.

    Args:
        mu: Weight of the contrast; 0 is the plain objective.
        tau: Temperature.

    Attributes:
        former: Every client's last model.
    """

    mu: NotNegative = 1.0
    tau: Positive = 0.5

    def setup(self, federation: Federation) -> None:
        """Start without former models."""
        self.add_client_vectors("former", federation.model)

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the contrast of the received and the former model."""
        former = self.former.get(client.task.client)
        return Correction(loss=partial(self._loss, client.received, former)) if self.mu else None

    def _loss(self, received: Tensor, former: Tensor | None, loss: Tensor, forward: ForwardPass) -> Tensor:
        if former is None:  # the received one, too: a constant
            return loss
        near, far = (F.cosine_similarity(forward.features, forward.of(model)[0]) for model in (received, former))
        return loss + self.mu * F.softplus((far - near) / self.tau).mean()

    def on_client_end(self, result: ClientResult) -> None:
        """Keep the client's model."""
        self.former[result.client] = result.vector


class _ByClass(LocalObjective):
    """An objective that knows how many samples of each class a client has."""

    def setup(self, federation: Federation) -> None:
        """Forget an earlier fit's clients."""
        self._counts: dict[int, Tensor] = {}

    def counts(self, client: LocalClient) -> Tensor:
        """Return the number of the client's samples of each class, up to the highest that it has."""
        k = client.task.client
        if k not in self._counts:
            self._counts[k] = torch.bincount(client.targets().flatten()).to(client.start)
        return self._counts[k]


def shifted(loss: Tensor, forward: ForwardPass, shift: Tensor) -> Tensor:
    """Return the loss with the cross-entropy of ``logits + shift`` in the place of that of the logits.

    Args:
        loss: Has other terms besides, such as a penalty.
        forward: The forward pass.
        shift: Of each class, up to the highest that the client has; the client has none of the others.
    """
    logits = forward.logits
    shift = F.pad(shift.to(logits), (0, logits.shape[1] - len(shift)), value=-torch.inf)
    return loss + F.cross_entropy(logits + shift, forward.target) - F.cross_entropy(logits, forward.target)


@dataclass(eq=False)
class CalibratedLogits(_ByClass):
    """The cross-entropy has the logits less ``tau n_c^(-1/4)`` (FedLC, Zhang et al. 2022; eq. (61)).

    n_c is the client's number of samples of class c. A class that it does not have does not count.

    Args:
        tau: Weight of the shift; 0 is the plain objective.
    """

    tau: NotNegative = 1.0

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the change of the cross-entropy."""
        if not self.tau:
            return None
        return Correction(loss=partial(shifted, shift=-self.tau * self.counts(client) ** -0.25))


@dataclass(eq=False)
class NotTrueDistillation(LocalObjective):
    """The softmax of all logits but the true class's is drawn to the received model's (FedNTD, Lee et al. 2022).

    Adds ``beta tau^2 mean KL(q' | q)`` at temperature tau, with the received model's q' (eq. (62)).

    Args:
        beta: Weight of the distillation; 0 is the plain objective.
        tau: Temperature.
    """

    beta: NotNegative = 1.0
    tau: Positive = 1.0

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the distillation of the received model."""
        return Correction(loss=partial(self._loss, client.received)) if self.beta else None

    def _loss(self, received: Tensor, loss: Tensor, forward: ForwardPass) -> Tensor:
        others = F.one_hot(forward.target, forward.logits.shape[1]) == 0
        logits = (each[others].view(len(others), -1) / self.tau for each in (forward.logits, forward.of(received)[1]))
        own, known = (each.log_softmax(1) for each in logits)
        return loss + self.beta * self.tau**2 * F.kl_div(own, known, reduction="batchmean", log_target=True)


@dataclass(eq=False)
class Decorrelation(LocalObjective):
    """Features of a batch should not be correlated (FedDecorr, Shi et al. 2023).

    Adds ``beta / d^2 |K|^2``, the mean square of the d features' correlation matrix K (eq. (63)).

    Args:
        beta: Weight of the term; 0 is the plain objective.
    """

    beta: NotNegative = 0.1

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the term."""
        return Correction(loss=self._loss) if self.beta else None

    def _loss(self, loss: Tensor, forward: ForwardPass) -> Tensor:
        z = forward.features
        if len(z) < 2:
            return loss
        z = (z - z.mean(0)) / (z.var(0) + 1e-8).sqrt()  # corrcoef would be NaN for a feature that does not vary
        return loss + self.beta * (z.T @ z / (len(z) - 1)).square().mean()


@dataclass(eq=False)
class Prototypes(LocalObjective):
    """A sample's features are drawn to the mean features of its class over all clients (FedProto, Tan et al. 2022).

    Adds lam times the mean square of the features' differences from their class's prototype (eq. (65)). A client's
    prototypes are the means of what its steps of the round saw, the server's are means over samples; a class that no
    client of the round has keeps its prototype. Use it with ``PersonalParameters("*")``: only prototypes travel.

    Args:
        lam: Weight of the term; 0 is the plain objective.

    Attributes:
        means: The prototypes, shape ``(classes, width)``; NaN for a class of which no sample was seen.
    """

    lam: NotNegative = 1.0

    def setup(self, federation: Federation) -> None:
        """Start without prototypes."""
        self.add_state("means", None)

    def on_round_start(self, round_index: int) -> None:
        """Forget what a broken-off round saw."""
        self._seen: dict[int, Tensor] = {}
        self._sent: dict[int, Tensor] = {}

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the term."""
        return Correction(loss=partial(self._loss, client.task.client)) if self.lam else None

    def _loss(self, client: int, loss: Tensor, forward: ForwardPass) -> Tensor:
        z, target = forward.features, forward.target
        rows = torch.cat([z.detach(), torch.ones_like(z[:, :1])], 1).to(accumulator(z))  # the last column counts
        sums = F.one_hot(target, forward.logits.shape[1]).to(rows).T @ rows
        self._seen[client] = self._seen[client] + sums if client in self._seen else sums
        if self.means is None:
            return loss
        prototypes = self.means[target].to(z)
        return loss + self.lam * F.mse_loss(z, torch.where(prototypes.isnan(), z.detach(), prototypes))

    @property
    def numbers_down(self) -> int:
        """The numbers of the server's prototypes."""
        return 0 if self.means is None else int((~self.means.isnan()).sum())

    def numbers_up(self, result: ClientResult) -> int:
        """Return the numbers of the client's prototypes, and how many samples each has."""
        sent = self._sent.get(result.client)
        return 0 if sent is None else int((sent[:, -1] > 0).sum()) * sent.shape[1]

    def on_client_end(self, result: ClientResult) -> None:
        """Send the client's prototypes."""
        if result.client in self._seen:
            self._sent[result.client] = self._seen.pop(result.client)

    def on_round_end(self) -> None:
        """Take the means over all clients of the round."""
        sent = sorted(self.federation.join(self._sent).items())
        if sent:
            sums = torch.stack([each for _, each in sent]).sum(0).to(self.federation.model.device)
            new = (sums[:, :-1] / sums[:, -1:]).to(self.federation.model.dtype)
            self.means = new if self.means is None else torch.where(new.isnan(), self.means, new)


@dataclass(eq=False)
class TwoHeads(_ByClass):
    """The head is trained for balanced classes, and a head of each client's own for what it adds (Fed-RoD).

    Chen and Chao 2022 (eq. (66)): the model learns by the cross-entropy of ``logits + log n_c``, with n_c the client's
    samples of class c. The client's head learns, from 0 and by plain SGD, by that of ``logits + head(features)``, which
    leaves the model as it is. As both are linear, the client's model is the server's with the sum of the heads.

    Args:
        pattern: The output layer, by its name; as for :class:`PersonalParameters`.
        lr: Learning rate of the clients' heads.

    Attributes:
        heads: Every client's own head, a vector: weights, then biases.

    Raises:
        ValueError: When the fit begins, if the pattern does not name one linear layer, or one whose weight is tied.
    """

    pattern: Patterns
    lr: Positive = 0.1

    def setup(self, federation: Federation) -> None:
        """Find the head, and give every client one of zeros."""
        super().setup(federation)
        names = federation.matching(self.pattern)
        self._shapes = [federation.shapes[federation.names.index(name)] for name in names]
        if [len(shape) for shape in self._shapes] not in ([2], [2, 1]):
            raise ValueError(f"`pattern` must name one linear layer, the output layer, got {names}.")
        for name in names:
            if len(federation.shared_names.get(name, [])) > 1:
                raise ValueError(
                    f"`pattern` must name an output layer with tensors of its own, got {name}, which other layers use "
                    "too: a client's head would change what they compute. Untie the output layer."
                )
        self._places = federation.mask(names).nonzero().squeeze(1)
        self.add_client_vectors("heads", torch.zeros_like(federation.model[self._places]))

    def on_round_start(self, round_index: int) -> None:
        """Forget heads of a round that broke off."""
        self._learnt: dict[int, Tensor] = {}

    def correction(self, client: LocalClient) -> Correction:
        """Return the change of the cross-entropy, which also trains the client's head."""
        self._learnt[client.task.client] = self.heads[client.task.client]
        return Correction(loss=partial(self._loss, client.task.client, self.counts(client).log()))

    def _loss(self, client: int, prior: Tensor, loss: Tensor, forward: ForwardPass) -> Tensor:
        head = self._learnt[client].clone().requires_grad_()
        split = head.split([shape.numel() for shape in self._shapes])
        own = F.linear(
            forward.features.detach().to(head),
            *(part.view(shape) for part, shape in zip(split, self._shapes, strict=True)),
        )
        (gradient,) = torch.autograd.grad(F.cross_entropy(forward.logits.detach() + own, forward.target), head)
        self._learnt[client] = head.detach() - self.lr * gradient
        return shifted(loss, forward, prior)

    def on_client_end(self, result: ClientResult) -> None:
        """Keep the client's head."""
        self.heads[result.client] = self._learnt.pop(result.client)

    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the model with the sum of the two heads."""
        own = self.heads.get(client)
        return None if own is None else model.index_add(0, self._places, own.to(model))
