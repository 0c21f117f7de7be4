"""A step of FedSAM, Per-FedAvg, pFedMe or APFL is one, however many passes it takes; FedALA's search has none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from clients.test_corrected_steps import scaled
from helpers.toys import Quadratic, fit_clients, quadratic_clients
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Optimizer
from torch.optim.lr_scheduler import LinearLR
from torchmetrics import SumMetric

import fl_lightning as fl
from fl_lightning.diagnostics import LocalCompute
from fl_lightning.parts import MetaLearning
from fl_lightning.testing.fits import content, different, fit

SECOND_ORDER = partial(MetaLearning, gradient="hessian-free")
#: An algorithm, its passes on each step's first batch, and its batches and optimizer steps in a local step.
METHODS: dict[str, tuple[Callable[..., fl.AggregationCallback], int, int]] = {
    "FedAvg": (lambda **k: fl.FedAvg(1.0, **k), 1, 1),
    "FedSAM": (lambda **k: fl.FedSAM(0.1, 1.0, **k), 1, 1),
    # the callback's fine-tuning at the end of a fit has steps of its own
    "Per-FedAvg": (lambda **k: fl.Federated(1.0, objective=MetaLearning(0.1), **k), 2, 1),
    "Per-FedAvg, second order": (lambda **k: fl.Federated(1.0, objective=SECOND_ORDER(0.1), **k), 3, 1),
    "pFedMe": (lambda **k: fl.PFedMe(1.0, 1.0, inner_steps=3, **k), 1, 3),
    "APFL": (lambda **k: fl.APFL(0.5, 1.0, **k), 1, 2),
    "FedALA": (lambda **k: fl.FedALA("*", 1.0, share_epochs=2, **k), 1, 1),
}
STEPS = 4
ROUNDS = 2


class Noted(SGD):
    """Notes the learning rate of each step in its module."""

    module: Net

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        if any(p.grad is not None for group in self.param_groups for p in group["params"]):
            self.module.rates.append(self.param_groups[0]["lr"])
        super().step()
        return loss


class Net(L.LightningModule):
    """Its learning rate is (1 - k / 64) / 64 in the k-th step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(2, 1).double()
        self.samples = SumMetric()
        self.losses: list[float] = []
        self.rates: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = (self.layer(batch[0]) - batch[1]).square().mean()
        self.losses.append(loss.item())
        self.samples.update(len(batch[0]))
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("samples", self.samples, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = Noted(self.parameters(), lr=1 / 64)
        optimizer.module = self
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": LinearLR(optimizer, 1.0, 0.0, 64), "interval": "step"},
        }


def data(clients: int = 1, size: int = 8) -> fl.TensorDataModule:
    make: dict[str, Any] = {"generator": torch.Generator().manual_seed(2), "dtype": torch.float64}
    return fl.TensorDataModule(
        [(torch.randn(size, 2, **make), torch.randn(size, 1, **make)) for _ in range(clients)], batch_size=2
    )


