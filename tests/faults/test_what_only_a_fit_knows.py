"""Values that only a fit can know to be wrong: of clients, windows and metrics that are not there."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
from helpers.algorithms import Net, data
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer

from fl_lightning import (
    FedAsync,
    FedAvg,
    Participation,
    TensorDataModule,
    VirtualClock,
)
from fl_lightning.diagnostics import (
    Communication,
)


def fit(callback: Any, *others: Any, rounds: int = 2, clients: int = 6) -> L.Trainer:
    data = TensorDataModule(quadratic_clients([1.0] * clients, [float(k) for k in range(clients)]), batch_size=None)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *others])
    trainer.fit(Quadratic(0.5), datamodule=data)
    return trainer


@pytest.mark.parametrize("available", [[True, False, True, False, False, False], [0.5, 1.5], [0, 6]])
def test_clients_that_can_be_reached_are_indices(available: Any) -> None:
    with pytest.raises(ValueError, match=r"`available\(0\)`"):
        fit(FedAvg(2, participation=Participation(available=lambda t: available)))


def test_windows_are_of_clients_that_exist() -> None:
    with pytest.raises(ValueError, match="`online` must name training clients, 0 to 5, got 99"):
        fit(FedAsync(2, clock=VirtualClock(online={99: [(0, 1)]})))


def test_a_monitor_that_is_never_logged_is_an_error_or_told() -> None:
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(2), Communication(0.9, "val_accuracy")])
    with pytest.raises(ValueError, match="`monitor` must be a metric that the module logs, got 'val_accuracy'; there "):
        trainer.fit(Net(), datamodule=data())
    with pytest.warns(UserWarning, match="'val_acc' was never logged, since there was no validation"):
        fit(FedAvg(2), Communication(0.9))
