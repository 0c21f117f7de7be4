"""Random numbers in steps: a stack's clients draw what each draws alone, in the same order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "randint up to": lambda x: torch.randint(5, x.shape),
    "randint between": lambda x: torch.randint(2, 7, x.shape),
    "randint by name": lambda x: torch.randint(low=2, high=7, size=x.shape),
    "randint of a number": lambda x: torch.randint(3, (len(x), 1)),
    "normal of a size": lambda x: torch.normal(1.0, 2.0, x.shape),
    "normal by name": lambda x: torch.normal(mean=1.0, std=2.0, size=tuple(x.shape)),
    "normal of tensors": lambda x: torch.normal(x, x.abs()),
    "rand": lambda x: torch.rand(x.shape),
    "randn": lambda x: torch.randn(*x.shape),
    "beta": lambda x: torch.distributions.Beta(0.4, 0.4).sample((len(x), 1)),
    "beta of tensors": lambda x: torch.distributions.Beta(x.abs() + 1, x.abs() + 2).sample(),
    "dirichlet": lambda x: torch.distributions.Dirichlet(torch.ones(x.shape[-1])).sample((len(x),)),
    "gamma": lambda x: torch.distributions.Gamma(x.abs() + 1, 2.0).sample(),
    "randint_like": lambda x: torch.randint_like(x, 2, 7),
    "dropout of what is transposed": lambda x: F.dropout(x.t(), 0.4).t(),
    "torch.dropout of what is transposed": lambda x: torch.dropout(x.t(), 0.4, True).t(),
    "dropout of a number": lambda x: F.dropout(torch.ones(x.shape), 0.4),
    "dropout in place": lambda x: F.dropout(x.t().clone(memory_format=torch.preserve_format), 0.4, inplace=True).t(),
    "all is dropped": lambda x: F.dropout(x, 1.0),
}


class Draws(Module):
    def __init__(self, way: str) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 3))
        self.way = way

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.layers(x * WAYS[self.way](x).double()), y)


def fitted(module: L.LightningModule, executor: Any, shape: tuple[int, ...] = (4,)) -> dict[str, Tensor]:
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
    trainer.fit(module, datamodule=TensorDataModule(clients_of(shape), batch_size=4))
    return module.state_dict()


@pytest.mark.parametrize("way", WAYS)
def test_clients_draw_what_they_draw_alone(way: str) -> None:
    stacks = VectorizedExecutor()
    alone, stacked = fitted(Draws(way), "sequential"), fitted(Draws(way), stacks)
    assert stacks.cause is None
    torch.testing.assert_close(stacked, alone, rtol=1e-12, atol=1e-14)


class Seeds(Draws):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        torch.manual_seed(batch_idx)
        return super().training_step(batch, batch_idx)


def test_a_step_that_seeds_is_not_stacked_and_told_why() -> None:
    stacks = VectorizedExecutor()
    alone, stacked = fitted(Seeds("rand"), "sequential"), fitted(Seeds("rand"), stacks)
    assert stacks.cause is not None and "seeds torch's generator (`torch.manual_seed`)" in stacks.cause
    torch.testing.assert_close(stacked, alone, rtol=0, atol=0)


class Words(nn.Module):
    """A transformer's layer as PyTorch makes it: attention and the layers behind it drop one value in ten."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.layer(x).mean(1))
        return output


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformers_with_dropout_are_stacked(norm_first: bool) -> None:
    stacks = VectorizedExecutor()
    alone = fitted(Module(Words(norm_first)), "sequential", (5, 4))
    stacked = fitted(Module(Words(norm_first)), stacks, (5, 4))
    assert stacks.cause is None
    torch.testing.assert_close(stacked, alone, rtol=1e-10, atol=1e-12)


class Unlabelled(Module):
    """Has a loss that is not a number, and no gradient, where no sample of a batch has a label."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        return loss + 0 * self.layers(batch[0]).softmax(-1).sum()  # which is mapped


def test_losses_that_are_no_number_alone_are_none_in_a_stack() -> None:
    clients = [(x, y.index_fill(0, torch.arange(4), -100)) for x, y in clients_of((4,))]
    states = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        torch.manual_seed(0)
        module = Unlabelled(nn.Linear(4, 3))
        trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
        trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=4, shuffle=False))
        states.append(module.state_dict())
    assert stacks.cause is None
    assert all(value.isfinite().all() for value in states[0].values())
    torch.testing.assert_close(states[1], states[0], rtol=1e-12, atol=1e-14)
