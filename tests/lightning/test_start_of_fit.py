"""A fit says in single lines how many clients do what, how they train, and why it ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.comparison import ValidatedClassifier, clients_of, samples
from helpers.toys import quiet_trainer
from helpers.written import assert_as_in, messages
from torch.utils.data import TensorDataset

from fl_lightning import BernoulliSampler, FedALA, FedAvg, FedBuff, FederatedDataModule, Participation, TensorDataModule
from fl_lightning.data import SampleSplit, Source, WithinClientSplit
from fl_lightning.partitioners import DirichletPartitioner, IIDPartitioner


class Rows(FederatedDataModule):
    """Sixty samples."""

    def load(self) -> Source:
        x, y = samples(60)
        return Source(TensorDataset(x, y), np.asarray(y))


def fit(data: Any, *algorithm: Any, **options: Any) -> Callable[[Path], Any]:
    trainer = {"max_epochs": 2, "callbacks": [*algorithm], **options}
    return lambda _: quiet_trainer(**trainer).fit(ValidatedClassifier(), datamodule=data)


THREE, TWO = TensorDataModule(clients_of(4, 5, 6), val=[samples(3)]), TensorDataModule(clients_of(8, 8), batch_size=4)
PARTS = [[0], [1, 2], list(range(4, 60))]

#: A fit, whose lines are in the text file.
FITS: dict[str, Callable[[Path], Any]] = {
    "a split of clients": fit(Rows(IIDPartitioner(6)), FedAvg(0.5)),
    "a server that validates": fit(
        Rows(IIDPartitioner(4), split=SampleSplit(0.1, 0.0)), FedAvg(sampler=BernoulliSampler(0.5))
    ),
    "a split within clients": fit(Rows(IIDPartitioner(3), split=WithinClientSplit(0.1, 0.1)), FedBuff(2, 5)),
    "a client that validates": fit(THREE, FedAvg(1.0)),
    "8 of 60 samples for each of 7 clients": fit(Rows(DirichletPartitioner(7, alpha=1.0)), FedAvg(2)),
    "a sample of nobody": fit(Rows(lambda labels: PARTS, split=WithinClientSplit()), FedAvg(2)),
    "central training": fit(TWO),
    "two steps of each client": fit(TWO, FedAvg(2), max_steps=5, max_epochs=-1),
    "clients that mix models": fit(TWO, FedALA("layers.2", 2, executor="vectorized")),
    "nobody in the second round": fit(
        TWO, FedAvg(2, participation=Participation(available=lambda t: [] if t else [0, 1]))
    ),
}


def test_lines_of_a_fit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if "fl_lightning" in record.pathname]
        caplog.clear()
        return lines

    with caplog.at_level("INFO"):
        assert_as_in(Path(__file__).with_suffix(".txt"), messages(FITS, tmp_path, told), tmp_path)
