"""Warnings of a fit in processes of its own: of results that do not come back, and not of `sync_dist`."""

from __future__ import annotations

import warnings

import pytest
import torch
from helpers.toys import quiet_trainer

from fl_lightning import ClientMetrics, ExamplePrivacy, FedAvg, PersonalParameters, TensorDataModule
from fl_lightning.models import LogisticRegressionClassifier


def test_what_stays_in_processes_that_end_is_told_and_not_sync_dist(capfd: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    clients = [(torch.randn(8, 4), torch.randint(3, (8,))) for _ in range(2)]
    metrics, federated = ClientMetrics(), FedAvg(1.0, seed=0, exchange=PersonalParameters("*bias"))
    callbacks = [federated, metrics, ExamplePrivacy(1.0, noise_multiplier=1.0, delta=0.01)]
    trainer = quiet_trainer(max_epochs=1, callbacks=callbacks, strategy="ddp_fork", devices=2)
    module, data = LogisticRegressionClassifier(4, 3), TensorDataModule(clients=clients, val=clients)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        # those of other processes too
        warnings.showwarning = lambda message, *_, **__: print(message, flush=True)
        trainer.fit(module, datamodule=data)
        assert metrics.values == {}
        trainer.validate(module, datamodule=data, verbose=False)
    told = capfd.readouterr().out
    assert "`ClientMetrics.values`" in told and "made them in processes that have ended" in told
    assert "sync_dist" not in told
