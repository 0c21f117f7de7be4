"""The module's hooks on gradients, and on the models after a step, see each client's own in a stack."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch.utilities import grad_norm
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import MulticlassAccuracy
from zoo.fitting import ends_alike
from zoo.modules.base import Classifier

from fl_lightning import FedBuff, Scaffold


class LogsTheNorm(Classifier):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [parameter.grad.norm() for parameter in self.parameters() if parameter.grad is not None]
        self.log("norm", torch.stack(norms).norm(), on_step=True, on_epoch=True)
        self.log("positive", (self.layers[0].weight.grad > 0).sum(), on_step=True, on_epoch=True)


class LogsAndKeepsNorms(LogsTheNorm):
    """Logs norms in all ways under Adam, and keeps them, relative to a number that all clients share.

    A parameter has no gradient. In each third step of all clients it also logs the largest values, and adds to buffers.
    """

    unit = torch.tensor(2.0)

    def prepare(self) -> None:
        self.kept: list[Any] = []
        self.unused = torch.nn.Parameter(torch.ones(2))
        self.accuracy = MulticlassAccuracy(3, average="micro")
        self.mean = MeanMetric()
        self.most = MaxMetric()

    def loss(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self(batch[0])
        self.accuracy.update(scores, batch[1])
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        self.log("score", self.mean(scores.mean()), on_step=True, on_epoch=True)
        return F.cross_entropy(scores, batch[1])

    def on_after_backward(self) -> None:
        self.kept.append(self.layers[0].weight.grad.norm() / self.unit)
        if self.trainer.global_step % 3 == 0:
            assert torch.isfinite(self.layers[0].weight.grad).all()
            assert torch.isfinite(self.layers[2].weight.grad).all()
            for name, parameter in self.named_parameters():
                if parameter.grad is not None:
                    weight = (parameter > 0).sum()
                    self.log(f"largest/{name}", parameter.grad.abs().max(), on_epoch=True, batch_size=weight)
                    parameter.grad.mul_(0.5)
            for buffer in self.buffers():
                buffer.add_(self.layers[0].weight.grad.norm())

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        super().on_before_optimizer_step(optimizer)
        self.log_dict(grad_norm(self.layers, norm_type=2))
        total = 0.0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    total += parameter.grad.data.norm(2).item() ** 2
        self.log("total", self.mean(total**0.5), on_step=True, on_epoch=True)
        self.log("most", self.most(total), on_step=True, on_epoch=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


class BesideBuffers(LogsAndKeepsNorms):
    """Has two buffers."""

    def prepare(self) -> None:
        super().prepare()
        self.register_buffer("norm", torch.zeros(()))
        self.register_buffer("norms", torch.zeros(3))


class ClampsAndAddsNoise(Classifier):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.clamp_(-0.05, 0.05)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            # Hooks run without the precision of steps, so that it is single precision.
            parameter.grad.add_(0.01 * torch.randn(parameter.grad.shape))


class DoublesFromTheSecondRoundOn(Classifier):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.on_after_backward = self.twice  # type: ignore[method-assign]

    def twice(self) -> None:
        for parameter in self.parameters():
            parameter.grad.mul_(2)  # type: ignore[union-attr]


class Averages(Classifier):
    """Follows its weights by a moving average, whose decay grows with the steps of all clients, and clamps them."""

    def prepare(self) -> None:
        self.average = copy.deepcopy(self.layers).requires_grad_(False)
        self.distances = MeanMetric()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % 2 == 0:
            for parameter in self.layers.parameters():
                parameter.data.clamp_(-0.3, 0.3)
        decay = min(0.9, (1 + self.global_step) / (10 + self.global_step))
        with torch.no_grad():
            for mean, parameter in zip(self.average.parameters(), self.layers.parameters(), strict=True):
                mean.mul_(decay).add_(parameter, alpha=1 - decay)
        distance = (self.average[0].weight - self.layers[0].weight).norm()
        self.log("distance", distance)
        self.distances.update(distance)
        self.log("distances", self.distances, on_step=True, on_epoch=True)


class AveragesUnderAdam(Averages):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.layers.parameters(), lr=0.01)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (LogsAndKeepsNorms, {"sizes": (8, 14, 6)}),
        (BesideBuffers, {"sizes": (8, 14, 6)}),
        (ClampsAndAddsNoise, {"trainer": {"precision": "64-true"}}),
        (DoublesFromTheSecondRoundOn, {}),
        # Hooks see gradients with an objective's correction.
        (LogsTheNorm, {"algorithm": partial(Scaffold, 1.0), "trainer": {"gradient_clip_val": 0.1}, "sizes": (8, 9, 6)}),
        (Averages, {}),
        (AveragesUnderAdam, {}),
    ],
)
def test_hooks_are_stacked(kind: type[Classifier], options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # The batches of one step of three clients are held at once, or of several steps of one: four samples of 56 bytes.
    monkeypatch.setattr("fl_lightning.executors.stack.sources._HELD_BYTES", 3 * 4 * 56)
    assert ends_alike(kind, **options) is None


class Replaces(Classifier):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad * 0.5


class LooksForInfinities(Classifier):
    def on_after_backward(self) -> None:
        if not all(bool(torch.isfinite(parameter.grad).all()) for parameter in self.parameters()):
            self.zero_grad()


class WritesToAShared(Classifier):
    def on_train_start(self) -> None:
        self.unit = torch.ones(5, 6)

    def on_after_backward(self) -> None:
        self.unit.mul_(0.9)
        self.layers[0].weight.grad.mul_(self.unit)


class TrainsItsHead(LogsTheNorm):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers[2].parameters(), lr=0.1)


class ReadsOutputs(Classifier):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("again", outputs["loss"])


class CountsBatches(Classifier):
    kept: tuple[int, ...] = ()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.kept = (len(self.kept) + 1,)


class AveragesUnderASchedule(Averages):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize(
    ("kind", "cause", "options"),
    [
        (Replaces, "`on_after_backward` changes `self.layers.0.bias`, `self.layers.0.weight`, `self.layers.2.bi", {}),
        (WritesToAShared, "a hook writes to a tensor of which there is one", {}),
        (LooksForInfinities, "Python decides by a tensor's value", {}),
        (TrainsItsHead, "TrainsItsHead overrides `on_before_optimizer_step`, ", {}),
        (LogsTheNorm, "LogsTheNorm overrides `on_before_optimizer_step`", {"trainer": {"accumulate_grad_batches": 2}}),
        (ReadsOutputs, "`on_train_batch_end` reads `outputs`, ", {}),
        (CountsBatches, "`on_train_batch_end` changes `self.kept`, of which there is one", {}),
        (AveragesUnderASchedule, "AveragesUnderASchedule overrides `on_train_batch_end`", {}),
        # In the order of their arrival clients count other steps than in that of a stack.
        (Averages, "`on_train_batch_end` reads `global_step`", {"algorithm": partial(FedBuff, 2, 3)}),
    ],
)
def test_other_hooks_train_one_after_the_other(kind: type[Classifier], cause: str, options: Any) -> None:
    assert cause in str(ends_alike(kind, **options))
