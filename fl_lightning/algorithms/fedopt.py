"""FedAvg with a server optimizer: momentum, Adagrad, Adam, Yogi."""

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from fl_lightning.algorithms.fedavg import AveragingCallback
from fl_lightning.parts.servers.adaptive import Adaptive, Rule
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.parts.servers.mixing import Momentum
from fl_lightning.settings import Fraction, NotNegative, Positive, Scheduled, ScheduledFraction


@dataclass(eq=False, repr=False)
class FedAvgM(AveragingCallback):
    """FedAvgM (Hsu et al. 2019; eq. (21)): momentum on the server.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`FedAvg`.

    Args:
        momentum: beta in [0, 1); with 0 and ``server_lr=1`` this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate, greater than 0. Both may be functions of the round.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = FedAvgM(momentum=0.9, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    momentum: ScheduledFraction = 0.9
    clients_per_round: int | float | None = None

    def configure_server(self) -> ServerOptimizer:
        """Return momentum on the server."""
        return Momentum(self.momentum, self.server_lr)


@dataclass(eq=False, repr=False)
class _FedOpt(AveragingCallback):
    """FedAvg with an adaptive server (Reddi et al. 2021, Algorithm 2; eq. (17)-(20))."""

    clients_per_round: int | float | None = None
    _: KW_ONLY
    server_lr: Scheduled = 0.01
    beta1: Fraction = 0.9
    tau: Positive = 1e-3
    v0: NotNegative = 0.0
    bias_correction: bool = False

    def adaptive(self, rule: Rule, beta2: float = 0.99) -> Adaptive:
        """Return the adaptive optimizer."""
        return Adaptive(
            rule, self.server_lr, self.beta1, beta2, self.tau, self.v0, bias_correction=self.bias_correction
        )


@dataclass(eq=False, repr=False)
class FedAdagrad(_FedOpt):
    """FedAdagrad (Reddi et al. 2021): ``v <- v + Delta^2; w <- w + server_lr m / (sqrt(v) + tau)``.

    The other arguments are those of :class:`FedAvg`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate, greater than 0; a function of the round makes a schedule.
        beta1: Decay of the first moment, in [0, 1): 0 as in the authors' code, 0.9 as in their Algorithm 2.
        tau: Added to the root of the second moment, greater than 0: the larger, the less the server adapts.
        v0: The initial second moment, at least 0.
        bias_correction: Whether the moments are divided by ``1 - beta^t``. The paper does not divide them.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = FedAdagrad(server_lr=0.1, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    _: KW_ONLY
    server_lr: Scheduled = 0.1
    beta1: Fraction = 0.0

    def configure_server(self) -> ServerOptimizer:
        """Return Adagrad on the server."""
        return self.adaptive("adagrad")


@dataclass(eq=False, repr=False)
class FedAdam(_FedOpt):
    """FedAdam (Reddi et al. 2021): ``v <- beta2 v + (1 - beta2) Delta^2; w <- w + server_lr m / (sqrt(v) + tau)``.

    The other arguments are those of :class:`FedAvg`.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate, greater than 0; a function of the round makes a schedule.
        beta1: Decay of the first moment, in [0, 1).
        beta2: Decay of the second moment, in [0, 1).
        tau: Added to the root of the second moment, greater than 0: the larger, the less the server adapts.
        v0: The initial second moment, at least 0.
        bias_correction: Whether the moments are divided by ``1 - beta^t``. The paper does not divide them.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = FedAdam(server_lr=0.01, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    _: KW_ONLY
    beta2: Fraction = 0.99
    rule: ClassVar[Rule] = "adam"

    def configure_server(self) -> ServerOptimizer:
        """Return Adam, or Yogi, on the server."""
        return self.adaptive(self.rule, self.beta2)


@dataclass(eq=False, repr=False)
class FedYogi(FedAdam):
    """FedYogi (Reddi et al. 2021): ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``.

    The arguments are those of :class:`FedAdam`.

    Example:
        >>> algorithm = FedYogi(server_lr=0.01, clients_per_round=2)
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    rule: ClassVar[Rule] = "yogi"
