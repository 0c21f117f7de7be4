"""Stacks of modules that a stack cannot train alike are found out by real clients, and leave no trace."""

from __future__ import annotations

import copy
from collections import Counter, deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule


class Plain(Module):
    def __init__(self) -> None:
        super().__init__(linear())
        self.prepare()

    def prepare(self) -> None:
        pass

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss


class LogsSteps(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.log("by_step", loss)
        self.log("both", 2 * loss, on_step=True, on_epoch=True)
        return loss


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return -0.5 * gradients[0]


class GradientReversal(Plain):
    def loss(self, batch: Any) -> Tensor:
        hidden = self.layers[1](self.layers[0](batch[0]))
        return F.cross_entropy(self.layers[2](Reverse.apply(hidden)), batch[1])


class Teacher(Plain):
    def prepare(self) -> None:
        self.teacher = copy.deepcopy(self.layers).requires_grad_(False)

    def loss(self, batch: Any) -> Tensor:
        with torch.no_grad():
            for own, other in zip(self.teacher.parameters(), self.layers.parameters(), strict=True):
                own.lerp_(other, 0.1)
            target = self.teacher(batch[0])
        return super().loss(batch) + F.mse_loss(self.layers(batch[0]), target)


class UnitRows(Plain):
    def loss(self, batch: Any) -> Tensor:
        with torch.no_grad():
            self.layers[0].weight.div_(self.layers[0].weight.norm(dim=1, keepdim=True))
        return super().loss(batch)


class HeadOnly(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.layers[2].parameters(), lr=0.1)


class Scaled(Plain):
    def prepare(self) -> None:
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.scale * self.layers(batch[0]), batch[1])


class Padded(Plain):
    def prepare(self) -> None:
        self.embedding = nn.Embedding(4, 3, padding_idx=0).double()

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]) + self.embedding(batch[1]), batch[1])


class ReadsGradient(Plain):
    def loss(self, batch: Any) -> Tensor:
        gradient = self.layers[0].weight.grad
        return super().loss(batch) * (1.0 if gradient is None else 1.0 + float(gradient.norm()))


class Later(Plain):
    def prepare(self) -> None:
        self.held = [self.layers[0].weight]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) + (self.held[0].square().sum() if batch_idx > 0 else 0.0)


class Counts(Plain):
    def prepare(self) -> None:
        self.kept = self.empty()

    def empty(self) -> Any:
        return Counter()

    def keep(self, batch: Any) -> None:
        self.kept.update(batch[1].tolist())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.keep(batch)
        return self.loss(batch)


class InDeque(Counts):
    def empty(self) -> Any:
        return deque(maxlen=3)

    def keep(self, batch: Any) -> None:
        self.kept.append(len(batch[1]))


class InNamespace(Counts):
    def empty(self) -> Any:
        return SimpleNamespace(seen=0)

    def keep(self, batch: Any) -> None:
        self.kept.seen += len(batch[1])


class InArray(Counts):
    def empty(self) -> Any:
        return np.zeros(3)

    def keep(self, batch: Any) -> None:
        self.kept += len(batch[1])


class InTensor(Counts):
    def empty(self) -> Any:
        return torch.zeros(3, dtype=torch.float64)

    def keep(self, batch: Any) -> None:
        self.kept += len(batch[1])


@dataclass
class Meter:
    total: float = 0.0

    def add(self, value: Tensor) -> None:
        self.total = self.total + value.detach().double().mean()


class InMeter(Counts):
    def empty(self) -> Any:
        return Meter()

    def keep(self, batch: Any) -> None:
        self.kept.add(batch[0])


