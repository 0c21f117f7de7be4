"""A checkpoint is resumed with the clients and the algorithm that wrote it; other settings are told in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from torch import nn
from torch.nn import functional as F

from fl_lightning import (
    AggregationCallback,
    FedAsync,
    FedAvg,
    FedDyn,
    Federated,
    FederatedDataModule,
    RADFed,
    TensorDataModule,
)
from fl_lightning.data import LabelFlipping, Source
from fl_lightning.partitioners import IIDPartitioner
from fl_lightning.parts import Proximal, Redistribution, UniformSampler, WeightedMean


class Table(FederatedDataModule):
    """Thirty samples of a table."""

    def load(self) -> Source:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
        return Source(torch.utils.data.TensorDataset(x, y), y)


class Linear(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def table(seed: int) -> Table:
    return Table(IIDPartitioner(num_clients=5, seed=seed), batch_size=3)


def toy(batch_size: int | None = None, order: tuple[int, ...] = (0, 1, 2), **options: Any) -> TensorDataModule:
    clients = quadratic_clients([1, 1, 1], [1, 2, 3], [4, 4, 4])
    return TensorDataModule(clients=[clients[place] for place in order], batch_size=batch_size, **options)


def resume(
    tmp_path: Path, first: AggregationCallback, second: AggregationCallback, data: Any = toy, other: Any = None
) -> None:
    """Train two rounds with the first callback, and two more with the second."""
    module: Callable[[], Any] = Linear if data is not toy else lambda: Quadratic(lr=0.1)
    trainer = quiet_trainer(max_epochs=2, callbacks=[first])
    trainer.fit(module(), datamodule=data() if data is toy else data)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    following = quiet_trainer(max_epochs=4, callbacks=[second])
    data = other or (toy() if data is toy else data)
    following.fit(module(), datamodule=data, ckpt_path=tmp_path / "run.ckpt")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "other settings" in record.getMessage()]


def test_another_seed_of_the_partitioner_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"another federation .*order of clients differ. Resume with the same data"):
        resume(tmp_path, FedAvg(2, seed=1), FedAvg(2, seed=1), data=table(0), other=table(1))


def test_the_same_partition_is_the_same_federation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2, seed=1), FedAvg(2, seed=1), data=table(0), other=table(0))
    assert told(caplog) == []


def test_reordered_clients_are_refused(tmp_path: Path) -> None:
    def labelled(order: tuple[int, ...]) -> TensorDataModule:
        clients = [(torch.randn(6, 4), torch.full((6,), label)) for label in range(3)]
        return TensorDataModule(clients=[clients[place] for place in order], batch_size=3)

    with pytest.raises(ValueError, match="another federation"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=labelled((0, 1, 2)), other=labelled((1, 0, 2)))


def test_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"written by FedDyn, not by FedAvg. To start another algorithm from its wei"):
        resume(tmp_path, FedDyn(0.1, 2), FedAvg(2))


def test_another_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"written with Synchronous as the algorithm's `schedule`, .* Redistribution"):
        resume(tmp_path, Federated(2), Federated(2, schedule=Redistribution(3)))


@pytest.mark.parametrize("redistributions", [2, 5])
def test_a_cycle_of_another_length_is_refused(tmp_path: Path, redistributions: int) -> None:
    with pytest.raises(ValueError, match=r"2 rounds after the last aggregation, in a cycle of 3, but `redistributions"):
        resume(tmp_path, RADFed(3, 2), RADFed(redistributions, 2))


def test_after_an_aggregation_a_cycle_may_have_another_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, RADFed(2, 2, seed=1), RADFed(4, 2, seed=1))
    assert told(caplog) == ["Resuming with other settings than the checkpoint's: redistributions 2 -> 4."]


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (FedDyn(0.1, 2), FedDyn(0.2, 2), "alpha 0.1 -> 0.2"),
        (FedAvg(2), FedAvg(3, local_epochs=2), "clients_per_round 2 -> 3, .*local_epochs 1 -> 2"),
        (FedAsync(2, speeds=[1, 2, 3]), FedAsync(2, speeds=[1, 2, 4]), r"speeds \[1, 2, 3\] -> \[1, 2, 4\]"),
        (
            Federated(2, objective=Proximal(0.1), aggregation=WeightedMean("uniform")),
            Federated(sampler=UniformSampler(2), objective=Proximal(0.2), aggregation=WeightedMean("uniform")),
            r"objective Proximal\(mu=0.1\) -> Proximal\(mu=0.2\)",
        ),
    ],
    ids=["alpha", "clients", "speeds", "objective"],
)
def test_other_settings_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, line: str
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, first, second)
    (message,) = told(caplog)
    assert re.search(line, message), message


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"batch_size": 2}, "batch_size None -> 2"),
        ({"drop_last": True}, "drop_last False -> True"),
    ],
)
def test_other_batches_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: dict[str, Any], line: str
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), other=toy(**other))
    assert told(caplog) == [f"Resuming with other settings than the checkpoint's: {line}."]


def test_a_poison_that_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    poisoned = table(0)
    poisoned.poison_with(LabelFlipping([1], 3))
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=poisoned, other=table(0))
    line = "poisons [LabelFlipping(clients=[1], num_classes=3)] -> []"
    assert told(caplog) == [f"Resuming with other settings than the checkpoint's: {line}."]


def test_the_same_settings_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        speeds = list(range(1, 4))
        resume(tmp_path, FedAsync(2, speeds=speeds, seed=3), FedAsync(2, speeds=speeds, seed=4))
    assert told(caplog) == []


class WithRate(Quadratic):
    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


def test_another_learning_rate_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)])
    first.fit(WithRate(0.1), datamodule=toy())
    first.save_checkpoint(tmp_path / "run.ckpt")
    second = quiet_trainer(max_epochs=2, callbacks=[FedAvg(2)])
    with caplog.at_level("INFO"):
        second.fit(WithRate(0.2), datamodule=toy(), ckpt_path=tmp_path / "run.ckpt")
    (message,) = [r.getMessage() for r in caplog.records if "hyperparameters differ" in r.getMessage()]
    assert "lr 0.1 -> 0.2. Optimizers and schedules keep" in message
    assert second.optimizers[0].param_groups[0]["lr"] == 0.1


def test_the_seed_of_a_resumed_run_does_not_stay_for_another_fit(tmp_path: Path) -> None:
    def fit(callback: FedAvg, rounds: int, **options: Any) -> float:
        module = Quadratic(lr=0.1)
        quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=toy(), **options)
        return module.w.item()

    first = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1, seed=1)])
    first.fit(Quadratic(lr=0.1), datamodule=toy())
    first.save_checkpoint(tmp_path / "run.ckpt")
    callback = FedAvg(1, seed=2)
    assert fit(callback, 8, ckpt_path=tmp_path / "run.ckpt") == fit(FedAvg(1, seed=1), 8)
    assert callback.seed == 1
    assert fit(callback, 8) == fit(FedAvg(1, seed=2), 8) != fit(FedAvg(1, seed=1), 8)
    assert callback.seed == 2
