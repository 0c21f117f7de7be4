"""Exact reductions between algorithms: the same weights, bit for bit."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import AggregationCallback, FedAvg, RADFed, TensorDataModule


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.layers(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(callback: AggregationCallback, rounds: int = 5) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = [8, 14, 6, 23, 10, 12]
    clients = [(torch.randn(n, 6, generator=generator), torch.randint(0, 3, (n,), generator=generator)) for n in sizes]
    module = Net()
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback])
    trainer.fit(module, datamodule=TensorDataModule(clients=clients, batch_size=4))
    return module.state_dict()


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def test_radfed_without_redistribution_is_uniform_fedavg_bit_for_bit() -> None:
    fedavg = train(FedAvg(3, weighting="uniform", seed=5))
    assert_equal(train(RADFed(1, 3, seed=5)), fedavg)
    assert_equal(train(RADFed(1, 3, evaluate="aggregate", seed=5)), fedavg)


def test_same_seed_same_weights_and_another_seed_others() -> None:
    first = train(RADFed(2, 3, seed=5))
    assert_equal(train(RADFed(2, 3, seed=5)), first)
    other = train(RADFed(2, 3, seed=6))
    assert not torch.equal(first["layers.0.weight"], other["layers.0.weight"])


def test_seed_everything_seeds_the_clients() -> None:
    L.seed_everything(11, verbose=False)
    first = train(FedAvg(3))
    assert_equal(train(FedAvg(3, seed=11)), first)


def test_results_do_not_depend_on_the_global_generators() -> None:
    first = train(FedAvg(3, seed=5))
    torch.rand(1000)
    torch.manual_seed(999)
    assert_equal(train(FedAvg(3, seed=5)), first)
