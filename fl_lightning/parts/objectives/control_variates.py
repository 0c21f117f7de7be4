"""SCAFFOLD's corrected gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Term
from fl_lightning.settings import Fraction
from fl_lightning.vectors import pieces

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


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

    runs_at = "server"
    option: Literal[1, 2] = 2
    momentum: Fraction = 0.0
    vectors_sent = 2
    starts_from_server = True

    @property
    @override
    def needs_summed_lr(self) -> bool:  # type: ignore[override]
        return self.option == 2

    @property
    @override
    def looks_at_samples(self) -> bool:  # type: ignore[override]
        return self.option == 1

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Take the aggregation's weighting; yield whether the reach of the clients' steps would be another one."""
        self._weighting = algorithm.aggregation.weighting
        if self.momentum and self.option == 2 and algorithm.optimizer_state == "kept":
            yield (
                f'{self!r} counts on a momentum that begins with 0 in each round. Give `optimizer_state="fresh"`, or '
                "`option=1`."
            )

    @override
    def setup(self, federation: Federation) -> None:
        """Start from c_k = c = 0."""
        self._at_start: dict[int, Tensor] = {}
        self.variates: ClientVectors
        self.add_client_vectors("variates", federation.zeros(), federation.weights(self._weighting))

    @override
    def correction(self, client: LocalClient) -> Term:
        """Return ``<c - c_k, w>``; with option 1, take the gradient at the received model first."""
        own = self.variates[client.task.client]
        if self.option == 1:
            self._at_start[client.task.client] = self.without_personal(full_gradient(client, own))
        linear = own.new_empty(len(own))
        for difference, c, c_k in pieces(linear, self.variates.mean, own):
            difference.copy_(c - c_k)
        return Term(linear=linear)

    @override
    def on_client_end(self, result: ClientResult) -> None:
        """Renew c_k."""
        variates = self.variates
        client = result.client
        own = variates[client]
        if self.option == 1:
            variates[client] = self._at_start.pop(client)
            return
        # How far a step of this optimizer goes, in steps of plain SGD.
        reach = effective_steps(result.num_steps, self.momentum) / max(1, result.num_steps)
        # What was never stepped, or with a learning rate of 0, keeps its control variate.
        renewed = own.clone()
        vectors = (renewed, own, variates.mean, result.received_parameters, result.parameters)
        tensors = zip(*(vector.split(self.federation.lengths) for vector in vectors), strict=True)
        for summed_lr, tensor in zip(result.summed_lr, tensors, strict=True):
            # The way that steps along a constant gradient of 1 go.
            way = summed_lr * reach
            if not way > 0:
                continue
            for new, c_k, c, before, after in pieces(*tensor):
                moved = before.to(c.dtype) - after
                new.copy_(c_k - c + moved / way)
        variates[client] = self.without_personal(renewed)


def full_gradient(client: LocalClient, like: Tensor) -> Tensor:
    """Return the gradient of the client's mean loss at the present weights, shaped and typed as ``like``."""
    total = torch.zeros_like(like)
    samples = 0
    for gradients, size in client.gradients():
        flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
        total.add_(flat, alpha=size)
        samples += size
    # It is 0 if no batch has a loss.
    return total / max(1, samples)


def effective_steps(steps: int, momentum: float, pull: float = 0.0) -> float:
    """Return |a| of FedNova: how far steps along a constant gradient go, in steps of plain SGD.

    With a momentum of 0.5, three steps go 1, 1.5 and 1.75, together 4.25.

    Args:
        steps: Number of steps.
        momentum: Momentum of SGD, in [0, 1), without dampening and without Nesterov's rule.
        pull: Learning rate times the weight of a proximal term, which draws the client back.
    """
    way = 0.0
    velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * way
        way += velocity
    return way
