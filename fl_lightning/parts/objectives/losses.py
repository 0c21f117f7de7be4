"""Objectives that change the loss of ``training_step``.

Features and logits are the input and the output of the module's output layer, which ``output_layer`` names where the
loss depends on several; see :class:`~fl_lightning.parts.federation.ForwardPass`. Equations are numbered as in
``docs/references.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation, ForwardPass, LocalClient
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import ChangedLoss
from fl_lightning.settings import NotNegative, Positive
from fl_lightning.vectors import sum_dtype

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class ModelContrast(LocalObjective):
    """A client's features are drawn to the received model's, away from its former model's (MOON, Li et al. 2021).

    Adds ``mu mean(-log(e^(near/tau) / (e^(near/tau) + e^(far/tau))))`` (eq. (60)), with the cosines of a sample's
    features to those of the two models. In a client's first training both are the same, and nothing is added.

    Args:
        mu: Weight of the contrast; 0 is the plain objective.
        tau: Temperature.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.

    Attributes:
        former: Every client's last model.
    """

    runs_at = "client"
    sends_updates_alone = True
    mu: NotNegative = 1.0
    tau: Positive = 0.5
    output_layer: str | None = None

    @override
    def setup(self, federation: Federation) -> None:
        self.former: ClientVectors
        self.add_client_vectors("former", federation.model)

    @override
    def correction(self, client: LocalClient) -> ChangedLoss | None:
        """Return the contrast of the received and the former model."""
        if not self.mu:
            return None
        former = self.former.get(client.task.client)
        return ChangedLoss(loss=partial(self._loss, client.received, former), output_layer=self.output_layer)

    def _loss(self, received: Tensor, former: Tensor | None, loss: Tensor, forward: ForwardPass) -> Tensor:
        # In the first training the former model is the received one, and the contrast a constant.
        if former is None:
            return loss
        features_of_received, _ = forward.of(received)
        features_of_former, _ = forward.of(former)
        near = F.cosine_similarity(forward.features, features_of_received)
        far = F.cosine_similarity(forward.features, features_of_former)
        return loss + self.mu * F.softplus((far - near) / self.tau).mean()

    @override
    def on_client_end(self, result: ClientResult) -> None:
        self.former[result.client] = result.vector


def classes_of(target: Tensor, method: str) -> Tensor:
    """Return targets as classes, int64, shape ``(rows,)``.

    Args:
        target: The targets.
        method: The method that needs classes, for the error.

    Raises:
        ValueError: If they are no whole numbers from 0.
    """
    are_whole = not target.is_floating_point() and target.dtype is not torch.bool
    if are_whole and (not target.numel() or int(target.min()) >= 0):
        return target.flatten().long()
    found = ""
    if target.numel():
        found = f" from {target.min().item():g} to {target.max().item():g}"
    raise ValueError(
        f"{method} needs one class for each row of logits: whole numbers from 0, got targets of {target.dtype} and "
        f"shape {tuple(target.shape)}{found}. Several labels a sample, numbers to predict and positions that do not "
        "count (-100) have no class. If the classes are another element of the batch, give its place as `target=` of "
        "the data module; else use a method without classes, such as FedAvg or FedProx."
    )


def class_of_rows(forward: ForwardPass, method: str) -> Tensor:
    """Return the class of each row of a pass's logits, int64, shape ``(rows,)``.

    Raises:
        ValueError: If the targets are no classes, or not one a row.
    """
    classes = classes_of(forward.target, method)
    if len(classes) != len(forward.logits) or int(classes.max()) >= forward.logits.shape[1]:
        raise ValueError(
            f"{method} needs one class for each row of logits, below the number of outputs, got {len(classes)} targets "
            f"up to {int(classes.max())} for logits of shape {tuple(forward.logits.shape)}."
        )
    return classes


def class_counts(client: LocalClient, method: str) -> Tensor:
    """Return the client's number of samples of each class, up to the highest that it has; its data as they are now.

    Raises:
        ValueError: If the targets are no classes.
    """
    return torch.bincount(classes_of(client.targets(), method)).to(client.start)


@dataclass(eq=False)
class CalibratedLogits(LocalObjective):
    """The loss has the logits less ``tau n_c^(-1/4)`` (FedLC, Zhang et al. 2022; eq. (61)).

    n_c is the client's number of samples of class c when it begins to train. A class that it does not have does not
    count. The shift is added where the output layer returns the logits, so the loss may be any of single rows: with
    class weights, focal, a sum. What the step logs is of the shifted logits.

    Args:
        tau: Weight of the shift; 0 is the plain objective.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.
    """

    runs_at = "client"
    sends_updates_alone = True
    tau: NotNegative = 1.0
    output_layer: str | None = None

    @override
    def correction(self, client: LocalClient) -> ChangedLoss | None:
        if not self.tau:
            return None
        shift = -self.tau * class_counts(client, "FedLC") ** -0.25
        return ChangedLoss(shift=shift, output_layer=self.output_layer)


@dataclass(eq=False)
class NotTrueDistillation(LocalObjective):
    """The softmax of all logits but the true class's is drawn to the received model's (FedNTD, Lee et al. 2022).

    Adds ``beta tau^2 mean KL(q' | q)`` at temperature tau, with the received model's q' (eq. (62)).

    Args:
        beta: Weight of the distillation; 0 is the plain objective.
        tau: Temperature.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.
    """

    runs_at = "client"
    sends_updates_alone = True
    beta: NotNegative = 1.0
    tau: Positive = 1.0
    output_layer: str | None = None

    @override
    def correction(self, client: LocalClient) -> ChangedLoss | None:
        if not self.beta:
            return None
        return ChangedLoss(loss=partial(self._loss, client.received), output_layer=self.output_layer)

    def _loss(self, received: Tensor, loss: Tensor, forward: ForwardPass) -> Tensor:
        classes = class_of_rows(forward, "FedNTD")
        is_other = F.one_hot(classes, forward.logits.shape[1]) == 0
        _, logits_of_received = forward.of(received)
        own = forward.logits[is_other].view(len(is_other), -1) / self.tau
        known = logits_of_received[is_other].view(len(is_other), -1) / self.tau
        divergence = F.kl_div(own.log_softmax(1), known.log_softmax(1), reduction="batchmean", log_target=True)
        return loss + self.beta * self.tau**2 * divergence


@dataclass(eq=False)
class Decorrelation(LocalObjective):
    """Features of a batch should not be correlated (FedDecorr, Shi et al. 2023).

    Adds ``beta / d^2 |K|^2``, the mean square of the d features' correlation matrix K (eq. (63)), as in the paper. The
    authors' code sums products over the B rows of a batch where K has means, and divides the squares by B once. That is
    ``(B - 1)^2 / B`` times as strong, 62 times for B = 64: give such a multiple of their ``beta`` to repeat it.

    Args:
        beta: Weight of the term; 0 is the plain objective.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.
    """

    runs_at = "client"
    sends_updates_alone = True
    beta: NotNegative = 0.1
    output_layer: str | None = None

    @override
    def correction(self, client: LocalClient) -> ChangedLoss | None:
        return ChangedLoss(loss=self._loss, output_layer=self.output_layer) if self.beta else None

    def _loss(self, loss: Tensor, forward: ForwardPass) -> Tensor:
        z = forward.features
        if len(z) < 2:
            return loss
        # `torch.corrcoef` would be NaN for a feature that does not vary.
        z = (z - z.mean(0)) / (z.var(0) + 1e-8).sqrt()
        correlations = z.T @ z / (len(z) - 1)
        return loss + self.beta * correlations.square().mean()


@dataclass(eq=False)
class Prototypes(LocalObjective):
    """A sample's features are drawn to the mean features of its class over all clients (FedProto, Tan et al. 2022).

    Adds lam times the mean square of the features' differences from their class's prototype (eq. (65)). A client's
    prototypes are the means of what its steps of the round saw, the server's are means over samples; a class that no
    client of the round has keeps its prototype. An asynchronous client has the prototypes of the round in which it
    received its model, and each result that arrives in a round counts. Use it with ``PersonalParameters("*")``: only
    prototypes travel.

    Args:
        lam: Weight of the term; 0 is the plain objective.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.

    Attributes:
        means: The prototypes, shape ``(classes, width)``; NaN for a class of which no sample was seen.
        past: Those at the beginning of this round and of earlier ones on whose models clients still train, by round.
        sent: What clients sent whose results have yet to arrive, shape ``(classes, width + 1)``: sums and, in the last
            column, samples. By the slot of the task.
    """

    runs_at = "both"
    lam: NotNegative = 1.0
    output_layer: str | None = None

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Note whom to ask for the rounds on whose models clients still train."""
        self._rounds_under_way = algorithm.schedule.rounds_under_way
        return ()

    @override
    def setup(self, federation: Federation) -> None:
        self.means: Tensor | None
        self.add_state("means", None)
        self.past: dict[int, Tensor | None]
        self.add_state("past", {})
        #: On the process that trained the client.
        self.sent: dict[int, Tensor]
        self.add_state("sent", {})

    @override
    def saved(self, name: str, value: Any) -> Any:
        """Return what the clients of all processes sent."""
        return self.federation.join(value) if name == "sent" else value

    @override
    def on_round_start(self, round_index: int) -> None:
        """Keep the prototypes that clients received, and forget what a broken-off round saw."""
        under_way = self._rounds_under_way() or ()
        past = {each: self.past[each] for each in under_way if each in self.past}
        past[round_index] = self.means
        self.past = past
        self._seen: dict[int, Tensor] = {}
        self._sent: dict[int, Tensor] = {}
        self._arrived: dict[tuple[int, int], Tensor] = {}

    @override
    def correction(self, client: LocalClient) -> ChangedLoss | None:
        """Return the term, with the prototypes that the client received with its model."""
        if not self.lam:
            return None
        loss = partial(self._loss, client.task.slot, self.past[client.task.round])
        return ChangedLoss(loss=loss, output_layer=self.output_layer)

    def _loss(self, slot: int, means: Tensor | None, loss: Tensor, forward: ForwardPass) -> Tensor:
        z = forward.features
        target = class_of_rows(forward, "FedProto")
        # The last column counts samples.
        counts = torch.ones_like(z[:, :1])
        rows = torch.cat([z.detach(), counts], 1).to(sum_dtype(z))
        classes = F.one_hot(target, forward.logits.shape[1]).to(rows)
        sums = classes.T @ rows
        if slot in self._seen:
            sums = self._seen[slot] + sums
        self._seen[slot] = sums
        if means is None:
            return loss
        prototypes = means[target].to(z)
        # A class that no client has shown has no prototype, and adds nothing.
        drawn_to = torch.where(prototypes.isnan(), z.detach(), prototypes)
        return loss + self.lam * F.mse_loss(z, drawn_to)

    @property
    @override
    def numbers_down(self) -> int:
        """The numbers of the server's prototypes."""
        return 0 if self.means is None else int((~self.means.isnan()).sum())

    @override
    def numbers_up(self, result: ClientResult) -> int:
        """Return the numbers of the client's prototypes, and how many samples each has."""
        sent = self._sent.get(result.client)
        if sent is None:
            return 0
        classes = int((sent[:, -1] > 0).sum())
        return classes * sent.shape[1]

    @override
    def on_client_end(self, result: ClientResult) -> None:
        """Send the client's prototypes."""
        slot = result.task.slot
        if slot in self._seen:
            sums = self._seen.pop(slot)
            self._sent[result.client] = sums
            self.sent = {**self.sent, slot: sums}

    @override
    def state_down(self, task: Task) -> dict[str, Tensor]:
        """Return the prototypes, once there are some."""
        return {} if self.means is None else {"means": self.means}

    @override
    def take_state_down(self, state: Mapping[str, Tensor]) -> None:
        """Take the server's prototypes."""
        self.means = state.get("means")

    @override
    def state_up(self, result: ClientResult) -> dict[str, Tensor]:
        """Return the sums of the client's features by class, and how many samples each has."""
        sent = self._sent.get(result.client)
        return {} if sent is None else {"sums": sent}

    @override
    def take_state_up(self, task: Task, state: Mapping[str, Tensor]) -> None:
        """Take the client's sums, as if its steps had been here."""
        if "sums" in state:
            self._seen[task.slot] = state["sums"]

    @override
    def on_arrival(self, client: int, slot: int, *, is_used: bool) -> None:
        """Take the client's prototypes with its result."""
        if is_used and slot in self.sent:
            self._arrived[client, slot] = self.sent[slot]
        self.sent = {other: sums for other, sums in self.sent.items() if other != slot}

    @override
    def on_round_end(self) -> None:
        """Take the means over all results of the round."""
        joined = self.federation.join(self._arrived)
        arrived = [sums for _, sums in sorted(joined.items())]
        if not arrived:
            return
        model = self.federation.model
        sums = torch.stack(arrived).sum(0).to(model.device)
        means = sums[:, :-1] / sums[:, -1:]
        means = means.to(model.dtype)
        if self.means is not None:
            means = torch.where(means.isnan(), self.means, means)
        self.means = means


@dataclass(eq=False)
class TwoHeads(LocalObjective):
    """The head is trained for balanced classes, and a head of each client's own for what it adds (Fed-RoD).

    Chen and Chao 2022 (eq. (66)): the model learns by the loss of ``logits + log n_c``, with n_c the client's samples
    of class c when it begins to train. The client's head learns, from 0 and by plain SGD, by the loss of
    ``logits + head(features)``, which leaves the model as it is: ``training_step`` runs once more, with these logits.
    As both are linear, the client's model is the server's with the sum of the heads. The loss is the cross-entropy in
    the paper, and any of single rows here. What the step logs is of the logits for balanced classes.

    Args:
        pattern: The output layer, by its name; as for :class:`PersonalParameters`.
        lr: Learning rate of the clients' heads.

    Attributes:
        heads: Every client's own head, a vector: weights, then biases.

    Raises:
        ValueError: When the fit begins, if the pattern does not name one linear layer, or one whose weight is tied.
    """

    runs_at = "client"
    sends_updates_alone = True
    pattern: Patterns
    lr: Positive = 0.1

    @override
    def setup(self, federation: Federation) -> None:
        """Find the head, and give every client one of zeros."""
        names = federation.matching(self.pattern)
        self._shapes = [federation.shapes[federation.names.index(name)] for name in names]
        if [len(shape) for shape in self._shapes] not in ([2], [2, 1]):
            raise ValueError(f"`pattern` must name one linear layer, the output layer, got {names}.")
        self._layer = names[0].rpartition(".")[0]
        for name in names:
            if len(federation.layout.shared_names.get(name, [])) > 1:
                raise ValueError(
                    f"`pattern` must name an output layer whose tensors no other layer uses, got {name}, which "
                    "other layers use too: a client's head would change what they compute. Untie the output layer."
                )
        self._places = federation.mask(names).nonzero().squeeze(1)
        self.heads: ClientVectors
        self.add_client_vectors("heads", torch.zeros_like(federation.model[self._places]))

    @override
    def on_round_start(self, round_index: int) -> None:
        """Forget heads of a round that broke off."""
        self._learnt: dict[int, Tensor] = {}

    @override
    def correction(self, client: LocalClient) -> ChangedLoss:
        """Return the shift of the logits, beside which the client's head is trained."""
        k = client.task.client
        self._learnt[k] = self.heads[k]
        prior = class_counts(client, "Fed-RoD").log()
        return ChangedLoss(loss=partial(self._loss, k), shift=prior, output_layer=self._layer)

    def _loss(self, client: int, loss: Tensor, forward: ForwardPass) -> Tensor:
        head = self._learnt[client].clone().requires_grad_()
        split = head.split([shape.numel() for shape in self._shapes])
        # The weight, and the bias if there is one.
        tensors = [part.view(shape) for part, shape in zip(split, self._shapes, strict=True)]
        own = F.linear(forward.features.detach().to(head), *tensors)
        loss_of_sum = forward.loss_of(forward.logits.detach() + own)
        (gradient,) = torch.autograd.grad(loss_of_sum, head)
        self._learnt[client] = head.detach() - self.lr * gradient
        return loss

    @override
    def on_client_end(self, result: ClientResult) -> None:
        self.heads[result.client] = self._learnt.pop(result.client)

    @override
    def personal(self, client: int, model: Tensor) -> Tensor | None:
        """Return the model with the sum of the two heads."""
        own = self.heads.get(client)
        return None if own is None else model.index_add(0, self._places, own.to(model))
