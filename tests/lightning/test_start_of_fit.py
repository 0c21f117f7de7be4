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
from fl_lightning.data import SampleSplit, Source, WithinClientSplit
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner


class Rows(FederatedDataModule):
    def load(self) -> Source:
        x, y = samples(60)
        return Source(TensorDataset(x, y), np.asarray(y))


#: The data, the algorithm, and the end or whole of the line.
LINES: list[tuple[Any, Any, str]] = [
    (
        *(Rows(IIDPartitioner(6)), FedAvg(0.5)),
        "2 of 6 clients train (20 samples), 2 validate and 2 test; 1 trains in each round.",
    ),
    (
        *(Rows(IIDPartitioner(4), split=SampleSplit(0.1, 0.0)), FedAvg(sampler=BernoulliSampler(0.5))),
        "4 clients train (54 samples), the server validates on 6 samples and none tests; about 2 train in each round.",
    ),
    (
        *(Rows(IIDPartitioner(3), split=WithinClientSplit(0.1, 0.1)), FedBuff(2, 5)),
        "3 clients train (48 samples), 3 validate and 3 test; 5 results arrive in each round.",
    ),
    (
        *(TensorDataModule(clients=clients_of(4, 5, 6), val=[samples(3)]), FedAvg(1.0)),
        "3 clients train (15 samples), 1 validates and none tests; 3 train in each round.",
    ),
    # 60 samples, 8 for each of 7 clients
    (
        *(Rows(DirichletPartitioner(7, alpha=1.0)), FedAvg(2)),
        "in each round. 4 of 60 samples belong to no client (DirichletPartitioner leaves them out).",
    ),
    (
        *(Rows(lambda labels: [[0], [1, 2], list(range(4, 60))], split=WithinClientSplit()), FedAvg(2)),
        "2 train in each round. 1 of 60 samples belongs to no client.",
    ),
]


@pytest.mark.parametrize(("data", "algorithm", "end"), LINES)
def test_one_line_counts_those_who_train_validate_and_test(
    caplog: pytest.LogCaptureFixture, data: Any, algorithm: Any, end: str
) -> None:
    with caplog.at_level("INFO"):
        quiet_trainer(max_epochs=2, callbacks=[algorithm]).fit(ValidatedClassifier(), datamodule=data)
    [line] = [message for message in caplog.messages if "in each round" in message]
    assert line.endswith(end)


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


def test_central_training_counts_no_clients(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    with caplog.at_level("INFO"):
        quiet_trainer(max_epochs=1).fit(Classifier(), datamodule=TensorDataModule(clients=clients_of(4)))
    assert [message for message in caplog.messages if "in each round" in message] == []
    assert len([message for message in caplog.messages if "centrally" in message]) == 1
