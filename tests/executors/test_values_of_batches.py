"""Metric objects that get other values than one for each sample, and rates that follow counters, in stacks."""

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
from torchmetrics import SumMetric

from fl_lightning import FedAvg, TensorDataModule


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def fit(make: Callable[[], L.LightningModule], executor: str, sizes: tuple[int, ...], rounds: int = 1) -> Any:
    torch.manual_seed(0)
    module = make()
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, executor=executor, seed=1)])
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), sizes), batch_size=4))
    return trainer


class OfClasses(Module):
    """Gives a metric object one value for each class: the sum of three probabilities over a batch is its size."""

    def __init__(self, values: Callable[[Tensor], Tensor]) -> None:
        super().__init__(linear())
        self.values, self.mass = values, SumMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        self.mass(self.values(scores.softmax(1)))
        self.log("mass", self.mass, on_step=False, on_epoch=True)
        return F.cross_entropy(scores, batch[1])


# the last clients have fewer samples than there are classes, and come after the trial
SIZES = (*[16] * 10, 2, 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (lambda p: p.sum(0), 163.0),
        (lambda p: p.mean(0), 42.0),  # of 42 batches
        (lambda p: p.t(), 163.0),
        (lambda p: p.sum(1), 163.0),
        (lambda p: torch.ones(2), 84.0),
    ],
)
@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_values_of_classes_are_not_cut_to_the_batch(values: Any, expected: float, executor: str) -> None:
    trainer = fit(lambda: OfClasses(values), executor, SIZES)
    assert float(trainer.callback_metrics["mass"]) == pytest.approx(expected, rel=1e-6)
    assert getattr(trainer.fit_loop.executor, "cause", None) is None


class RateByCounter(Module):
    """Lowers its rate where the trainer's counter has come to a step in the second round."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        rate = torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}

    def rate(self, step: int) -> float:
        return 1.0 if self.global_step < 20 else 0.1


class RateByHook(RateByCounter):
    def rate(self, step: int) -> float:
        return 1.0

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        for group in scheduler.optimizer.param_groups:
            group["lr"] = 0.1 if self.global_step < 20 else 0.01


@pytest.mark.parametrize("made", [RateByCounter, RateByHook])
def test_rates_that_follow_counters_are_not_stacked(made: Any) -> None:
    weights = []
    for executor in ("sequential", "vectorized"):
        trainer = fit(lambda: made(linear()), executor, (16, 13, 6, 10), rounds=3)
        weights.append(trainer.lightning_module.state_dict())
    assert "a schedule reads counters that all clients share" in trainer.fit_loop.executor.cause
    assert all(torch.equal(weights[0][key], value) for key, value in weights[1].items())


def test_rates_by_step_are_stacked() -> None:
    class ByStep(RateByCounter):
        def rate(self, step: int) -> float:
            return 0.9**step

    assert fit(lambda: ByStep(linear()), "vectorized", (16, 13, 6, 10)).fit_loop.executor.cause is None


class Head(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers[2].parameters(), lr=0.1)


class Norms(L.Callback):
    def __init__(self) -> None:
        self.seen: dict[int, Tensor] = {}

    def on_client_end(self, trainer: Any, module: Any, result: Any) -> None:
        self.seen[result.task.client] = module.layers[0].weight.grad.clone()


def test_gradients_that_no_optimizer_clears_add_up() -> None:
    seen = []
    for executor in ("sequential", "vectorized"):
        norms = Norms()
        torch.manual_seed(0)
        trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor, seed=1), norms])
        trainer.fit(Head(linear()), datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
        seen.append(norms.seen)
    assert seen[0].keys() == seen[1].keys()
    assert all(torch.equal(seen[0][client], gradient) for client, gradient in seen[1].items())
    assert "which add up" in trainer.fit_loop.executor.cause


class ReachesTheLoop(L.Callback):
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.loop = trainer.fit_loop

    def on_client_start(self, trainer: Any, module: Any, client: Any) -> None:
        pass


@pytest.mark.parametrize("executor", ["vectorized", "auto"])
def test_a_callback_that_holds_the_loop_loses_no_clients(executor: str) -> None:
    def fitted(name: str) -> dict[str, Tensor]:
        torch.manual_seed(0)
        module = OfClasses(lambda p: p.sum(1))
        trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor=name, seed=1), ReachesTheLoop()])
        trainer.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
        return module.layers.state_dict()

    expected = fitted("sequential")
    assert all(torch.allclose(expected[key], value, atol=1e-12) for key, value in fitted(executor).items())