class CallsLogger(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        self.logger.experiment.log_metrics({"direct": float(len(batch[1]))}, step=self.trainer.current_epoch)
        return loss


class ByGlobalStep(Plain):
    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * (1 + 0.1 * self.global_step)


def halve(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)


def shrink(optimizer: Any, args: Any, kwargs: Any) -> None:
    with torch.no_grad():
        optimizer.param_groups[0]["params"][0].mul_(0.9)


class HookedParameter(Plain):
    def prepare(self) -> None:
        self.layers[0].weight.register_post_accumulate_grad_hook(halve)


class HookedOptimizer(Plain):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        optimizer.register_step_post_hook(shrink)
        return optimizer


#: Each with whether it is stacked.
ZOO: dict[type[Plain], bool] = {
    Plain: True,
    LogsSteps: True,
    GradientReversal: False,
    Teacher: False,
    UnitRows: False,
    HeadOnly: True,
    Scaled: True,
    Padded: True,
    ReadsGradient: False,
    Later: False,
    Counts: False,
    InDeque: False,
    InNamespace: False,
    InArray: False,
    InTensor: False,
    InMeter: False,
    CallsLogger: False,
    ByGlobalStep: False,
    HookedParameter: False,
    HookedOptimizer: False,
}


def fit(kind: type[Plain], executor: str, tmp_path: Any = None, **trainer: Any) -> tuple[Plain, Any]:
    module = kind()
    data = TensorDataModule(clients_of((6,)), batch_size=4)
    logger = CSVLogger(tmp_path / executor) if tmp_path else False
    fitter = quiet_trainer(
        max_epochs=2, callbacks=[FedAvg(1.0, executor=executor, seed=0, local_epochs=2)], logger=logger, **trainer
    )
    fitter.fit(module, datamodule=data)
    return module, fitter


def state_of(module: Plain) -> dict[str, Any]:
    kept = getattr(module, "kept", None)
    return {"kept": repr(getattr(kept, "__dict__", kept)), **{k: v.clone() for k, v in module.state_dict().items()}}


@pytest.mark.auto_decides
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("kind", ZOO)
def test_a_stack_cannot_be_told_from_one_client_after_the_other(
    kind: type[Plain], clip: float | None, tmp_path: Any
) -> None:
    alone, reference = fit(kind, "sequential", tmp_path, gradient_clip_val=clip)
    expected = state_of(alone)
    kept = expected.pop("kept")
    for executor in ("vectorized", "auto"):
        at_once, fitter = fit(kind, executor, tmp_path, gradient_clip_val=clip)
        found = state_of(at_once)
        assert found.pop("kept") == kept, executor
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-11, msg=f"{executor}: {name}")
        assert fitter.global_step == reference.global_step, executor
        assert fitter.callback_metrics.keys() == reference.callback_metrics.keys(), executor
        for name, value in reference.callback_metrics.items():
            logged = fitter.callback_metrics[name]
            torch.testing.assert_close(logged, value, rtol=1e-6, atol=1e-9, msg=f"{executor}: {name}")


@pytest.mark.parametrize("kind", ZOO)
def test_what_is_stacked(kind: type[Plain], tmp_path: Any) -> None:
    _, fitter = fit(kind, "vectorized", tmp_path)
    assert (fitter.fit_loop.executor.cause is None) == ZOO[kind], fitter.fit_loop.executor.cause


class Masked(Plain):
    """Has a mask, unsigned numbers, and a flag that the first step sets."""

    def prepare(self) -> None:
        self.register_buffer("mask", torch.tensor([True] * 4 + [False] * 2))
        self.register_buffer("order", torch.arange(6, dtype=torch.uint8).flip(0))
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def loss(self, batch: Any) -> Tensor:
        self.seen.fill_(True)
        return F.cross_entropy(self.layers(batch[0][:, self.order.long()] * self.mask), batch[1])


def test_buffers_that_are_masks_are_stacked() -> None:
    alone, _ = fit(Masked, "sequential")
    at_once, fitter = fit(Masked, "vectorized")
    assert fitter.fit_loop.executor.cause is None
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(at_once.state_dict()[name], value, rtol=1e-9, atol=1e-11)


class Coarse(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0].to(self.dtype)), batch[1])


def test_rounding_of_coarse_weights_is_named() -> None:
    cause = fit(Coarse, "vectorized", precision="bf16-true")[1].fit_loop.executor.cause
    assert "weights in torch.bfloat16 are rounded at every step" in cause
    assert "bf16-mixed" in cause
