"""FedDyn's objective, with a vector that each client keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.federation import Federation, LocalClient
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.corrections import Term
from fl_lightning.settings import Positive


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

    runs_at = "both"
    alpha: Positive
    scale_alpha: Literal["size", "none"] = "size"
    penalty: Literal["gradient", "weight_decay"] = "gradient"
    starts_from_server = True

    @override
    def setup(self, federation: Federation) -> None:
        """Start from lambda_k = 0."""
        sizes = federation.sizes
        relative = np.ones(len(sizes))
        if self.scale_alpha == "size":
            federation.check_sizes_stay('`scale_alpha="size"`', 'Give `scale_alpha="none"`.')
            relative = sizes * len(sizes) / sizes.sum()
        self._alphas = self.alpha / relative
        self.duals: ClientVectors
        self.add_client_vectors("duals", federation.zeros())
        self.units: list[float | str | None]
        self.add_state("units", [self.alpha, self.scale_alpha])

    @override
    def load_state_dict(self, state: Any) -> None:
        """Take a checkpoint's state.

        Raises:
            ValueError: If the lambda_k are in units of another alpha.
        """
        if state["units"] != self.units:
            raise ValueError(f"`alpha` and `scale_alpha` must be the checkpoint's {state['units']}, got {self.units}.")
        super().load_state_dict(state)

    @property
    @override
    def uses_gradients_alone(self) -> bool:
        return type(self).correction is DynamicRegularizer.correction

    def alpha_of(self, client: int) -> float:
        """Return alpha_k."""
        return float(self._alphas[client])

    @override
    def correction(self, client: LocalClient) -> Term:
        """Return ``alpha_k <lambda_k, w> + alpha_k/2 |w - w_t|^2``."""
        alpha = self.alpha_of(client.task.client)
        dual = self.duals[client.task.client]
        if self.penalty == "gradient":
            return Term(pull=alpha, linear=alpha * dual)
        # alpha/2 |w - w_t|^2 is alpha/2 |w|^2 - alpha <w_t, w> and a constant.
        received, _ = self.federation.layout.split(client.received)
        return Term(linear=alpha * (dual - received), weight_decay=alpha)

    @override
    def on_client_end(self, result: ClientResult) -> None:
        """Add the client's drift to lambda_k."""
        dual = self.duals[result.client]
        self.duals[result.client] = dual + self.without_personal(result.delta)
