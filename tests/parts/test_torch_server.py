"""PyTorch's optimizers on the server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quadratic_clients
from torch import Tensor

from fl_lightning import FedAdam, FedAvg, Federated
from fl_lightning.parts import Federation, Layout, Momentum, ServerOptimizer, TorchServer

THREE = [[1.0, -1.0, 0.5], [0.5, -2.0, 0.5], [2.0, 0.0, 0.0]]


def walk(server: ServerOptimizer, aggregates: list[list[float]]) -> list[list[float]]:
    """Return the server's ways from 0 over a matrix of one row and a bias, whose aggregates are given."""
    model = torch.zeros(3, dtype=torch.float64)
    shapes = torch.Size([1, 2]), torch.Size([1])
    server.begin_fit(Federation(np.ones(1), model, Layout(("weight", "bias"), shapes, 2, (32, 32))))
    way = []
    for round_index, aggregate in enumerate(aggregates):
        server.begin_round(round_index)
        model = server.step(model, torch.tensor(aggregate, dtype=torch.float64))
        server.keep()
        way.append(model.tolist())
    return way


def test_sgd_with_rate_1_is_fedavg_bit_for_bit() -> None:
    class Single(Quadratic):
        def __init__(self) -> None:
            super().__init__(0.3, [0.5] * 7)
            self.float()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step([each.float() for each in batch], batch_idx)

    optima = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).tolist()
    clients = clients_that_reach(optima, [1, 2, 3, 4, 5])
    callbacks = FedAvg(3, seed=1), Federated(3, server=TorchServer(torch.optim.SGD), seed=1)
    fedavg, sgd = (fit_quadratic(callback, Single(), clients, 4) for callback in callbacks)
    assert torch.equal(fedavg, sgd)


def test_a_scheduled_rate_and_an_option_over_three_rounds_by_hand() -> None:
    server = TorchServer(torch.optim.SGD, lambda t: 1 / (1 + t), weight_decay=1.0)
    # w - rate (w - aggregate + w), with the rates 1, 1/2 and 1/3
    expected = [[1.0, -1.0, 0.5], [0.25, -1.0, 0.25], [0.75, -1 / 3, 0.25 / 3]]
    np.testing.assert_allclose(walk(server, THREE), expected, rtol=1e-12)


def test_momentum_and_a_corrected_adam_are_pytorchs() -> None:
    sgd = TorchServer(torch.optim.SGD, 0.5, momentum=0.9)
    np.testing.assert_allclose(walk(sgd, THREE), walk(Momentum(0.9, 0.5), THREE), rtol=1e-12)
    adam = Federated(1.0, server=TorchServer(torch.optim.Adam, 0.1, betas=(0.9, 0.99), eps=0.01))
    fedadam = FedAdam(1.0, server_lr=0.1, tau=0.01, bias_correction=True)
    clients = quadratic_clients([1.0, 4.0], [0.0, 1.0])
    weights, same = (fit_quadratic(callback, Quadratic(0.1), clients, 3) for callback in (adam, fedadam))
    assert float(weights) == pytest.approx(float(same), rel=1e-12)


def test_matrices_stay_matrices() -> None:
    class RowMean(torch.optim.Optimizer):
        """Steps a matrix along the mean of its row, and leaves vectors."""

        def __init__(self, params: Any, lr: float) -> None:
            super().__init__(params, {"lr": lr})

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.ndim == 2:
                        parameter -= group["lr"] * parameter.grad.mean(1, keepdim=True)

    assert walk(TorchServer(RowMean), [[1.0, 3.0, 5.0]]) == [[2.0, 2.0, 0.0]]
