"""Local objectives: each is a correction of a client's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fl_lightning.arguments import check_choice, check_count, check_fraction, check_not_negative, check_positive, plain
from fl_lightning.parts.client_states import ClientStates, states_of_fit
from fl_lightning.parts.correction import Correction as Correction
from fl_lightning.parts.federation import ClientResult, Federation, LocalClient, Task
from fl_lightning.parts.fednova_norm import fednova_norm
from fl_lightning.parts.guards.checked_returns import checked_correction, checked_loss
from fl_lightning.parts.guards.contracts import returns
from fl_lightning.parts.hyperparameter import Hyperparameter, Scheduled
from fl_lightning.parts.of_held import flag_of_held, vectors_of_held
from fl_lightning.parts.part import Part, passes_on
from fl_lightning.sentences import LOAD_WEIGHTS


class LocalObjective(Part):
    """The plain objective F_k, and the base of all others.

    An objective that holds another one does what that one does, unless it overrides it: its flags, its loss, and its
    correction, if it holds only one.
    """

    #: Vectors of the model's length that travel each way for a client: SCAFFOLD sends its control variate too.
    vectors_sent: int = vectors_of_held()
    #: Whether :attr:`ClientResult.summed_lr` is needed.
    needs_summed_lr: bool = flag_of_held()
    #: Whether all clients of a round must start from the server's model.
    starts_from_server: bool = flag_of_held()
    #: The :class:`Chain` of exchanges beside the objective; set when a fit begins.
    exchange: Any = None

    @property
    def _held_objectives(self) -> list[LocalObjective]:
        return [part for part in self.held_parts if isinstance(part, LocalObjective)]

    @property
    def sends_loss(self) -> bool:
        """Whether clients send a loss; see :meth:`loss_of`."""
        own = type(self).loss_of is not LocalObjective.loss_of
        return own or any(held.sends_loss for held in self._held_objectives)

    @property
    def correcting(self) -> list[str]:
        """The method that makes corrections, as text, if there is one."""
        plain_one = type(self).correction is LocalObjective.correction
        return [] if plain_one else [f"`{type(self).__name__}.correction`"]

    def of_shared(self, values: Tensor) -> Tensor:
        """Return values with 0 for personal parameters, which the server never sees; shape ``(num_parameters,)``."""
        places = None if self.exchange is None else self.exchange.sent_places()
        return values if places is None else torch.zeros_like(values).index_copy(0, places, values[places])

    @returns(checked_correction)
    def correction(self, client: LocalClient) -> Correction | None:
        """Return the term that is added to F_k; ``None`` for nothing. Called before the client's first batch.

        Raises:
            TypeError: If the objective holds several others, and does not define how their terms are joined.
        """
        held = self._held_objectives
        if len(held) > 1:
            raise TypeError(
                f"{type(self).__name__} holds {len(held)} objectives and does not define `correction`, so it is not "
                "known how their terms are joined. Define it: it may return a `Correction` with the sum of their "
                "`pull` and `linear`."
            )
        return held[0].correction(client) if held else None

    @passes_on
    def on_client_end(self, result: ClientResult) -> None:
        """Called when a client is done, with its result as it leaves the client: before any exchange.

        A client that hands back NaN or infinite values is left out before, without this call.
        """
        for held in self._held_objectives:
            held.on_client_end(result)

    @returns(checked_loss)
    def loss_of(self, task: Task) -> float | None:
        """Return the loss that the client sends with its result; ``None`` for none.

        Called when it is done, before :meth:`on_client_end`.
        """
        losses = (held.loss_of(task) for held in self._held_objectives if held.sends_loss)
        return next(losses, None)


class Proximal(LocalObjective):
    """``F_k(w) + mu/2 |w - w'|^2`` with w' the received model (FedProx, Li et al. 2020; eq. (4)).

    With redistribution w' is the circulating model that the client received (RADFedp), not the server's.

    Equations are numbered as in ``docs/references.md``.

    Args:
        mu: Weight of the proximal term, at least 0; 0 is the plain objective. A function of the round makes a schedule.
        name: What the user calls the weight, for errors.

    Raises:
        ValueError: If ``mu`` is negative or not finite.
    """

    def __init__(self, mu: Scheduled, name: str = "mu") -> None:
        self._mu = Hyperparameter(name, mu, check_not_negative, "0 is FedAvg's objective.")
        self.mu = mu

    def correction(self, client: LocalClient) -> Correction | None:
        """Return the proximal term, with the mu of the round in which the client received its model."""
        mu = self._mu.at(client.task.round)
        return Correction(pull=mu) if mu else None


def proximal(mu: Scheduled, name: str = "mu") -> Proximal | None:
    """Return the proximal objective; ``None``, the plain one, for a weight of 0.

    Args:
        mu: As for :class:`Proximal`.
        name: What the user calls it, for errors.

    Raises:
        ValueError: If ``mu`` is negative or not finite.
    """
    objective = Proximal(mu, name)
    return None if not callable(mu) and mu == 0 else objective


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

    Raises:
        ValueError: If an argument is out of its range.
    """

    starts_from_server = True

    def __init__(
        self,
        alpha: float,
        scale_alpha: Literal["size", "none"] = "size",
        penalty: Literal["gradient", "weight_decay"] = "gradient",
    ) -> None:
        check_positive("alpha", alpha, "Usual values are 0.1, 0.01 and 0.001.")
        check_choice("scale_alpha", scale_alpha, ("size", "none"))
        check_choice("penalty", penalty, ("gradient", "weight_decay"))
        self.alpha, self.scale_alpha, self.penalty = plain(alpha), scale_alpha, penalty
        self._alphas = np.empty(0)

    def on_fit_start(self, federation: Federation) -> None:
        """Start from lambda_k = 0."""
        sizes = federation.sizes
        relative = sizes * len(sizes) / sizes.sum() if self.scale_alpha == "size" else np.ones(len(sizes))
        self._alphas = self.alpha / relative
        self.states = ClientStates(federation, torch.zeros_like(federation.model[: federation.num_parameters]))

    @property
    def duals(self) -> ClientStates:
        """Every client's lambda_k.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        return states_of_fit(self.states)

    def alpha_of(self, client: int) -> float:
        """Return alpha_k."""
        return float(self._alphas[client])

    def state_dict(self) -> dict[str, Any]:
        """Return alpha and how it is scaled: the lambda_k are in their units."""
        return {"alpha": self.alpha, "scale_alpha": self.scale_alpha}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that the clients' lambda_k are in this objective's units.

        Raises:
            ValueError: If the state is one of another alpha.
        """
        if state != self.state_dict():
            raise ValueError(
                f"The checkpoint was written with {state}, and {self!r} has another value: the clients' stored vectors "
                f"are in units of alpha. Resume with the same values. To start anew from the weights: {LOAD_WEIGHTS}."
            )

    def correction(self, client: LocalClient) -> Correction:
        """Return ``alpha_k <lambda_k, w> + alpha_k/2 |w - w_t|^2``."""
        alpha, dual = self.alpha_of(client.task.client), self.duals[client.task.client]
        if self.penalty == "gradient":
            return Correction(pull=alpha, linear=alpha * dual)
        return Correction(linear=alpha * (dual - client.start[: len(dual)]), weight_decay=alpha)

    def on_client_end(self, result: ClientResult) -> None:
        """Add the client's drift to lambda_k."""
        dual = self.duals[result.task.client]
        self.duals.put(result.task.client, dual + self.of_shared(result.parameters - result.start[: len(dual)]))


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

    Raises:
        ValueError: If ``option`` is neither 1 nor 2, or ``momentum`` is out of its range or given beside option 1.
    """

    vectors_sent = 2
    starts_from_server = True

    def __init__(self, option: Literal[1, 2] = 2, momentum: float = 0.0) -> None:
        check_fraction("momentum", momentum, "It is that of the clients' SGD.")
        check_count("option", option, hint="It is 1 or 2, as in the paper's Algorithm 1.")
        if option > 2:
            raise ValueError(f"`option` must be 1 or 2, as in the paper's Algorithm 1, got {option!r}.")
        if option == 1 and momentum:
            raise ValueError(f"`momentum` has no effect with `option=1`, got {momentum}. Leave one of them out.")
        self.option, self.momentum = option, plain(momentum)
        self.needs_summed_lr = option == 2
        self._lengths: list[int] = []
        self._at_start: dict[int, Tensor] = {}
        self._by_samples = False

    def check_beside(self, parts: Mapping[str, Any]) -> None:
        """Take the aggregation's weighting."""
        super().check_beside(parts)
        self._by_samples = parts["aggregation"].weighting == "samples"

    def on_fit_start(self, federation: Federation) -> None:
        """Start from c_k = c = 0."""
        self._lengths = list(federation.lengths)
        zeros = torch.zeros_like(federation.model[: federation.num_parameters])
        self.states = ClientStates(federation, zeros, federation.sizes if self._by_samples else None)

    @property
    def variates(self) -> ClientStates:
        """Every client's c_k.

        Raises:
            RuntimeError: Before the fit has begun.
        """
        return states_of_fit(self.states)

    def correction(self, client: LocalClient) -> Correction:
        """Return ``<c - c_k, w>``; with option 1, take the gradient at the received model first."""
        own = self.variates[client.task.client]
        if self.option == 1:
            self._at_start[client.task.client] = self.of_shared(full_gradient(client, own))
        return Correction(linear=(self.variates.mean - own).to(own.dtype))

    def on_client_end(self, result: ClientResult) -> None:
        """Renew c_k."""
        variates, client = self.variates, result.task.client
        own = variates[client]
        if self.option == 1:
            variates.put(client, self._at_start.pop(client))
            return
        lr = torch.tensor(result.summed_lr, dtype=variates.mean.dtype).repeat_interleave(torch.tensor(self._lengths))
        lr = lr.to(own.device)
        if result.num_steps:
            lr = lr * (fednova_norm(result.num_steps, self.momentum) / result.num_steps)
        moved = result.start[: len(own)].to(lr.dtype) - result.parameters
        renewed = own - variates.mean + moved / lr.where(lr > 0, 1.0)
        # what was never stepped, or with a learning rate of 0, keeps its control variate
        variates.put(client, self.of_shared(renewed.where(lr > 0, own.to(lr.dtype)).to(own.dtype)))


def full_gradient(client: LocalClient, like: Tensor) -> Tensor:
    """Return the gradient of the client's mean loss at the present weights, shaped and typed as ``like``."""
    total, samples = torch.zeros_like(like), 0
    for gradients, size in client.gradients():
        total.add_(torch.cat([gradient.flatten() for gradient in gradients.values()]), alpha=size)
        samples += size
    return total / max(1, samples)  # 0 if no batch has a loss
