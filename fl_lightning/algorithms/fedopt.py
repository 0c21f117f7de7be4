"""FedAvg with a server optimizer: momentum, Adagrad, Adam, Yogi."""

from __future__ import annotations

from typing import ClassVar, Unpack

from fl_lightning.algorithms.fedavg import FedAvg, FedAvgOptions
from fl_lightning.checks import Fraction, NotNegative, Positive, Scheduled, ScheduledFraction
from fl_lightning.parts.server import Adaptive, Momentum, Rule, ServerOptimizer


class FedAvgM(FedAvg):
    """FedAvgM (Hsu et al. 2019; eq. (21)): momentum on the server.

    Equations are numbered as in ``docs/references.md``.

    Args:
        momentum: beta in [0, 1); with 0 and ``server_lr=1`` this is FedAvg.
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate, greater than 0. Both may be functions of the round.
        options: The other arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    def __init__(
        self,
        momentum: ScheduledFraction = 0.9,
        clients_per_round: int | float | None = None,
        *,
        server_lr: Scheduled = 1.0,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.momentum = momentum
        super().__init__(clients_per_round, server_lr=server_lr, **options)

    def configure_server(self) -> ServerOptimizer:
        """Return momentum on the server."""
        return Momentum(self.momentum, self.server_lr)


class _FedOpt(FedAvg):
    """FedAvg with an adaptive server (Reddi et al. 2021, Algorithm 2; eq. (17)-(20))."""

    rule: ClassVar[Rule]

    def __init__(
        self,
        clients_per_round: int | float | None,
        server_lr: Scheduled,
        adaptive: dict[str, float],
        bias_correction: bool,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        self.beta1, self.tau, self.v0 = adaptive["beta1"], adaptive["tau"], adaptive["v0"]
        self.beta2, self.bias_correction = adaptive["beta2"], bias_correction
        super().__init__(clients_per_round, server_lr=server_lr, **options)

    def configure_server(self) -> ServerOptimizer:
        """Return the adaptive optimizer."""
        moments = {"beta1": self.beta1, "beta2": self.beta2, "tau": self.tau, "v0": self.v0}
        return Adaptive(self.rule, self.server_lr, **moments, bias_correction=self.bias_correction)


class FedAdagrad(_FedOpt):
    """FedAdagrad (Reddi et al. 2021): ``v <- v + Delta^2; w <- w + server_lr m / (sqrt(v) + tau)``.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate, greater than 0; a function of the round makes a schedule.
        beta1: Decay of the first moment, in [0, 1): 0 as in the authors' code, 0.9 as in their Algorithm 2.
        tau: Added to the root of the second moment, greater than 0: the larger, the less the server adapts.
        v0: The initial second moment, at least 0.
        bias_correction: Whether the moments are divided by ``1 - beta^t``. The paper does not divide them.
        options: The other arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    rule: ClassVar[Rule] = "adagrad"

    def __init__(
        self,
        clients_per_round: int | float | None = None,
        *,
        server_lr: Scheduled = 0.1,
        beta1: Fraction = 0.0,
        tau: Positive = 1e-3,
        v0: NotNegative = 0.0,
        bias_correction: bool = False,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        adaptive = {"beta1": beta1, "beta2": 0.0, "tau": tau, "v0": v0}
        super().__init__(clients_per_round, server_lr, adaptive, bias_correction, **options)


class FedAdam(_FedOpt):
    """FedAdam (Reddi et al. 2021): ``v <- beta2 v + (1 - beta2) Delta^2; w <- w + server_lr m / (sqrt(v) + tau)``.

    Args:
        clients_per_round: Clients that train in a round: a float is the fraction C (default 0.1), an int the number m.
        server_lr: Server learning rate, greater than 0; a function of the round makes a schedule.
        beta1: Decay of the first moment, in [0, 1).
        beta2: Decay of the second moment, in [0, 1).
        tau: Added to the root of the second moment, greater than 0: the larger, the less the server adapts.
        v0: The initial second moment, at least 0.
        bias_correction: Whether the moments are divided by ``1 - beta^t``. The paper does not divide them.
        options: The other arguments of :class:`FedAvg`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    rule: ClassVar[Rule] = "adam"

    def __init__(
        self,
        clients_per_round: int | float | None = None,
        *,
        server_lr: Scheduled = 0.01,
        beta1: Fraction = 0.9,
        beta2: Fraction = 0.99,
        tau: Positive = 1e-3,
        v0: NotNegative = 0.0,
        bias_correction: bool = False,
        **options: Unpack[FedAvgOptions],
    ) -> None:
        adaptive = {"beta1": beta1, "beta2": beta2, "tau": tau, "v0": v0}
        super().__init__(clients_per_round, server_lr, adaptive, bias_correction, **options)


class FedYogi(FedAdam):
    """FedYogi (Reddi et al. 2021): ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``.

    The arguments are those of :class:`FedAdam`.
    """

    rule: ClassVar[Rule] = "yogi"
