"""Algorithms whose clients change the loss that their ``training_step`` returns, or where its gradient is taken.

They need a module whose output layer is linear, but for FedSAM. The user's ``training_step``, with its own loss, is
what runs. Equations are numbered as in ``docs/references.md``.
"""

from dataclasses import KW_ONLY, dataclass

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.fedavg import AveragingCallback
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.exchanges.personal import PersonalParameters
from fl_lightning.parts.layout import Patterns
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.losses import (
    CalibratedLogits,
    Decorrelation,
    ModelContrast,
    NotTrueDistillation,
    Prototypes,
    TwoHeads,
)
from fl_lightning.parts.objectives.several_points import SharpnessAware
from fl_lightning.settings import NotNegative, Positive


@dataclass(eq=False, repr=False)
class MOON(AveragingCallback):
    """MOON (Li et al. 2021; eq. (60)): features are drawn to the received model's, away from the client's former ones.

    ``training_step`` runs on each batch with the received model and with the client's former one, too.

    The other arguments are those of :class:`FedAvg`.

    Args:
        mu: Weight of the contrast; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        tau: Temperature of the contrast.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.

    Example:
        >>> algorithm = MOON(mu=1.0, tau=0.5, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    mu: NotNegative = 1.0
    clients_per_round: int | float | None = None
    _: KW_ONLY
    tau: Positive = 0.5
    output_layer: str | None = None

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return ModelContrast(self.mu, self.tau, self.output_layer)


@dataclass(eq=False, repr=False)
class FedLC(AveragingCallback):
    """FedLC (Zhang et al. 2022; eq. (61)): logits are calibrated by the client's number of samples of each class.

    They are shifted where the output layer returns them, so that what ``training_step`` logs is of the shifted ones.

    The other arguments are those of :class:`FedAvg`.

    Args:
        tau: Weight of the calibration; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.

    Example:
        >>> algorithm = FedLC(tau=1.0, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    tau: NotNegative = 1.0
    clients_per_round: int | float | None = None
    _: KW_ONLY
    output_layer: str | None = None

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return CalibratedLogits(self.tau, self.output_layer)


@dataclass(eq=False, repr=False)
class FedNTD(AveragingCallback):
    """FedNTD (Lee et al. 2022; eq. (62)): clients keep what the received model says of all classes but the true one.

    ``training_step`` runs on each batch with the received model, too.

    The other arguments are those of :class:`FedAvg`.

    Args:
        beta: Weight of the distillation; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        tau: Temperature of the distillation.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.

    Example:
        >>> algorithm = FedNTD(beta=1.0, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    beta: NotNegative = 1.0
    clients_per_round: int | float | None = None
    _: KW_ONLY
    tau: Positive = 1.0
    output_layer: str | None = None

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return NotTrueDistillation(self.beta, self.tau, self.output_layer)


@dataclass(eq=False, repr=False)
class FedDecorr(AveragingCallback):
    """FedDecorr (Shi et al. 2023; eq. (63)): correlations between features cost.

    The term is that of the paper; see :class:`~fl_lightning.parts.Decorrelation` for its authors' code, which is
    stronger.

    The other arguments are those of :class:`FedAvg`.

    Args:
        beta: Weight of the term; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.

    Example:
        >>> algorithm = FedDecorr(beta=0.1, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    beta: NotNegative = 0.1
    clients_per_round: int | float | None = None
    _: KW_ONLY
    output_layer: str | None = None

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return Decorrelation(self.beta, self.output_layer)


@dataclass(eq=False, repr=False)
class FedSAM(AveragingCallback):
    """FedSAM (Qu et al. 2022; eq. (64)): clients look for flat minima, with the gradient at a point uphill of w.

    Each batch is passed through twice. That is one local step, the descent of w; its loss is the one at w.

    The other arguments are those of :class:`FedAvg`.

    Args:
        rho: Length of the way uphill; with 0 this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.

    Example:
        >>> algorithm = FedSAM(rho=0.05, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    rho: NotNegative = 0.05
    clients_per_round: int | float | None = None

    def configure_objective(self) -> LocalObjective:
        """Return the objective."""
        return SharpnessAware(self.rho)


@dataclass(eq=False, repr=False)
class FedProto(AggregationCallback):
    """FedProto (Tan et al. 2022; eq. (65)): clients train models of their own and share the mean features of classes.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        lam: Weight of the features' distance to the prototypes; with 0 this is :class:`Local`.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        output_layer: The name of the layer that returns the logits, where the loss depends on several outputs.

    Example:
        >>> algorithm = FedProto(lam=1.0, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    lam: NotNegative = 1.0
    clients_per_round: int | float | None = None
    _: KW_ONLY
    output_layer: str | None = None

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(objective=Prototypes(self.lam, self.output_layer), exchange=PersonalParameters("*"))


@dataclass(eq=False, repr=False)
class FedRoD(AggregationCallback):
    """Fed-RoD (Chen and Chao 2022; eq. (66)): a head for balanced classes, and a head of each client's own on top.

    ``training_step`` runs twice on each batch, once for each head. What it logs is of the logits for balanced classes.

    The other arguments are those of :class:`AggregationCallback`.

    Args:
        pattern: The output layer, by its name.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        head_lr: Learning rate of the clients' heads, by plain SGD.

    Example:
        >>> algorithm = FedRoD("head", clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm, ClientMetrics()])
        >>> trainer.fit(module, datamodule=data)
        >>> trainer.callback_metrics["val_acc_personal"]  # the mean over clients of their own models
    """

    pattern: Patterns
    clients_per_round: int | float | None = None
    _: KW_ONLY
    head_lr: Positive = 0.1

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(objective=TwoHeads(self.pattern, self.head_lr))
