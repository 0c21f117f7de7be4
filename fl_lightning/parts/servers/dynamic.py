"""FedDyn's server."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.objectives.dynamic import DynamicRegularizer
from fl_lightning.parts.part import is_among, walk
from fl_lightning.parts.servers.base import ServerOptimizer

if TYPE_CHECKING:
    from fl_lightning.parts.algorithm import Algorithm


@dataclass(eq=False)
class DynamicServer(ServerOptimizer):
    """``theta <- mean of the active clients + mean of all lambda_k`` (FedDyn, eq. (7), (8), (11)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        objective: The clients' objective, which keeps lambda_k; the mean of all is ``-h / alpha``.

    Raises:
        TypeError: If ``objective`` is no :class:`DynamicRegularizer`.
        ValueError: When an algorithm is made, if its objective is not ``objective``.
    """

    objective: DynamicRegularizer

    @override
    def check_with(self, algorithm: Algorithm) -> Iterable[str]:
        """Yield whether no client renews the lambda_k that this part reads."""
        if not is_among(self.objective, walk(algorithm.objective)):
            yield f"`objective` of {self!r} must be the algorithm's objective, got {algorithm.objective!r}."

    @override
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.objective.duals.commit()
        return aggregate + self.objective.duals.mean
