"""Maximising minus a loss (``maximize=True``) is minimising it, for every algorithm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data, one_in
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import fl_lightning as fl
from fl_lightning.executors import VectorizedExecutor
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


class Up(Quadratic):
    """Maximises -a/2 (w - c)^2."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return -super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Optimizer:
        return SGD(self.parameters(), lr=self.lr, maximize=True)


def test_a_stack_with_unequal_weight_decays_maximises_as_single_clients_do() -> None:
    clients = quadratic_clients([1.0, 1.0], [1.0, 4.0], [1, 3])
    ends: list[float] = []
    for module, executor in ((Quadratic(0.1), "sequential"), (Up(0.1), stacks := VectorizedExecutor())):
        callback = fl.FedDyn(0.3, 1.0, penalty="weight_decay", executor=executor)
        ends.append(float(fit_quadratic(callback, module, clients, 2)))
    assert stacks.cause is None
    assert ends[1] == pytest.approx(ends[0], abs=1e-12)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda **k: fl.FedAvg(1.0, **k), 3.5),
        # 0 -> 2 -> 2 + 1/2 (2 - 2) -> 2
        (lambda **k: fl.FedProx(1.0, 1.0, **k), 2.0),
    ],
)
def test_a_pull_holds_back_what_climbs(make: Callable[..., Any], expected: float, executor: str) -> None:
    """Three steps of 1/2 from 0 towards the maximum at 4."""
    clients = quadratic_clients([1.0, 1.0], [4.0, 4.0])
    assert float(fit_quadratic(make(local_epochs=3, executor=executor), Up(0.5), clients, 1)) == expected


class Both(L.LightningModule):
    """f = 1/2 (x - 4)^2 - 1/2 (y - 4)^2, to be minimised by x and maximised by y, whose client's pull is alike."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1).double())
        self.y = nn.Parameter(torch.zeros(1).double())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return ((self.x - 4).square() - (self.y - 4).square()).sum() / 2

    def configure_optimizers(self) -> Optimizer:
        return SGD([{"params": [self.x]}, {"params": [self.y], "maximize": True}], lr=0.5)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_each_parameter_group_has_its_own_direction(executor: str) -> None:
    module = Both()
    fit(fl.FedProx(1.0, 1.0, local_epochs=3, executor=executor), module, data(batch_size=64, sizes=(3, 3)), 1)
    assert [module.x.item(), module.y.item()] == [2.0, 2.0]


class Climbing(Optimizer):
    """Steps up by the way to a value of 0: value / |gradient|^2."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"maximize": True})

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            value = closure()
        [parameter] = self.param_groups[0]["params"]
        with torch.no_grad():
            parameter.sub_(value / parameter.grad.square() * parameter.grad)
        return value


class Looking(Up):
    def configure_optimizers(self) -> Optimizer:
        return Climbing(self.parameters())


def test_an_optimizer_that_maximises_sees_minus_the_terms_value() -> None:
    # from 0: value -8, gradient 4, so to 2; there value -2 - 4 and gradient 2 - 4, so to 2 - 6/4 2
    clients = quadratic_clients([1.0], [4.0])
    assert float(fit_quadratic(fl.FedProx(2.0, 1.0, local_steps=2), Looking(0.5), clients, 1)) == -1.0
