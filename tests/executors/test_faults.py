"""Errors of a client are raised with stacks as without, and what a stack cannot take back is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule

EXECUTORS = pytest.mark.parametrize("executor", ["sequential", "vectorized"])


class Adds(Module):
    """Adds a term of its classes, of which client 4 alone has some that are none."""

    def __init__(self, term: Callable[[Tensor], Any]) -> None:
        super().__init__(linear())
        self.term = term

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1].clamp(0, 2)) + self.term(batch[1])


def fit(module: Any, executor: str, odd: int = 0, **trainer: Any) -> None:
    clients = clients_of((6,), (8, 8, 8, 8, 12))
    clients[4][1][:] += odd
    fitter = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor=executor, seed=1)], **trainer)
    fitter.fit(module, datamodule=TensorDataModule(clients, batch_size=4))


def variance(y: Tensor) -> Tensor:
    return F.gaussian_nll_loss(y.double(), torch.zeros(len(y)).double(), y.double() + 1)


@EXECUTORS
@pytest.mark.parametrize(
    ("term", "odd", "error", "message"),
    [
        (lambda y: F.embedding(y, torch.ones(3, 1).double()).sum(), 3, IndexError, "index out of range"),
        (lambda y: F.one_hot(y, 3).sum(), 3, RuntimeError, "Class values must be"),
        (variance, -5, ValueError, "var has negative entry"),
    ],
)
def test_a_value_out_of_range_is_the_error_of_a_client_alone(
    executor: str, term: Any, odd: int, error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        fit(Adds(term), executor, odd=odd)


class Asserts(Module):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert batch[1].max() < 3, "a rare client"
        return F.cross_entropy(self.layers(batch[0]), batch[1])


@EXECUTORS
def test_an_assertion_that_fails_is_raised(executor: str) -> None:
    with pytest.raises(AssertionError, match="a rare client"):
        fit(Asserts(linear()), executor, odd=3)


class LogsInTwoWays(Module):
    """Logs large classes in another way, which Lightning does not allow."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=batch_idx < 2)
        return loss


@EXECUTORS
def test_a_name_that_is_logged_in_two_ways_is_an_error(executor: str) -> None:
    with pytest.raises(MisconfigurationException, match="different arguments"):
        fit(LogsInTwoWays(linear()), executor)


@EXECUTORS
def test_anomalies_are_detected(executor: str) -> None:
    class Roots(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return torch.sqrt(self.layers(batch[0]).square().sum() * 0 * batch[1].min()).sum()

    with pytest.raises(RuntimeError, match="nan values"):
        fit(Roots(linear()), executor, detect_anomaly=True)
