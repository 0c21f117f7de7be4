"""Local differential privacy: clipped updates, noise, accounts under every schedule, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_clients, fit_quadratic, quadratic_clients

from fl_lightning import FedAvg, FedBuff, RADFed
from fl_lightning.parts import ClientResult, Federation, Layout, LocalDifferentialPrivacy, Median, Task
from fl_lightning.parts.exchanges.privacy.accounting import Mechanism, epsilon_of


def private(noise: float = 1.0, clip: float = 1.0) -> LocalDifferentialPrivacy:
    return LocalDifferentialPrivacy(clip, noise_multiplier=noise, delta=1e-5)


def test_updates_are_clipped_and_get_their_own_noise() -> None:
    exchange, start = private(noise=2.0, clip=0.5), torch.zeros(20_000, dtype=torch.float64)
    exchange.begin_fit(Federation(np.ones(3), start, Layout.of_parameters(20_000)))
    exchange.begin_round(0)
    update = torch.zeros_like(start)
    update[0] = 1e6
    sent = [exchange.upload(ClientResult(Task(k, k, 1), start, update, 1)).delta for k in range(3)]
    for each in sent:
        assert float(each[1:].std()) == pytest.approx(2.0 * 0.5, rel=0.03)
        assert abs(float(each[0]) - 0.5) < 5.0
    assert abs(float((sent[0] * sent[1]).mean())) < 5 / 20_000**0.5
    weights = fit_quadratic(
        FedAvg(1.0, exchange=private(noise=0.0)), Quadratic(1.0, [0.0]), clients_that_reach([[3.0]], [1]), 2
    )
    assert weights.tolist() == [2.0]  # one at a time


@pytest.mark.parametrize(
    ("make", "sent"),
    [
        (lambda **k: FedAvg(1.0, **k), 4),
        (lambda **k: FedAvg(1.0, aggregation=Median(), **k), 4),
        (lambda **k: RADFed(2, 1.0, **k), 4),
        (lambda **k: FedBuff(2, 3, speeds=[2, 1, 1], **k), 6),  # the fast one of three sends twice as often
    ],
    ids=["FedAvg", "Median", "RADFed", "FedBuff"],
)
def test_epsilon_is_that_of_the_client_that_sent_most(make: Any, sent: int) -> None:
    exchange = private(noise=20.0)
    clients = quadratic_clients([1.0] * 3, [1.0, 2.0, 3.0])
    trainer = fit_clients(make(exchange=exchange, executor="sequential"), Quadratic(0.1), clients, 4)
    # two updates differ by up to twice the clip
    assert exchange.spent == pytest.approx(epsilon_of([(Mechanism(10.0, 1.0), sent)], 1e-5))
    assert float(trainer.callback_metrics["fed/local_epsilon"]) == pytest.approx(exchange.spent)
    assert trainer.callback_metrics["fed/local_delta"] == pytest.approx(1e-5)
