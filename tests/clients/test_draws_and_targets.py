"""What clients draw depends on seed, client, round and purpose; their targets are those of their own samples."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.data import SampleSplit
from fl_lightning.datamodules import TorchDatasetDataModule
from fl_lightning.partitioners import ExplicitPartitioner
from fl_lightning.testing.fits import fit


class Draws(L.Callback):
    """Notes what is drawn in hooks, in a loss that a hook asks for, and in training."""

    def __init__(self) -> None:
        self.drawn: dict[tuple[Any, ...], float] = {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        self.drawn["start", client.task.seeds] = float(torch.rand(()))
        self.drawn["loss", client.task.seeds] = client.loss()

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.drawn["end", result.task.seeds] = float(torch.rand(()))
        self.drawn["step", result.task.seeds] = pl_module.drawn


class Drawing(Quadratic):
    """Its loss is drawn."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.drawn = float(torch.rand(()))
        return super().training_step(batch, batch_idx) * 0 + self.drawn


def test_draws_depend_on_the_seed_the_client_the_round_and_the_purpose() -> None:
    seen: list[dict[tuple[Any, ...], float]] = []
    for seed in (1, 1, 2):
        data = TensorDataModule(quadratic_clients([1.0, 1.0], [1.0, 1.0]))
        fit(FedAvg(1.0, seed=seed), Drawing(0.1), data, 2, draws := Draws())
        seen.append(draws.drawn)
    first, again, other = seen
    assert first == again
    # four purposes, two clients and two rounds
    assert len({*first.values(), *other.values()}) == 2 * 4 * 2 * 2


class OfBatches(TorchDatasetDataModule):
    def outputs_and_targets(self, batch: Any, outputs: Any) -> Any:
        return outputs, batch[1] + len(batch[1])


class Transferred(TorchDatasetDataModule):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0], batch[1] + len(batch[1])


@pytest.mark.parametrize(("kind", "more"), [(TorchDatasetDataModule, 0), (OfBatches, 2), (Transferred, 2)])
def test_targets_are_those_of_the_clients_samples(kind: type[TorchDatasetDataModule], more: int) -> None:
    class Asks(L.Callback):
        def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
            targets[client.task.client] = client.targets().tolist()

    targets: dict[int, list[float]] = {}
    content = TensorDataset(torch.ones(5).double(), torch.arange(5.0).double())
    partitioner = ExplicitPartitioner([[4, 0], [1, 3]])
    split = SampleSplit(val=0.0, test=0.0)
    data = kind(content, partitioner, split=split, targets=[0] * 5)
    fit(FedAvg(1.0), Quadratic(0.1), data, 1, Asks())
    assert targets == {0: [4.0 + more, 0.0 + more], 1: [1.0 + more, 3.0 + more]}
