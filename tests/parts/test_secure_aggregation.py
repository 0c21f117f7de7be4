"""Secure aggregation, simulated: sums by hand, overflow, unbiased rounding, bits, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_clients

from fl_lightning import FedAvg, parts
from fl_lightning.diagnostics import Communication


def fit(exchange: Any, optima: list[list[float]]) -> tuple[list[float], Any]:
    """Train one round, in which every client reaches its optimum from 0."""
    clients, module = clients_that_reach(optima, [1] * len(optima)), Quadratic(1.0, [0.0] * len(optima[0]))
    callback = FedAvg(1.0, weighting="uniform", exchange=exchange)
    trainer = fit_clients(callback, module, clients, 1, Communication())
    return module.w.tolist(), trainer.callback_metrics


def test_sums_of_whole_steps_are_exact() -> None:
    # clip 7 and 4 bits of precision: steps of 1
    weights, logged = fit(parts.SecureAggregation(7.0, bits=8, precision=4), [[1.0, -2.0], [3.0, 7.0], [-7.0, 4.0]])
    assert weights == pytest.approx([-1.0, 3.0], abs=1e-15)
    assert logged["fed/overflows"] == logged["fed/clipped_values"] == 0
    assert logged["fed/bytes_up"] == 3 * 2 * 8 / 8


def test_a_sum_that_leaves_the_field_wraps_around_and_is_counted() -> None:
    # a field of 4 bits holds -8 to 7: 5 + 4 = 9 becomes -7, 7 + 7 = 14 becomes -2; 9 is clipped to 7
    weights, logged = fit(parts.SecureAggregation(7.0, bits=4, precision=4), [[5.0, 7.0, 1.0], [4.0, 9.0, 1.0]])
    assert weights == [-3.5, -1.0, 1.0]
    assert logged["fed/overflows"] == 2
    assert logged["fed/clipped_values"] == 1


def test_a_process_without_clients_adds_nothing_to_a_large_sum() -> None:
    # single precision would round 2**24 + 1
    exchange = parts.SecureAggregation(1.0, bits=32, precision=2)
    start = torch.zeros(2, dtype=torch.float64)
    ranks: dict[str, Any] = {"rank": 1, "num_ranks": 2, "sum_over_ranks": lambda mine: mine + (2**24 + 1)}
    exchange.begin_fit(parts.Federation(np.ones(2), start, parts.Layout.of_parameters(2), **ranks))
    exchange.begin_round(0)
    seen, _ = exchange.on_sum(start, 1.0)
    assert seen.tolist() == [2.0**24 + 1] * 2


def test_personal_values_stay_out_of_the_sum() -> None:
    exchange = [parts.PersonalParameters("other"), parts.SecureAggregation(7.0, bits=8, precision=4)]

    class Two(Quadratic):
        def __init__(self) -> None:
            super().__init__(1.0, [0.0, 0.0])
            self.other = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) - self.other.sum()

    clients, module, communication = clients_that_reach([[1.0, -2.0], [3.0, 4.0]], [1, 1]), Two(), Communication()
    fit_clients(FedAvg(1.0, weighting="uniform", exchange=exchange), module, clients, 1, communication)
    assert module.w.tolist() == [2.0, 1.0]
    assert module.other.tolist() == [1.0] * 3
    assert communication.values["fed/bytes_up"] == 2 * 2


def test_clients_with_noise_of_their_own_may_be_summed() -> None:
    # z = 0: the clipped updates are 1, -1 and 1; their sum is a whole number of steps of 1/7
    noise = parts.LocalDifferentialPrivacy(1.0, noise_multiplier=0.0, delta=1e-5)
    exchange = [noise, parts.SecureAggregation(1.0, bits=8, precision=4)]
    weights, logged = fit(exchange, [[3.0], [-2.0], [4.0]])
    assert weights == pytest.approx([1 / 3], abs=1e-15)
    assert logged["fed/clipped_values"] == 0
    assert logged["fed/local_epsilon"] == float("inf")
