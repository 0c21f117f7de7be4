"""Parts that a user writes: a local objective, a sampler and a server optimizer of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients, quiet_trainer
from torch import Tensor

from fl_lightning import Federated, RADFed, TensorDataModule
from fl_lightning.parts import (
    ClientSampler,
    Correction,
    LocalClient,
    LocalObjective,
    Redistribution,
    ServerOptimizer,
    WeightedMean,
)


class ProximalCorrection(Correction):
    """A term whose gradient is written out."""

    def add(self, parameters: Sequence[Tensor], start: Sequence[Tensor], linear: Sequence[Tensor]) -> None:
        for parameter, received in zip(parameters, start, strict=True):
            assert parameter.grad is not None
            parameter.grad.add_(parameter.detach() - received, alpha=self.pull)


class Proximal(LocalObjective):
    """F_k(w) + mu/2 |w - w_received|^2."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def correction(self, client: LocalClient) -> Correction:
        return ProximalCorrection(self.mu)


class First(ClientSampler):
    """Always the first clients."""

    def cohort_size(self, num_clients: int) -> int:
        return 2

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        return np.arange(2)


class Overshoot(ServerOptimizer):
    """Goes twice as far as the aggregate."""

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return model + 2 * (aggregate - model)


def test_o3_proximal_gradient_steps() -> None:
    # two steps with eta = 0.1, mu = 1 from 2 take the clients to 1.64 and 1.4
    clients = quadratic_clients(a=[1.0, 4.0], c=[0.0, 1.0])
    weights = fit_quadratic(
        Federated(1.0, objective=Proximal(1.0), local_epochs=2), Quadratic(0.1, start=2.0), clients, rounds=1
    )
    assert float(weights) == pytest.approx((1.64 + 1.4) / 2, abs=1e-15)


def test_the_correction_is_clipped_with_the_gradient() -> None:
    data = TensorDataModule(clients=quadratic_clients(a=[1.0], c=[0.0]), batch_size=None)
    module = Quadratic(0.1, start=2.0)
    trainer = quiet_trainer(
        max_epochs=1, gradient_clip_val=0.5, callbacks=[Federated(1.0, objective=Proximal(1.0), local_epochs=2)]
    )
    trainer.fit(module, datamodule=data)
    # both gradients, 2 and 1.95 - 0.05, are longer than 0.5
    assert float(module.w) == pytest.approx(2.0 - 2 * 0.1 * 0.5, abs=1e-7)


def test_redistribution_with_a_local_objective_keeps_to_the_received_model() -> None:
    # one gradient step at the received model: the proximal term is zero there, whichever model that is
    clients = quadratic_clients(a=[0.5, 0.5], c=[0.0, 1.0])
    callback = Federated(2, schedule=Redistribution(2), objective=Proximal(1.0), aggregation=WeightedMean("uniform"))
    weights = fit_quadratic(callback, Quadratic(1.0), clients, rounds=2)
    assert float(weights) == pytest.approx(0.375, abs=1e-15)


def test_radfed_takes_a_sampler_and_a_server_optimizer() -> None:
    module = Quadratic(1.0)
    clients = quadratic_clients(a=[1.0, 1.0, 1.0], c=[2.0, 4.0, 100.0])
    weights = fit_quadratic(RADFed(1, sampler=First(), server=Overshoot()), module, clients, rounds=1)
    assert module.seen == [2.0, 4.0]
    assert float(weights) == 6.0  # 0 + 2 * (3 - 0)
