"""What Python computes with ``tensor.item()`` is the same for each client of a stack as alone, exceptions included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule

EXECUTORS = ["sequential", "vectorized", "auto"]
ODD = 5  # the client whose number is another one; others are the trial's witnesses


class Computes(Module):
    """Logs what a function returns for the batch's first value, and 9 where it raises an exception."""

    def __init__(self, compute: Callable[[Any], Any], errors: Any, kind: str = "float") -> None:
        super().__init__(nn.Linear(6, 3))
        self.compute, self.errors, self.kind = compute, errors, kind

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        value = batch[0][0, 0].item() if self.kind == "float" else batch[0][0, 0].long().item()
        try:
            number = self.compute(value)
        except self.errors:
            number = 9.0
        self.log("number", number, on_step=False, on_epoch=True)
        return F.cross_entropy(self.layers(batch[0]), batch[1])


def fit(module: Module, executor: str, data: list[tuple[Tensor, Tensor]], rounds: int = 1) -> Any:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    callback = FedAvg(1.0, seed=0, executor=executor)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback])
    trainer.fit(module, datamodule=TensorDataModule(data, batch_size=4, shuffle=False))
    return trainer


def clients(usual: float, odd: float) -> list[tuple[Tensor, Tensor]]:
    """Return eight clients of eight samples, all of whose inputs are one number."""
    targets = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    numbers = [odd if client == ODD else usual for client in range(8)]
    return [(torch.full((8, 6), number, dtype=torch.float64), targets) for number in numbers]


@pytest.mark.auto_decides
@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize(
    ("compute", "errors", "usual", "odd", "kind", "numbers"),
    [
        (lambda v: 2 / v, ZeroDivisionError, 4.0, 0.0, "float", (0.5, 9.0)),
        (lambda v: v / v, ZeroDivisionError, 4.0, 0.0, "int", (1.0, 9.0)),
        (lambda v: 9 // v, ZeroDivisionError, 4.0, 0.0, "float", (2.0, 9.0)),
        (lambda v: 9 % v, ZeroDivisionError, 4.0, 0.0, "int", (1.0, 9.0)),
        (lambda v: v**-1, ZeroDivisionError, 4.0, 0.0, "float", (0.25, 9.0)),
        (lambda v: abs(v**0.5), (), 4.0, -16.0, "float", (2.0, 4.0)),  # Python's root is 4i
        (lambda v: 1.0 if v**2 > 10 else 0.0, OverflowError, 4.0, 1e200, "float", (1.0, 9.0)),
        (lambda v: (1.0 * v) ** 400 * 0, OverflowError, 1.0, 10.0, "int", (0.0, 9.0)),
        (lambda v: round(v), ValueError, 4.25, float("nan"), "float", (4.0, 9.0)),
        (lambda v: 1 << v, ValueError, 4.0, -1.0, "int", (16.0, 9.0)),
        (lambda v: (v * v + 7) % 10, (), 3037000501.0, 2.0, "int", (8.0, 1.0)),  # v * v has 64 bits and more
        (lambda v: np.float64(2.0) * v, (), 4.0, 1.0, "float", (8.0, 2.0)),
        (lambda v: (v > 3) + (v < 9), (), 4.0, 1.0, "float", (2.0, 1.0)),
    ],
)
def test_numbers_are_pythons(
    executor: str, compute: Any, errors: Any, usual: float, odd: float, kind: str, numbers: tuple[float, float]
) -> None:
    trainer = fit(Computes(compute, errors, kind), executor, clients(usual, odd))
    expected = (7 * numbers[0] + numbers[1]) / 8  # all clients have as many samples
    assert float(trainer.callback_metrics["number"]) == pytest.approx(expected, rel=1e-6)


class Weighs(Module):
    """Divides the loss by the number of samples of the first class."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        try:
            return loss / 3 * (1 / (batch[1] == 0).sum().item())
        except ZeroDivisionError:
            return loss


@pytest.mark.auto_decides
def test_a_client_without_a_class_trains_as_alone() -> None:
    data = clients(0.5, 0.25)
    data[ODD] = data[ODD][0], torch.ones(8, dtype=torch.long)
    weights = []
    for executor in EXECUTORS:
        module = Weighs(nn.Linear(6, 3))
        trainer = fit(module, executor, data, rounds=2)
        weights.append(module.layers.weight.detach())
        assert float(trainer.callback_metrics["fed/left_out"]) == 0
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-12)
    assert torch.allclose(weights[0], weights[2], rtol=0, atol=1e-12)


class LogsShare(Module):
    """Logs how many samples of the first class there are, as a share of something."""

    def __init__(self, of: Callable[[Tensor], float]) -> None:
        super().__init__(nn.Linear(6, 3))
        self.of = of

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        self.log("share", (batch[1] == 0).sum().item() / self.of(batch[1]), on_step=False, on_epoch=True)
        return F.cross_entropy(scores, batch[1])


@pytest.mark.parametrize(("of", "is_program"), [(lambda y: 4, True), (lambda y: (y < 2).sum().item(), False)])
def test_a_quotient_whose_divisor_is_known_is_part_of_a_program(of: Any, is_program: bool) -> None:
    trainer = fit(LogsShare(of), "vectorized", clients(0.5, 0.25))
    verdict = trainer.fit_loop.executor.verdict
    assert verdict.cause is None
    assert math.isinf(verdict.proven) == is_program
    # batches of the classes 0 1 2 0 and 1 2 0 1: 2 and 1 of 4 samples, 2 of 3 and 1 of 3 of those of two classes
    expected = 3 / 8 if is_program else 1 / 2
    assert float(trainer.callback_metrics["share"]) == pytest.approx(expected)
