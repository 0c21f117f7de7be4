"""Messages take the time of their bits."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer

import fl_lightning as fl
from fl_lightning.diagnostics import VirtualTime
from fl_lightning.parts import PersonalParameters, TopK, VirtualClock

# A model is four float64 values: 256 bits.
CLIENTS = clients_that_reach([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], [1, 1])
START = [0.0] * 4


def time_after(callback: fl.AggregationCallback, *others: Any, rounds: int = 1) -> float:
    """Return the virtual time after some rounds."""
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *others])
    trainer.fit(Quadratic(0.1, start=START), datamodule=fl.TensorDataModule(CLIENTS, batch_size=None))
    return float(trainer.callback_metrics["fed/virtual_time"])


@pytest.mark.parametrize(
    ("options", "time"),
    [
        ({}, 3.0),
        ({"bandwidth": 128}, 3.0 + 2 + 2),
        ({"bandwidth": 128, "upload_bandwidth": 64}, 3.0 + 2 + 4),
        # the second client is the last one
        ({"bandwidth": [512, 256], "upload_bandwidth": [256, 0.1 * 256]}, 3.0 + 1 + 10),
        ({"bandwidth": 128, "delay": 0.5}, 3.5 + 2 + 2),
    ],
)
def test_a_round_takes_as_long_as_its_slowest_client_s_work_and_messages(options: dict[str, Any], time: float) -> None:
    clock = VirtualClock(2, work=6, **options)
    assert time_after(fl.FedAvg(1.0), VirtualTime(clock)) == pytest.approx(time, abs=1e-9)
    # An asynchronous round of as many arrivals as there are equal clients ends with them.
    if not isinstance(clock.bandwidth, list):
        assert time_after(fl.FedAsync(2, clock=clock)) == pytest.approx(time, abs=1e-9)


def test_compression_personal_parameters_and_further_vectors_count() -> None:
    clock = VirtualClock(1, work=1, bandwidth=64)
    # up one value of 64 bits and its place of two bits
    compressed = fl.FedAvg(1.0, exchange=TopK(0.25))
    assert time_after(compressed, VirtualTime(clock)) == pytest.approx(1 + 4 + 66 / 64)
    assert time_after(fl.FedAvg(1.0, exchange=PersonalParameters("*")), VirtualTime(clock)) == 1.0
    assert time_after(fl.Scaffold(1.0), VirtualTime(clock)) == 1 + 2 * (4 + 4)
