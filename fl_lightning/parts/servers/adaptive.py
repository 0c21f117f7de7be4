"""Adagrad, Adam and Yogi on the server (FedOpt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.settings import Fraction, NotNegative, Positive, Scheduled, check_fields
from fl_lightning.vectors import is_finite

Rule = Literal["adagrad", "adam", "yogi"]


@dataclass(eq=False)
class Adaptive(ServerOptimizer):
    """Adagrad, Adam or Yogi on the server (FedOpt, Reddi et al. Algorithm 2; eq. (17)-(20)).

    With ``Delta = aggregate - w``: ``m <- beta1 m + (1 - beta1) Delta``; v by the rule; ``w <- w + lr m / (sqrt(v) +
    tau)``. PyTorch's Adam corrects the bias of m and v, and starts v at 0; its Adagrad has no m; it has no Yogi.

    Equations are numbered as in ``docs/references.md``.

    Args:
        rule: ``"adagrad"``: v + Delta^2; ``"adam"``: beta2 v + (1 - beta2) Delta^2; ``"yogi"``:
            v - (1 - beta2) Delta^2 sign(v - Delta^2).
        lr: Server learning rate, greater than 0; a function of the round makes a schedule. ``None`` takes 0.01, as
            :class:`~fl_lightning.FedAdam` and :class:`~fl_lightning.FedYogi` do, and for Adagrad 0.1, as
            :class:`~fl_lightning.FedAdagrad` does.
        beta1: Decay of the first moment, in [0, 1); ``None`` takes 0.9, and 0 for Adagrad.
        beta2: Decay of the second moment, in [0, 1); Adagrad has none.
        tau: Added to the root of the second moment, greater than 0: the larger, the less the server adapts.
        v0: The initial second moment, at least 0.
        bias_correction: Whether m is divided by ``1 - beta1^t`` and (except for Adagrad) v by ``1 - beta2^t`` in step
            t, as other implementations do; the paper does not.

    Raises:
        FloatingPointError: In a step, if an update is so large that v becomes infinite.
        ValueError: If an argument is out of its range.
    """

    rule: Rule
    lr: Scheduled | None = None
    beta1: Fraction | None = None
    beta2: Fraction = 0.99
    tau: Positive = 1e-3
    v0: NotNegative = 0.0
    bias_correction: bool = False

    @override
    def __post_init__(self) -> None:
        check_fields(self)
        is_adagrad = self.rule == "adagrad"
        if self.lr is None:
            self.lr = 0.1 if is_adagrad else 0.01
        if self.beta1 is None:
            self.beta1 = 0.0 if is_adagrad else 0.9

    @override
    def setup(self, federation: Federation) -> None:
        """Return to m = 0 and v = v0."""
        self.m: Tensor | None
        self.add_state("m", None)
        self.v: Tensor | None
        self.add_state("v", None)
        self.steps: int
        self.add_state("steps", 0)

    @override
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        beta1 = self.beta1 or 0.0
        delta = aggregate - model
        m = torch.zeros_like(delta) if self.m is None else self.m
        v = torch.full_like(delta, self.v0) if self.v is None else self.v
        m = beta1 * m + (1 - beta1) * delta
        v = self._second_moment(v, delta.square())
        if not is_finite(v):
            raise FloatingPointError(
                f"The second moment of {self!r} is infinite: the clients' update is too large, up to "
                f"{float(delta.abs().max()):.3g}. Lower their learning rate, or give `exchange=Clip(...)`."
            )
        self.m = m
        self.v = v
        self.steps += 1
        if self.bias_correction:
            m = m / (1 - beta1**self.steps)
            if self.rule != "adagrad":
                v = v / (1 - self.beta2**self.steps)
        step = (self.at("lr") * m).div_(v.sqrt().add_(self.tau))
        return step.add_(model)

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the second moment after an update of this square."""
        if self.rule == "adagrad":
            return v + square
        if self.rule == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        return v - (1 - self.beta2) * square * torch.sign(v - square)
