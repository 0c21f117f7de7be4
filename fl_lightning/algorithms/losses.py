"""Algorithms whose clients change the loss that their ``training_step`` returns, or where its gradient is taken.

They need a module whose output layer is linear, but for FedSAM. Equations are numbered as in
``docs/references.md``.
"""

from __future__ import annotations

from typing import Unpack

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.fedavg import FedAvg, FedAvgOptions
from fl_lightning.algorithms.options import FederatedOptions
from fl_lightning.checks import NotNegative, Positive
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchange import PersonalParameters
from fl_lightning.parts.losses import (
    CalibratedLogits,
    Decorrelation,
    ModelContrast,
    NotTrueDistillation,
    Prototypes,
    SharpnessAware,
    TwoHeads,
)
from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.personal import Patterns


class MOON(FedAvg):
    """MOON (Li et al. 2021; eq. (60)): features are drawn to the received model's, away from the client's former ones.

    The module's ``forward`` is called with the received model and with the client's former one.

    Args:
        mu: Weight of the contrast; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        tau: Temperature of the contrast.
        options: The other arguments of :class:`FedAvg`.
    """

    def __init__(
        self,
        mu: NotNegative = 1.0,
        clients_per_round: int | float | None = None,
        *,
        tau: Positive = 0.5,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.mu, self.tau = mu, tau
        super().__init__(clients_per_round, **options)

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return ModelContrast(self.mu, self.tau)


class FedLC(FedAvg):
    """FedLC (Zhang et al. 2022; eq. (61)): logits are calibrated by the client's number of samples of each class.

    Args:
        tau: Weight of the calibration; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        options: The other arguments of :class:`FedAvg`.
    """

    def __init__(
        self,
        tau: NotNegative = 1.0,
        clients_per_round: int | float | None = None,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.tau = tau
        super().__init__(clients_per_round, **options)

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return CalibratedLogits(self.tau)


class FedNTD(FedAvg):
    """FedNTD (Lee et al. 2022; eq. (62)): clients keep what the received model says of all classes but the true one.

    The module's ``forward`` is called with the received model.

    Args:
        beta: Weight of the distillation; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        tau: Temperature of the distillation.
        options: The other arguments of :class:`FedAvg`.
    """

    def __init__(
        self,
        beta: NotNegative = 1.0,
        clients_per_round: int | float | None = None,
        *,
        tau: Positive = 1.0,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.beta, self.tau = beta, tau
        super().__init__(clients_per_round, **options)

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return NotTrueDistillation(self.beta, self.tau)


class FedDecorr(FedAvg):
    """FedDecorr (Shi et al. 2023; eq. (63)): correlations between features cost.

    Args:
        beta: Weight of the term; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        options: The other arguments of :class:`FedAvg`.
    """

    def __init__(
        self,
        beta: NotNegative = 0.1,
        clients_per_round: int | float | None = None,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.beta = beta
        super().__init__(clients_per_round, **options)

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return Decorrelation(self.beta)


class FedSAM(FedAvg):
    """FedSAM (Qu et al. 2022; eq. (64)): clients look for flat minima, with the gradient at a point uphill of w.

    Each batch is passed through twice.

    Args:
        rho: Length of the way uphill; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        options: The other arguments of :class:`FedAvg`.
    """

    def __init__(
        self,
        rho: NotNegative = 0.05,
        clients_per_round: int | float | None = None,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.rho = rho
        super().__init__(clients_per_round, **options)

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return SharpnessAware(self.rho)


class FedProto(AggregationCallback):
    """FedProto (Tan et al. 2022; eq. (65)): clients train models of their own and share the mean features of classes.

    Args:
        lam: Weight of the features' distance to the prototypes; with 0 this is :class:`Local`.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        options: The other arguments of :class:`AggregationCallback`.
    """

    def __init__(
        self,
        lam: NotNegative = 1.0,
        clients_per_round: int | float | None = None,
        **options: Unpack[FederatedOptions],
    ) -> None:
        self.lam = lam
        super().__init__(clients_per_round, **options)

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(objective=Prototypes(self.lam), exchange=PersonalParameters("*"))


class FedRoD(AggregationCallback):
    """Fed-RoD (Chen and Chao 2022; eq. (66)): a head for balanced classes, and a head of each client's own on top.

    Args:
        pattern: The output layer, by its name.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        head_lr: Learning rate of the clients' heads, by plain SGD.
        options: The other arguments of :class:`AggregationCallback`.
    """

    def __init__(
        self,
        pattern: Patterns,
        clients_per_round: int | float | None = None,
        *,
        head_lr: Positive = 0.1,
        **options: Unpack[FederatedOptions],
    ) -> None:
        self.pattern, self.head_lr = pattern, head_lr
        super().__init__(clients_per_round, **options)

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(objective=TwoHeads(self.pattern, self.head_lr))
