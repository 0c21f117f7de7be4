"""FedDyn: dynamic regularisation."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from torch import Tensor

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.dynamic import DynamicRegularizer
from fl_lightning.parts.schedules.synchronous import EvaluatedModel, synchronous
from fl_lightning.parts.servers.dynamic import DynamicServer
from fl_lightning.settings import Positive


@dataclass(eq=False, repr=False)
class FedDyn(AggregationCallback):
    """FedDyn (Acar et al. 2021; eq. (5)-(12)): each client's objective is changed so that it has the server's optimum.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        alpha: Weight of the regulariser, greater than 0.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        scale_alpha: ``"size"`` divides alpha by a client's relative size, so that the fixed point is the optimum of
            the sample-weighted risk (12); ``"none"`` is the paper's form (5)-(8). With equal sizes they are the same.
        evaluate: The model that is validated, checkpointed and tested: ``"server"``, which clients receive next;
            ``"active"``, the mean of the round's local models; ``"all"``, the mean of every client's last local model,
            which the paper's curves show.
        penalty: ``"gradient"`` clips the regulariser together with the gradient. ``"weight_decay"`` leaves its
            quadratic part to the optimizer and does not clip it, as the authors' code does.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = FedDyn(alpha=0.01, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    alpha: Positive = 0.01
    clients_per_round: int | float | None = None
    _: KW_ONLY
    scale_alpha: Literal["size", "none"] = "size"
    evaluate: EvaluatedModel = "server"
    penalty: Literal["gradient", "weight_decay"] = "gradient"

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        self._regularizer = DynamicRegularizer(self.alpha, self.scale_alpha, self.penalty)
        return self.compose(
            schedule=synchronous(self.evaluate),
            objective=self._regularizer,
            aggregation=WeightedMean("uniform"),
            server_optimizer=DynamicServer(self._regularizer),
        )

    @property
    def h(self) -> Tensor:
        """The server's h, shape ``(num_parameters,)``, float64: the mean of all g_k if alpha is not scaled."""
        return -self._regularizer.alpha * self._regularizer.duals.mean

    def gradient(self, client: int) -> Tensor:
        """Return g_k, shape ``(num_parameters,)``: after exact local minimisation, the gradient of F_k at w_k.

        Raises:
            RuntimeError: Before the fit has begun; with several processes, on others than ``client % num_ranks``, on
                which g_k lives.
        """
        return -self._regularizer.alpha_of(client) * self._regularizer.duals[client]
