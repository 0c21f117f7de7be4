"""Logged values keep their types, and passes beside the training leave buffers alone, with every executor."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from helpers.stacked import clients_of
from helpers.toys import quiet_trainer
from lightning import LightningModule
from lightning.fabric.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassHingeLoss

from fl_lightning import FedAvg, QFedAvg, Scaffold, TensorDataModule

EXECUTORS = ["sequential", "vectorized", "auto"]


class Counts(LightningModule):
    """Counts its steps in a buffer, and logs the count."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3).double()
        self.register_buffer("steps", torch.zeros((), dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            self.steps += 1
        self.log("steps", self.steps, on_step=False, on_epoch=True)
        return F.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    module: LightningModule, algorithm: Any, sizes: tuple[int, ...] = (8, 8, 8, 8), rounds: int = 1, **settings: Any
) -> dict[str, Tensor]:
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[algorithm], **settings)
    trainer.fit(module, datamodule=TensorDataModule(clients_of((2, 3), sizes), batch_size=4))
    return dict(trainer.callback_metrics)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("make", [partial(QFedAvg, 1.0), partial(Scaffold, option=1)], ids=["loss", "gradient"])
def test_a_pass_beside_the_training_leaves_buffers_alone(make: Any, executor: str) -> None:
    module = Counts()
    logged = fit(module, make(clients_per_round=1.0, executor=executor))
    assert module.steps == 2  # two steps of each client, and none of the pass over its samples
    assert logged["steps"] == 1.5


class LogsHalves(Counts):
    """Logs values of 10,000 in a type whose largest value is 65,504."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])
        value = (0 * loss.detach() + 10_000).half()
        self.log("mean", value, on_step=False, on_epoch=True)
        self.log("sum", value, on_step=False, on_epoch=True, reduce_fx="sum")
        return loss


@pytest.mark.parametrize("executor", EXECUTORS)
def test_sums_of_half_precision_are_taken_in_single(executor: str) -> None:
    logged = fit(LogsHalves(), FedAvg(1.0, executor=executor), (8, 4, 12, 40))
    assert logged["mean"] == 10_000
    assert logged["sum"] == 10_000 * (2 + 1 + 3 + 10)


class LogsDoubles(Counts):
    """Logs what a metric object returns, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.hinge = MulticlassHingeLoss(3).set_dtype(torch.float64)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output = self.layer(batch[0].flatten(1))
        self.log("hinge", self.hinge(output, batch[1]), on_step=True, on_epoch=False)
        return F.cross_entropy(output, batch[1])


@pytest.mark.parametrize("executor", ["vectorized", "auto"])
def test_what_a_metric_object_returns_keeps_its_type(executor: str) -> None:
    expected = fit(LogsDoubles(), FedAvg(1.0, executor="sequential"))["hinge"]
    found = fit(LogsDoubles(), FedAvg(1.0, executor=executor))["hinge"]
    assert found.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


class LogsSingles(LightningModule):
    """Logs numbers of which double precision keeps what single precision rounds."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 3)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])
        zero, none = 0 * batch[0].float().sum(), 0 * batch[1].sum()
        self.log("tenth", zero + 0.1, on_step=False, on_epoch=True)
        self.log("whole", none + 2**24 + 1, on_step=True, on_epoch=False)
        self.log("wholes", none + 2**24 + 1, on_step=False, on_epoch=True, reduce_fx="sum")
        return loss


@pytest.mark.parametrize("executor", EXECUTORS)
def test_under_double_precision_sums_are_taken_in_double(executor: str) -> None:
    logged = fit(LogsSingles(), FedAvg(1.0, executor=executor), (400, 200, 300, 100), precision="64-true")
    assert logged["whole"] == 2**24 + 1
    assert logged["wholes"] == 250 * (2**24 + 1)
    assert float(logged["tenth"]) == pytest.approx(float(torch.tensor(0.1)), rel=1e-14)


class LogsOfHalves(LogsSingles):
    """Logs numbers that bfloat16 rounds, and one of that type."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        none = 0 * batch[1].sum()
        self.log("whole", none + 257, on_step=True, on_epoch=False)
        self.log("wholes", none + 257, on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("mean", (none + 257).float(), on_step=False, on_epoch=True)
        self.log("narrow", (none + 1).to(torch.bfloat16), on_step=False, on_epoch=True, reduce_fx="sum")
        self.log("number", 257.0, on_step=False, on_epoch=True)
        return F.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])


@pytest.mark.parametrize("executor", EXECUTORS)
def test_under_half_precision_sums_are_taken_in_single(executor: str) -> None:
    logged = fit(LogsOfHalves(), FedAvg(1.0, executor=executor), (400, 200, 300, 100) * 2, precision="bf16-true")
    assert logged["whole"] == logged["number"] == logged["mean"] == 257
    assert logged["wholes"] == 257 * 500
    assert logged["narrow"] == 500


class LogsInTwoWays(Counts):
    """Logs a short batch in another way, which Lightning does not allow."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = F.cross_entropy(self.layer(batch[0].flatten(1)), batch[1])
        self.log("loss", loss, on_epoch=len(batch[0]) > 1)
        return loss


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("short", [0, 3])
def test_a_name_that_is_logged_in_two_ways_is_an_error(executor: str, short: int) -> None:
    sizes = [8, 8, 8, 8, 8]
    sizes[short] = 5
    with pytest.raises(MisconfigurationException, match="twice in `training_step` with different arguments"):
        fit(LogsInTwoWays(), FedAvg(1.0, executor=executor), tuple(sizes))
