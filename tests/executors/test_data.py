"""How stacks read the data: each sample once, whatever the sizes, the workers or the batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, fit_quadratic
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset
from zoo.entry import Entry, vectors
from zoo.fitting import ends_alike, fit
from zoo.modules.base import Changed, Classifier, Losing
from zoo.outcome import compare

from fl_lightning import ClientDatasetsModule, FedAvg, Participation, TensorDataModule


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


def clients_of(*sizes: int) -> Any:
    return vectors(sizes, torch.float64).clients


@pytest.mark.auto_decides
def test_each_sample_is_read_once_and_in_one_order() -> None:
    def datamodule() -> Any:
        Counting.reads = 0
        return ClientDatasetsModule([Counting(*own) for own in clients_of(16, 8, 5, 13)], batch_size=4)

    found = []
    for executor in ("sequential", "vectorized", "auto"):
        found.append(fit(Entry("", Classifier, datamodule=datamodule), executor).everything)
        assert Counting.reads == 2 * (16 + 8 + 5 + 13)
    assert compare(found[0], found[1], 1e-9) == compare(found[0], found[2], 1e-9) == []


class Doubles(Counting):
    def __getitem__(self, place: int) -> Any:
        return 2 * self.x[place], self.y[place]


def test_data_of_other_processes_are_stacked_and_so_are_tensors_beside_other_data() -> None:
    # The last three clients have the first three slots.
    federated = {"participation": Participation(available=lambda t: [1, 2, 3])}
    found = []
    for executor, workers in (("sequential", 0), ("vectorized", 0), ("vectorized", 1)):
        *first, last = clients_of(4, 8, 13, 6)
        datasets = [*(TensorDataset(*own) for own in first), Doubles(*last)]
        data = ClientDatasetsModule(datasets, batch_size=4, num_workers=workers)
        entry = Entry("", Classifier, datamodule=lambda data=data: data, federated=federated)
        found.append(fit(entry, executor))
    assert found[1].cause is found[2].cause is None
    assert not [line for each in found[1:] for line in compare(found[0].everything, each.everything, 1e-9)]


@pytest.mark.parametrize(("of_first", "of_second"), [([[4, 4]], [[4.5, 4.5]]), ([[4.0, 4.0]], [[4.5]])])
def test_targets_of_other_types_and_shapes(of_first: Any, of_second: Any) -> None:
    clients = [(torch.ones(1, 1), targets) for targets in map(torch.tensor, (of_first, of_second))]
    callback = FedAvg(1.0, executor="vectorized")
    end = fit_quadratic(callback, Quadratic(0.25), clients, 1)
    # a step of 1/4 of the way for each value of a sample
    assert float(end) == (2 * 4 + len(of_second[0]) * 4.5) / 4 / 2


def drops(drop: Callable[[Tensor], Tensor]) -> Callable[[], Losing]:
    """Return what makes a module that drops units in some order of axes."""
    return lambda: Losing(lambda m, x, y: F.cross_entropy(m.layers[2](drop(m.layers[0](x))), y))


@pytest.mark.parametrize(
    ("drop", "is_stacked"),
    [
        (lambda hidden: F.dropout(hidden, 0.5), True),
        (lambda hidden: F.alpha_dropout(hidden.t(), 0.5, training=True).t(), False),
    ],
)
def test_whole_batches_of_unequal_clients(drop: Callable[[Tensor], Tensor], is_stacked: bool) -> None:
    """The first clients share no shape, later ones do."""
    clients = clients_of(*(5, 6, 7, 8) * 3)
    cause = ends_alike(drops(drop), datamodule=lambda: TensorDataModule(clients, batch_size=None))
    assert (cause is None) == is_stacked


def by_the_batch(m: Any, loss: Tensor, batch: Any, index: int) -> Tensor:
    """Has another loss on batches of one sample."""
    return loss * (3 if len(batch[1]) == 1 else 1 + 0.3 * (index % 3))


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
    options = {"federated": {"local_epochs": 2}, "trainer": {"accumulate_grad_batches": accumulate}}
    assert ends_alike(lambda: Changed(by_the_batch), sizes=sizes, **options) is None


class AddsNoise(Classifier):
    """Has a hook of the batches' transfer, which adds noise to the samples."""

    factor = 1.0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        if self.trainer.training:
            x = x + 0.1 * torch.randn_like(x)
        return x, y

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        return super().loss(batch, batch_idx) * self.factor


class ScalesTheLoss(AddsNoise):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.factor = float(batch[0].mean())
        return batch


class CentersByAKeyword(AddsNoise):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] - torch.mean(input=self.layers[0].weight).detach(), batch[1]


class ScalesByTheLossBefore(AddsNoise):
    last: Any = 1.0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] * self.last, batch[1]

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().loss(batch, batch_idx)
        self.last = loss.detach()
        return loss


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (AddsNoise, "None"),
        (ScalesTheLoss, "change `self.factor`"),
        (CentersByAKeyword, "read the module's weights"),
        pytest.param(ScalesByTheLossBefore, "read `self.last`", marks=pytest.mark.long),
    ],
)
def test_hooks_of_the_batches_transfer(kind: type[AddsNoise], cause: str) -> None:
    assert cause in str(ends_alike(kind, sizes=(8, 13, 6)))
