"""Parts beside each other: personal parameters and clients' vectors, clients left out, sums, collusion, steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.toys import BodyAndHead, Halved, Quadratic, fit_clients, fit_quadratic, quadratic_clients
from torch import Tensor

from fl_lightning import FedAvg, FedDyn, QFedAvg, Scaffold, parts


class TwoParts(BodyAndHead):
    """f_k = (body - x_k)^2 / 2 + (head - y_k)^2 / 2."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return 0.5 * (self.body.weight - x).square().mean() + 0.5 * (self.head.weight - y).square().mean()


@pytest.mark.parametrize(
    ("make", "vectors"),
    [
        (lambda **options: Scaffold(1.0, option=1, **options), 2),
        (lambda **options: Scaffold(1.0, option=2, **options), 2),
        (lambda **options: FedDyn(0.5, 1.0, **options), 1),
    ],
)
def test_personal_parameters_reach_the_clients_own_optimum(make: Any, vectors: int) -> None:
    personal = parts.PersonalParameters("head")
    callback = make(exchange=personal, local_epochs=5, seed=1)
    optima = (10.0, -4.0, 3.0)
    module = TwoParts()
    fit_clients(callback, module, quadratic_clients([1.0, 2.0, 6.0], list(optima)), 15)
    assert [float(personal.of_client(k)["head.weight"]) for k in range(3)] == pytest.approx(optima, abs=1e-3)
    assert float(module.body.weight) == pytest.approx(3.0, abs=1e-3)  # the mean of 1, 2 and 6
    assert callback.algorithm.traffic.values_up == 15 * 3 * vectors  # of two parameters one travels


@pytest.mark.parametrize(
    ("exchange", "bits"),
    [
        (parts.SignSGD(), 10 + 64),  # signs and their scale
        (parts.QSGD(4), 10 * 4 + 64),  # levels and a norm
        (parts.TopK(0.2), 2 * (64 + 4)),  # values and their places
        (parts.SecureAggregation(10.0, bits=16), 10 * 16),
    ],
)
def test_a_client_that_is_left_out_sends_what_others_send(exchange: parts.Exchange, bits: int) -> None:
    ones = torch.ones(1, 10, dtype=torch.float64)
    clients = [(ones, ones), (ones, 2 * ones), (ones, ones * math.nan)]
    callback = FedAvg(1.0, weighting="uniform", exchange=exchange)
    fit_quadratic(callback, Quadratic(0.1, [0.0] * 10), clients, 1)
    assert callback.algorithm.report.left_out == [2]
    assert callback.algorithm.traffic.bits_up == 3 * bits


def test_aggregations_that_know_one_learning_rate_refuse_others() -> None:
    clients = quadratic_clients([1.0, 1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="lipschitz"):
        fit_quadratic(QFedAvg(0.0, 1.0), Halved(0.1), clients, rounds=1)
    fit_quadratic(QFedAvg(0.0, 1.0, lipschitz=10.0), Halved(0.1), clients, rounds=1)
    with pytest.raises(ValueError, match="momentum"):
        fit_quadratic(FedAvg(1.0, aggregation=parts.NormalizedMean(0.9)), Quadratic(0.1), clients, rounds=1)
    with pytest.raises(ValueError, match="learning rate"):
        fit_quadratic(FedAvg(1.0, aggregation=parts.NormalizedMean()), Halved(0.1), clients, rounds=1)


def test_another_private_fit_of_the_same_model_is_refused() -> None:
    module, clients = Quadratic(0.1), quadratic_clients([1.0] * 4, [1.0, 2.0, 3.0, 4.0])
    exchange = parts.DifferentialPrivacy(1.0, noise_multiplier=2.0, delta=1e-3)
    callback = FedAvg(1.0, weighting="uniform", exchange=exchange)
    fit_quadratic(callback, module, clients, rounds=2)
    with pytest.raises(ValueError, match=r"^DifferentialPrivacy has spent an epsilon of 2\.05 on"):
        fit_quadratic(callback, module, clients, rounds=2)
    spent = exchange.spent
    fit_quadratic(callback, Quadratic(0.1), clients, rounds=2)  # new weights
    assert exchange.spent == spent