class Log(DummyLogger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.values.append(metrics)

    def of(self, name: str) -> list[float]:
        return [values[name] for values in self.values if name in values]


class Hooks(Callback):
    """Counts the batches that hooks see, and the steps of clients' results."""

    def __init__(self) -> None:
        self.ends = 0
        self.indices: list[int] = []
        self.num_steps: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.indices.append(batch_idx)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.ends += 1

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.num_steps.append(result.num_steps)


@pytest.mark.parametrize("name", METHODS)
def test_schedules_counters_and_logs_see_one_step(name: str, subtests: pytest.Subtests) -> None:
    make, _, inner = METHODS[name]
    module, log, hooks, compute = Net(), Log(), Hooks(), LocalCompute()
    callback = make(local_steps=STEPS)
    trainer = fit(callback, module, data(), ROUNDS, hooks, compute, logger=log, log_every_n_steps=1)
    steps = list(range(STEPS * ROUNDS))
    with subtests.test("the k-th step has the k-th learning rate"):
        assert module.rates == pytest.approx([(1 - step / 64) / 64 for step in steps for _ in range(inner)])
    with subtests.test("counters"):
        assert trainer.global_step == trainer.estimated_stepping_batches == len(steps)
        assert trainer.num_training_batches == STEPS
        assert compute.values["fed/local_steps"] == sum(hooks.num_steps) == len(steps)
    with subtests.test("hooks"):
        assert hooks.ends == len(steps)
        assert hooks.indices == [*range(STEPS)] * ROUNDS
    with subtests.test("each step logs one loss, and metric objects see its first pass"):
        assert len(log.of("loss_step")) == len(steps)
        assert log.of("samples") == [2 * STEPS] * ROUNDS


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_fit_goes_on_with_the_same_steps(name: str, tmp_path: Path) -> None:
    make = METHODS[name][0]
    whole = fit(make(local_steps=STEPS), Net(), data(2), ROUNDS)
    half = fit(make(local_steps=STEPS), Net(), data(2), 1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    resumed = fit(make(local_steps=STEPS), Net(), data(2), ROUNDS, ckpt_path=tmp_path / "half.ckpt")
    assert resumed.global_step == 2 * STEPS * ROUNDS
    assert different(content(resumed, tmp_path), content(whole, tmp_path)) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_fit_ends_after_so_many_steps(name: str) -> None:
    trainer = fit(METHODS[name][0](local_steps=STEPS), Net(), data(), 9, max_steps=STEPS + 1)
    assert (trainer.current_epoch, trainer.global_step) == (2, 2 * STEPS)


@pytest.mark.parametrize("name", METHODS)
def test_local_epochs_are_passes_over_the_data(name: str) -> None:
    make, batches, inner = METHODS[name]
    module, hooks, compute = Net(), Hooks(), LocalCompute()
    # five epochs of four batches of two samples and one of one; the first batches complete the last step
    trainer = fit(make(local_epochs=5), module, data(size=9), 1, hooks, compute)
    steps = {1: 25, 2: 13, 3: 9}[batches]
    assert trainer.global_step == trainer.num_training_batches == hooks.ends == steps
    assert module.rates == pytest.approx([(1 - step / 64) / 64 for step in range(steps) for _ in range(inner)])
    again = {1: 0, 2: 2, 3: 4}[batches]
    searched = 2 * 9 if name == "FedALA" else 0  # in two epochs
    assert compute.values["fed/local_samples"] == 5 * 9 + again + searched


def test_fedsam_logs_the_losses_at_w() -> None:
    """One sample (1, 0), loss 1/2 w^2: from w = 1 uphill by 1/2, and with half of the gradient 3/2 to 1/4."""
    module = Logging(0.5, start=1.0)
    trainer = fit_clients(fl.FedSAM(0.5, 1.0, local_epochs=2), module, quadratic_clients([1.0], [0.0]))
    assert float(module.w) == pytest.approx(0.25 - 0.5 * 0.75)
    assert float(trainer.callback_metrics["loss"]) == pytest.approx((0.5 + 0.5 * 0.25**2) / 2)


def test_per_fedavg_logs_the_losses_of_first_batches_at_w() -> None:
    """Loss 1/2 w^2: from 1 to 1 - 1/4 (1 - 1/2) = 7/8, with an inner step of 1/2."""
    module = Logging(0.25, start=1.0)
    callback = fl.Federated(1.0, objective=MetaLearning(0.5), local_steps=2)
    trainer = fit_clients(callback, module, quadratic_clients([1.0], [0.0]))
    assert float(trainer.callback_metrics["loss"]) == (0.5 + 0.5 * 0.875**2) / 2


class Logging(Quadratic):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss


def test_a_batch_without_a_loss_is_a_step_that_moves_nothing() -> None:
    class Silent(Quadratic):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            return None if batch_idx == 0 else super().training_step(batch, batch_idx)

    makes = [METHODS[name][0] for name in ("FedSAM", "Per-FedAvg", "pFedMe", "APFL")]
    makes.append(partial(fl.QFedAvg, 1.0, clients_per_round=1.0))  # which asks for the mean loss, here of no batch
    for make in makes:
        module = Silent(0.5, start=1.0)
        trainer = fit_clients(make(local_steps=1), module, quadratic_clients([1.0], [0.0]))
        assert (float(module.w), trainer.global_step) == (1.0, 1)


@pytest.mark.parametrize("name", ["FedSAM", "Per-FedAvg", "Per-FedAvg, second order", "APFL"])
def test_a_step_that_a_gradient_scaler_skips_does_not_count(name: str) -> None:
    # 3 times 2^127 is infinite in single precision, half of that is not: three of four steps are made
    trainer = scaled([METHODS[name][0](local_steps=STEPS), hooks := Hooks()], [3.0], False, scale=2.0**127)
    # APFL skips the step of v alone, as the scale is halved before that of w
    made = 4 if name == "APFL" else 3
    assert trainer.lightning_module.w.item() == pytest.approx(-made * 3 / 8, abs=1e-6)
    assert hooks.num_steps[0] == made
    assert trainer.global_step == STEPS


# ---- what cannot be ----


class Manual(Quadratic):
    automatic_optimization = False


class TwoWays(Quadratic):
    """Maximises by some parameters alone."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.v = nn.Parameter(torch.zeros(1))

    def configure_optimizers(self) -> Optimizer:
        return SGD([{"params": [self.w]}, {"params": [self.v], "maximize": True}], lr=0.1)


@pytest.mark.parametrize(
    ("module", "option"),
    [
        (Manual, "takes gradients at several points, which needs `automatic_optimization=True`"),
        (partial(Quadratic, make_optimizer=LBFGS), "got LBFGS"),
        (TwoWays, "`maximize`"),
    ],
)
@pytest.mark.parametrize("name", ["FedSAM", "Per-FedAvg", "pFedMe", "APFL"])
def test_several_passes_want_a_step_of_lightnings(name: str, module: Any, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        fit_clients(METHODS[name][0](), module(0.5), quadratic_clients([1.0], [4.0]))


def test_apfl_s_two_models_have_a_momentum_each() -> None:
    """f = (w - 1)^2 / 2 from w = v = 0 with alpha = 1/2, learning rate 1/2 and momentum 1/2: two steps by hand."""
    w = v = velocity_w = velocity_v = 0.0
    for _ in range(2):
        mixture = (w + v) / 2
        velocity_v = velocity_v / 2 + (mixture - 1) / 2
        velocity_w = velocity_w / 2 + (w - 1)
        v = v - velocity_v / 2
        w = w - velocity_w / 2

    callback = fl.APFL(0.5, 1.0, local_steps=2)
    module = Quadratic(0.5, make_optimizer=partial(SGD, lr=0.5, momentum=0.5))
    fit_clients(callback, module, quadratic_clients([1.0], [1.0]), 1)
    assert float(module.w) == w
    assert float(callback.algorithm.objective.own[0]) == v
