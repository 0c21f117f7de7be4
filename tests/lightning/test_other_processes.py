"""Warnings of a fit in processes of its own: of results that do not come back, and not of `sync_dist`."""

from __future__ import annotations

import warnings

import pytest
import torch
from helpers.toys import quiet_trainer

from fl_lightning import ClientMetrics, FedAvg, PersonalParameters, TensorDataModule
from fl_lightning.models import LogisticRegressionClassifier

STAYS = "`ClientMetrics.values`"
FORKS = {"strategy": "ddp_fork", "devices": 2}
MEAN = "made them in processes that have ended"


def fit_and_validate() -> None:
    torch.manual_seed(0)
    clients = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(2)]
    metrics, federated = ClientMetrics(), FedAvg(1.0, seed=0, exchange=PersonalParameters("*bias"))
    trainer = quiet_trainer(max_epochs=1, callbacks=[federated, metrics], **FORKS)
    module, data = LogisticRegressionClassifier(4, 3), TensorDataModule(clients=clients, val=clients)
    trainer.fit(module, datamodule=data)
    print("after the fit:", metrics.values)
    trainer.validate(module, datamodule=data, verbose=False)


def test_what_stays_in_processes_that_end_is_told_and_not_sync_dist(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # those of other processes too
        warnings.showwarning = lambda message, *_, **__: print(message, flush=True)
        fit_and_validate()
    told = capfd.readouterr().out
    assert "after the fit: {}" in told and STAYS in told and MEAN in told
    assert "sync_dist" not in told
