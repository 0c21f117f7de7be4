"""SCAFFOLD: control variates."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import lightning.pytorch as pl
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.clients.optimizer_checks import changes_within_rounds, other_optimizers
from fl_lightning.parts.aggregations.base import Weighting
from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.control_variates import ControlVariates
from fl_lightning.parts.schedules.synchronous import EvaluatedModel, synchronous
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import Fraction, Scheduled


@dataclass(eq=False, repr=False)
class Scaffold(AggregationCallback):
    """SCAFFOLD (Karimireddy et al. 2020; eq. (13)-(16)): client steps are corrected by control variates.

    The local optimizer should be SGD: plain as in the paper, or with the ``momentum`` given here. Option 2 divides a
    client's update by how far its steps could reach. The model and the control variate are sent both ways.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        option: How a client's control variate is updated: 2 from its update, 1 from the gradient at the received model.
        server_lr: Server learning rate eta_g; a function of the round makes a schedule.
        momentum: Momentum of the clients' SGD, in [0, 1); there is a warning if the module has another optimizer, or if
            its learning rate changes within a round beside a momentum.
        weighting: ``"uniform"`` as in the paper, or ``"samples"``.
        evaluate: The model that is validated, checkpointed and tested, as for :class:`FedDyn`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = Scaffold(clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    option: Literal[1, 2] = 2
    server_lr: Scheduled = 1.0
    momentum: Fraction = 0.0
    weighting: Weighting = "uniform"
    evaluate: EvaluatedModel = "server"
    aggregation_settings: ClassVar[Mapping[str, object]] = {"weighting": "uniform"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        self._variates = ControlVariates(self.option, self.momentum)
        return self.compose(
            schedule=synchronous(self.evaluate),
            objective=self._variates,
            aggregation=WeightedMean(self.weighting),
            server_optimizer=Mixing(self.server_lr),
        )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Warn of a momentum by which control variates would grow without bounds."""
        if self.option != 2:
            return
        other = other_optimizers(trainer, self.momentum)
        if other:
            rank_zero_warn(
                f"Scaffold has `momentum={self.momentum}`, but the module has {other}, so that control variates are "
                "not the clients' mean gradients; with too little momentum here they grow without bounds. Use "
                "torch.optim.SGD without Nesterov momentum and dampening, and give Scaffold its momentum, or take "
                "`option=1`."
            )
        elif self.momentum and changes_within_rounds(trainer):
            rank_zero_warn(
                f"Scaffold has `momentum={self.momentum}`, and a scheduler with interval='step' changes the learning "
                "rate within a round, so that control variates are not quite the clients' mean gradients. Give "
                "interval='epoch', which steps once a round, or take `option=1`."
            )

    @property
    def control_variate(self) -> Tensor:
        """The server's c, shape ``(num_parameters,)``, float64: the mean of all c_k."""
        return self._variates.variates.mean

    def client_control_variate(self, client: int) -> Tensor:
        """Return c_k, shape ``(num_parameters,)``.

        Raises:
            RuntimeError: Before the fit has begun; with several processes, on others than ``client % num_ranks``, on
                which c_k lives.
        """
        return self._variates.variates[client]
