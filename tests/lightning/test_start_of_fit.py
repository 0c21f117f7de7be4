"""A fit begins with one line that says how many clients do what."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from helpers.comparison import Classifier, ValidatedClassifier, clients_of, samples
from helpers.toys import quiet_trainer
from torch.utils.data import TensorDataset

from fl_lightning import BernoulliSampler, FedAvg, FedBuff, FederatedDataModule, TensorDataModule
from fl_lightning.data import SampleSplit, Source, Split, WithinClientSplit
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner


class Rows(FederatedDataModule):
    def load(self) -> Source:
        x, y = samples(60)
        return Source(TensorDataset(x, y), np.asarray(y))


def told(caplog: pytest.LogCaptureFixture, algorithm: Any, data: Any, rounds: int = 1) -> list[str]:
    """Return the lines of a fit that count clients."""
    with caplog.at_level("INFO"):
        quiet_trainer(max_epochs=rounds, callbacks=[algorithm]).fit(ValidatedClassifier(), datamodule=data)
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if "in each round" in line]


@pytest.mark.parametrize(
    ("clients", "split", "algorithm", "line"),
    [
        (6, None, FedAvg(0.5), "2 of 6 clients train (20 samples), 2 validate and 2 test; 1 trains in each round."),
        (
            4,
            SampleSplit(0.1, 0.0),
            FedAvg(sampler=BernoulliSampler(0.5)),
            "4 clients train (54 samples), the server validates on 6 samples and none tests; "
            "about 2 train in each round.",
        ),
        (
            3,
            WithinClientSplit(0.1, 0.1),
            FedBuff(2, 5),
            "3 clients train (48 samples), 3 validate and 3 test; 5 results arrive in each round.",
        ),
    ],
)
def test_it_counts_those_who_train_validate_and_test(
    caplog: pytest.LogCaptureFixture, clients: int, split: Split | None, algorithm: Any, line: str
) -> None:
    assert told(caplog, algorithm, Rows(IIDPartitioner(clients), split=split)) == [line]


def test_it_comes_once_a_fit(caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataModule(clients=clients_of(4, 5, 6), val=[samples(3)])
    line = "3 clients train (15 samples), 1 validates and none tests; 3 train in each round."
    assert told(caplog, FedAvg(1.0), data, rounds=3) == [line]


def test_too_few_clients_are_a_warning() -> None:
    def warned(algorithm: Any, *sizes: int) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            quiet_trainer(max_epochs=1, callbacks=[algorithm]).fit(
                Classifier(), datamodule=TensorDataModule(clients=clients_of(*sizes))
            )
        return [str(each.message) for each in caught if str(each.message).startswith("Only ")]

    assert "Only one client trains" in warned(FedAvg(1.0), 4)[0]
    assert "`clients_per_round=0.1`" in warned(FedAvg(), 4, 5, 6)[0]
    for asked in (FedAvg(1), FedBuff(2, 1), FedAvg(0.7)):  # it was meant, results arrive, and 2 of 3
        assert warned(asked, 4, 5, 6) == []


def test_samples_of_no_client_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    # 60 samples, 8 for each of 7 clients
    [line] = told(caplog, FedAvg(2), Rows(DirichletPartitioner(7, alpha=1.0)))
    assert line.endswith("in each round. 4 of 60 samples belong to no client (DirichletPartitioner leaves them out).")
    caplog.clear()
    [line] = told(caplog, FedAvg(2), Rows(lambda labels: [[0], [1, 2], list(range(4, 60))], split=WithinClientSplit()))
    assert line.endswith("2 train in each round. 1 of 60 samples belongs to no client.")


def test_central_training_counts_no_clients(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    with caplog.at_level("INFO"):
        quiet_trainer(max_epochs=1).fit(Classifier(), datamodule=TensorDataModule(clients=clients_of(4)))
    messages = [record.getMessage() for record in caplog.records]
    assert not [message for message in messages if "in each round" in message]
    assert len([message for message in messages if "centrally" in message]) == 1
