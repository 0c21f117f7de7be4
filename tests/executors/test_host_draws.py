"""A step's draws of numpy and of Python are each client's own in a stack, in the order of the step."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor


class Draws(Module):
    def __init__(self) -> None:
        super().__init__(linear())


def ends_alike(kind: type[Draws]) -> str | None:
    """Compare fits with stacks and without; return why clients were not stacked."""
    ends = []
    for executor in ("sequential", stacks := VectorizedExecutor()):
        callback = FedAvg(1.0, executor=executor, seed=1, local_epochs=2)
        trainer = quiet_trainer(max_epochs=2, precision="64-true", callbacks=[callback])
        module = kind()
        trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), (8, 13, 6)), batch_size=4))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-9)
    return stacks.cause


class MixesUp(Draws):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        share = np.random.beta(0.4, 0.4)
        order = torch.from_numpy(np.random.permutation(len(x)))
        scores = self.layers(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(scores, y) + (1 - share) * F.cross_entropy(scores, y[order])


class DrawsByAll(Draws):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        noise = torch.as_tensor(np.random.normal(size=x.shape), dtype=x.dtype)
        factor = random.uniform(0.5, 1.5) + np.random.randint(1, 3)
        self.log("factor", factor)
        # A tensor has the type of the number that is drawn.
        factor = factor + torch.tensor([random.random()])[0]
        return factor * F.cross_entropy(self.layers(F.dropout(x, 0.2) + 0.1 * noise), y)


class DrawsInAHook(Draws):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad.mul_(np.random.uniform(0.5, 1.5))  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [MixesUp, DrawsByAll, DrawsInAHook])
def test_draws_are_those_of_each_client_alone(kind: type[Draws]) -> None:
    assert ends_alike(kind) is None


class DecidesByADraw(Draws):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return 2 * loss if random.random() < 0.5 else loss


class DrawsByValues(Draws):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * np.random.uniform(0, batch[0].std().item())


@pytest.mark.parametrize(
    ("kind", "cause"), [(DecidesByADraw, "Python decides"), (DrawsByValues, "arguments that it computes")]
)
def test_other_draws_train_one_after_the_other(kind: type[Draws], cause: str) -> None:
    assert cause in str(ends_alike(kind))
