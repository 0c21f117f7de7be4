"""Maximising minus a loss (``maximize=True``) is minimising it, for every algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data, one_in
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import fl_lightning as fl
from fl_lightning.testing.fits import Trace, distance, fit


class Maximising(Net):
    """Maximises minus the loss of ``Net``."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return -super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        [optimizer], schedules = super().configure_optimizers()
        for group in optimizer.param_groups:
            group["maximize"] = True
        return [optimizer], schedules


@pytest.mark.parametrize("name", one_in(9))
def test_maximising_minus_a_loss_is_minimising_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # files of clients' vectors
    traces = Trace(), Trace()
    for trace, module in zip(traces, (Net(), Maximising()), strict=True):
        fit(ALGORITHMS[name](seed=1, executor="sequential"), module, data(8), 3, trace)
    assert [distance(*pair) for pair in zip(*(trace.rounds for trace in traces), strict=True)] == [0] * 3


class Both(L.LightningModule):
    """1/2 |x - (4, 8)|^2 - 1/2 |y - (2, 6)|^2, minimised by x and maximised by y, whose client's pull is alike."""

    def __init__(self, kind: type[SGD] = SGD) -> None:
        super().__init__()
        self.kind = kind
        self.x, self.y = (nn.ParameterList(torch.zeros(1).double() for _ in range(2)) for _ in range(2))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ways = zip([*self.x, *self.y], (4, 8, 2, 6), (1, 1, -1, -1), strict=True)
        return sum(sign * (own - end).square().sum() / 2 for own, end, sign in ways)  # type: ignore[return-value]

    def configure_optimizers(self) -> Optimizer:
        return self.kind([{"params": self.x}, {"params": self.y, "maximize": True}], lr=0.5)


class ByHand(Both):
    """Has an optimizer for each direction, which it steps itself."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        self.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        for each in self.optimizers():
            each.step()

    def configure_optimizers(self) -> Any:
        return [SGD(self.x, lr=0.5), SGD(self.y, lr=0.5, maximize=True)]


@pytest.mark.parametrize(("make", "executor"), [(Both, "sequential"), (Both, "vectorized"), (ByHand, "sequential")])
def test_each_parameter_group_has_its_own_direction(make: Any, executor: str) -> None:
    module = make()
    fit(fl.FedProx(1.0, 1.0, local_epochs=3, executor=executor), module, data(batch_size=64, sizes=(3, 3)), 1)
    assert [each.item() for each in module.parameters()] == [2.0, 4.0, 1.0, 3.0]


def test_values_and_gradients_are_those_of_both_directions() -> None:
    seen: list[list[float]] = []

    class Noting(SGD):
        def step(self, closure: Any = None) -> Any:
            value = float(closure())
            seen.append([value, *(each.grad.item() for group in self.param_groups for each in group["params"])])
            return super().step()

    class Asks(L.Callback):
        def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
            [(gradients, _)] = client.gradients()
            seen.append([float(each) for each in gradients.values()])

    fit(fl.FedProx(1.0, 1.0, local_epochs=2), Both(Noting), data(batch_size=64, sizes=(3, 3)), 1, Asks())
    # what is minimised by all; then (16 + 64 - 4 - 36) / 2, and (4 + 16 - 1 - 9) / 2 with pulls of 10 and of -5
    assert seen == [[-4, -8, -2, -6], [20, -4, -8, 2, 6], [10, 0, 0, 0, 0]] * 2
