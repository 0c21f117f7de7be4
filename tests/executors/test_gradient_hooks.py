"""The module's hooks on gradients, and on the models after a step, see each client's own in a stack."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import grad_norm
from torchmetrics import MeanMetric

from fl_lightning import FedAvg, Scaffold, TensorDataModule
from fl_lightning.executors import VectorizedExecutor


class Hooked(Module):
    """A classifier with a hook, and clients whose batches have four samples each: PyTorch captures one step."""

    sizes: tuple[int, ...] = (8, 12, 8)

    def __init__(self) -> None:
        super().__init__(linear())
        self.kept: list[Any] = []


class LogsTheNorm(Hooked):
    sizes = (8, 12, 6)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norms = [parameter.grad.norm() for parameter in self.parameters() if parameter.grad is not None]
        self.log("norm", torch.stack(norms).norm(), on_step=True, on_epoch=True)
        self.log("positive", (self.layers[0].weight.grad > 0).sum(), on_step=True, on_epoch=True)


class LogsNorms(Hooked):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.log_dict(grad_norm(self.layers, norm_type=2))


class SumsByItem(Hooked):
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        total = 0.0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                total += parameter.grad.data.norm(2).item() ** 2
        self.log("total", total**0.5)


class LogsSometimes(Hooked):
    def on_after_backward(self) -> None:
        if self.trainer.global_step % 3 == 0:
            for name, parameter in self.named_parameters():
                assert parameter.grad is not None
                self.log(f"largest/{name}", parameter.grad.abs().max())


class KeepsNorms(Hooked):
    """Keeps norms, relative to a number that all clients share."""

    unit = torch.tensor(2.0)

    def on_after_backward(self) -> None:
        self.kept.append(self.layers[0].weight.grad.norm() / self.unit)


class ClampsAndAddsNoise(Hooked):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.clamp_(-0.05, 0.05)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            # Hooks run without the precision of steps, so that it is single precision.
            parameter.grad.add_(0.01 * torch.randn(parameter.grad.shape))


class DoublesFromTheSecondRoundOn(Hooked):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.on_after_backward = self.twice  # type: ignore[method-assign]

    def twice(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(2)


class WithAdam(LogsTheNorm):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def fit(kind: type[Hooked], executor: Any, folder: Path, algorithm: Any = FedAvg, **options: Any) -> Any:
    """Return the weights, what was kept, what was logged last and the lines of the log."""
    module = kind()
    logger = CSVLogger(folder, version=str(executor)[:5])
    callbacks = [algorithm(1.0, executor=executor, seed=1)]
    trainer = quiet_trainer(
        max_epochs=2, precision="64-true", callbacks=callbacks, logger=logger, log_every_n_steps=1, **options
    )
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), kind.sizes), batch_size=4))
    lines = [{name: float(value) for name, value in row.items()} for row in logger.experiment.metrics]
    return dict(module.state_dict()), module.kept, trainer.callback_metrics, lines


def ends_alike(kind: type[Hooked], folder: Path, algorithm: Any = FedAvg, **options: Any) -> str | None:
    """Compare a fit with stacks and without; return why clients were not stacked."""
    stacks = VectorizedExecutor()
    alone = fit(kind, "sequential", folder, algorithm, **options)
    stacked = fit(kind, stacks, folder, algorithm, **options)
    # Types of what is logged are the same, too.
    torch.testing.assert_close(stacked[:3], alone[:3], rtol=1e-6, atol=1e-9)
    assert len(stacked[3]) == len(alone[3])
    for line, other in zip(stacked[3], alone[3], strict=True):
        assert line == pytest.approx(other, rel=1e-6)
    return stacks.cause


@pytest.mark.parametrize(
    "kind",
    [
        *(LogsTheNorm, LogsNorms, SumsByItem, LogsSometimes, KeepsNorms, ClampsAndAddsNoise, WithAdam),
        DoublesFromTheSecondRoundOn,
    ],
)
def test_hooks_on_gradients_are_stacked(kind: type[Hooked], tmp_path: Path) -> None:
    assert ends_alike(kind, tmp_path) is None


def test_a_hook_sees_gradients_with_an_objectives_correction(tmp_path: Path) -> None:
    assert ends_alike(LogsTheNorm, tmp_path, Scaffold, gradient_clip_val=0.1) is None


class Replaces(Hooked):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            assert parameter.grad is not None
            parameter.grad = parameter.grad * 0.5


class LooksForInfinities(Hooked):
    def on_after_backward(self) -> None:
        if not all(bool(torch.isfinite(parameter.grad).all()) for parameter in self.parameters()):
            self.zero_grad()


class WritesToAShared(Hooked):
    def on_train_start(self) -> None:
        self.unit = torch.ones(5, 6)

    def on_after_backward(self) -> None:
        self.unit.mul_(0.9)
        self.layers[0].weight.grad.mul_(self.unit)


class TrainsItsHead(LogsTheNorm):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers[2].parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (Replaces, "`on_after_backward` changes `self.layers.0.bias`, `self.layers.0.weight`, `self.layers.2.bias`, "),
        (WritesToAShared, "a hook writes to a tensor of which there is one"),
        (LooksForInfinities, "Python decides by a tensor's value"),
        (TrainsItsHead, "TrainsItsHead overrides `on_before_optimizer_step`, "),
    ],
)
def test_other_hooks_on_gradients_train_one_after_the_other(kind: type[Hooked], cause: str, tmp_path: Path) -> None:
    assert cause in str(ends_alike(kind, tmp_path))


def test_hooks_on_accumulated_gradients_train_one_after_the_other(tmp_path: Path) -> None:
    cause = ends_alike(LogsTheNorm, tmp_path, accumulate_grad_batches=2)
    assert "LogsTheNorm overrides `on_before_optimizer_step`, which sees one model at a time" in str(cause)


class Averages(Hooked):
    """Follows its weights by a moving average, whose decay grows with the steps of all clients."""

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.layers).requires_grad_(False)
        self.distances = MeanMetric()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        decay = min(0.9, (1 + self.global_step) / (10 + self.global_step))
        with torch.no_grad():
            for mean, parameter in zip(self.average.parameters(), self.layers.parameters(), strict=True):
                mean.mul_(decay).add_(parameter, alpha=1 - decay)
        distance = (self.average[0].weight - self.layers[0].weight).norm()
        self.log("distance", distance)
        self.distances.update(distance)
        self.log("distances", self.distances, on_step=True, on_epoch=True)


class ClampsItsWeights(Hooked):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx % 2 == 0:
            for parameter in self.parameters():
                parameter.data.clamp_(-0.3, 0.3)


class AveragesUnderAdam(Averages):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.layers.parameters(), lr=0.01)


@pytest.mark.parametrize("kind", [Averages, ClampsItsWeights, AveragesUnderAdam])
def test_hooks_after_a_step_are_stacked(kind: type[Hooked], tmp_path: Path) -> None:
    assert ends_alike(kind, tmp_path) is None


class ReadsOutputs(Hooked):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("again", outputs["loss"])


class CountsBatches(Hooked):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.kept = [len(self.kept) + 1]


class AveragesUnderASchedule(Averages):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (ReadsOutputs, "`on_train_batch_end` reads `outputs`, "),
        (CountsBatches, "`on_train_batch_end` changes `self.kept`, of which there is one"),
        (AveragesUnderASchedule, "AveragesUnderASchedule overrides `on_train_batch_end`"),
    ],
)
def test_other_hooks_after_a_step_train_one_after_the_other(kind: type[Hooked], cause: str, tmp_path: Path) -> None:
    assert cause in str(ends_alike(kind, tmp_path))
