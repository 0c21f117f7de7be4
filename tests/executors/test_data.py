"""How stacks read the data: each sample once, whatever the sizes, the workers or the batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from fl_lightning import ClientDatasetsModule, FedAvg, Participation, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

EXECUTORS = ["sequential", "vectorized", "auto"]


class Counting(Dataset[Any]):
    """Scales its samples by how many have been read."""

    reads = 0

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> Any:
        Counting.reads += 1
        return self.x[place] * (1 + 0.01 * (Counting.reads % 5)), self.y[place]


def fit(module: Module, data: Any, executor: Any, rounds: int = 2, **options: Any) -> Tensor:
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, executor=executor, seed=1, **options)])
    trainer.fit(module, datamodule=data)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@pytest.mark.auto_decides
def test_each_sample_is_read_once_and_in_one_order() -> None:
    clients = clients_of((6,), (16, 8, 5, 13))
    ends = []
    for executor in EXECUTORS:
        Counting.reads = 0
        data = ClientDatasetsModule([Counting(*own) for own in clients], batch_size=4)
        ends.append(fit(Module(linear()), data, executor))
        assert Counting.reads == 2 * (16 + 8 + 5 + 13)
    torch.testing.assert_close(ends[1], ends[0])
    torch.testing.assert_close(ends[2], ends[0])


class Doubles(Counting):
    def __getitem__(self, place: int) -> Any:
        return 2 * self.x[place], self.y[place]


def test_data_of_other_processes_are_stacked_and_so_are_tensors_beside_other_data() -> None:
    weights = []
    # The last three clients have the first three slots.
    available = Participation(available=lambda t: [1, 2, 3])
    for executor, workers in (("sequential", 0), ("vectorized", 0), (stacks := VectorizedExecutor(), 1)):
        *first, last = clients_of((6,), (4, 8, 13, 6))
        datasets = [*(TensorDataset(*own) for own in first), Doubles(*last)]
        data = ClientDatasetsModule(datasets, batch_size=4, num_workers=workers)
        weights.append(fit(Module(linear()), data, executor, participation=available))
    assert stacks.cause is None
    assert all(torch.allclose(weights[0], others, rtol=0, atol=1e-12) for others in weights[1:])


class Drops(Module):
    """Drops units in some order of axes."""

    def __init__(self, drop: Callable[[Tensor], Tensor]) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)))
        self.drop = drop

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers[1](self.drop(self.layers[0](batch[0]))), batch[1])


@pytest.mark.parametrize(
    ("drop", "is_stacked"),
    [
        (lambda hidden: F.dropout(hidden, 0.5), True),
        (lambda hidden: F.alpha_dropout(hidden.t(), 0.5, training=True).t(), False),
    ],
)
def test_whole_batches_of_unequal_clients(drop: Callable[[Tensor], Tensor], is_stacked: bool) -> None:
    """The first clients share no shape, later ones do."""
    ends = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        data = TensorDataModule(clients_of((6,), (5, 6, 7, 8) * 3), batch_size=None)
        ends.append(fit(Drops(drop), data, executor))
    assert torch.allclose(*ends, rtol=0, atol=1e-12)
    assert (stacks.cause is None) == is_stacked


class LosesByTheBatch(Module):
    """Has another loss on batches of one sample."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss * (3 if len(batch[1]) == 1 else 1 + 0.3 * (batch_idx % 3))


@pytest.mark.parametrize(
    ("sizes", "accumulate"),
    [
        ((20, 20, 12, 4), 1),
        pytest.param((24, 32, 24, 40, 33), 1, marks=pytest.mark.long),
        pytest.param((8, 12, 9, 8), 2, marks=pytest.mark.long),
    ],
)
def test_sizes_of_batches(sizes: tuple[int, ...], accumulate: int) -> None:
    """Small last batches, and clients longer than all before, come early and late."""
    ends = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = LosesByTheBatch(linear())
        callback = FedAvg(1.0, executor=executor, seed=1, local_epochs=2)
        trainer = quiet_trainer(max_epochs=2, callbacks=[callback], accumulate_grad_batches=accumulate)
        trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), sizes), batch_size=4))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    assert torch.allclose(*ends, rtol=0, atol=1e-10)
    assert stacks.cause is None


class OfModule(Doubles):
    """Samples that are scaled by what a trainer counts."""

    held: Any = None

    def __getitem__(self, place: int) -> Any:
        return self.x[place] * (1 + 0.01 * self.held.global_step), self.y[place]


def test_data_that_look_at_the_run_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        module = Module(linear())
        monkeypatch.setattr(OfModule, "held", module)
        datasets = [OfModule(*own) for own in clients_of((6,), (16, 8, 5, 13))]
        ends.append(fit(module, ClientDatasetsModule(datasets, batch_size=4), executor))
    assert torch.allclose(*ends, rtol=0, atol=1e-10)
    assert stacks.cause is not None


class AddsNoise(Module):
    """Has a hook of the batches' transfer, which adds noise to the samples."""

    factor = 1.0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        if self.trainer.training:
            x = x + 0.1 * torch.randn_like(x)
        return x, y

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.factor


class ScalesTheLoss(AddsNoise):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.factor = float(batch[0].mean())
        return batch


class CentersByAWeight(AddsNoise):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] - self.layers[0].weight.detach().mean(), batch[1]


class ScalesByTheLossBefore(AddsNoise):
    last: Any = 1.0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] * self.last, batch[1]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.last = loss.detach()
        return loss


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (AddsNoise, "None"),
        (ScalesTheLoss, "change `self.factor`"),
        (CentersByAWeight, "read the module's weights"),
        pytest.param(ScalesByTheLossBefore, "read `self.last`", marks=pytest.mark.long),
    ],
)
def test_hooks_of_the_batches_transfer(kind: type[AddsNoise], cause: str) -> None:
    ends = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        ends.append(fit(kind(linear()), TensorDataModule(clients_of((6,), (8, 13, 6)), batch_size=4), executor))
    assert torch.allclose(*ends, rtol=0, atol=1e-12)
    assert cause in str(stacks.cause)
