"""Every cause on Lightning's side that keeps clients out of stacks is told, with its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from helpers.written import assert_as_in
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR, LambdaLR, SequentialLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torchmetrics import MeanMetric
from torchmetrics.wrappers import BootStrapper

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning._lightning.errors import describe_error
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop

NOTHING: Any = lambda *args, **options: None  # noqa: E731
# of a user, each with a method of its own
OwnSchedule: Any = type("OwnSchedule", (LambdaLR,), {})
Watching: Any = type("Watching", (Callback,), {"on_after_backward": NOTHING})
OwnStrategy: Any = type("OwnStrategy", (SingleDeviceStrategy,), {"backward": NOTHING})
OwnTransfer: Any = type("OwnTransfer", (TensorDataModule,), {"on_after_batch_transfer": NOTHING})
OF_MODULE = dict.fromkeys(("on_before_zero_grad", "log", "lr_scheduler_step"), NOTHING)


class Hooked(Quadratic):
    """Has whatever keeps clients from training at once."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.v = nn.Parameter(torch.zeros(1))
        self.w.register_hook(NOTHING)
        self.v.register_post_accumulate_grad_hook(NOTHING)
        self.scripted = torch.jit.script(nn.Identity())
        self.sampled = BootStrapper(MeanMetric())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD([self.w], lr=0.1)
        optimizer.register_step_pre_hook(NOTHING)
        optimizer.state[self.w]["step"] = 1
        replaced, cyclic = ExponentialLR(optimizer, 0.9), CyclicLR(optimizer, 0.1, 1.0, scale_fn=lambda x: x)
        replaced.get_lr = replaced.get_lr
        inside = SequentialLR(optimizer, [OwnSchedule(optimizer, lambda t: 1.0), ExponentialLR(optimizer, 0.9)], [2])
        optimizer.zero_grad = NOTHING
        return [optimizer], [{"scheduler": each, "interval": "step"} for each in (replaced, cyclic, inside)]


class ByHand(Quadratic):
    automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(3)]


def causes(module: Any, data: Any = TensorDataModule, *others: Any, **options: Any) -> list[str]:
    class Ask(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            found.extend(StackedLoop(trainer.fit_loop.epoch_loop)._causes())
            raise InterruptedError

    found: list[str] = []
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0), *others, Ask()], **options)
    with pytest.raises(InterruptedError):
        trainer.fit(module, datamodule=data(quadratic_clients([1.0], [1.0])))
    return found


def test_each_cause_is_told_and_plain_steps_have_none(tmp_path: Path) -> None:
    scaled = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    scaled.clip_gradients = NOTHING
    options = {"strategy": OwnStrategy(torch.device("cpu")), "plugins": [scaled], "detect_anomaly": True}
    with register_module_full_backward_hook(NOTHING), torch.autograd.set_detect_anomaly(False):
        found = causes(type("All", (Hooked,), OF_MODULE)(), OwnTransfer, Watching(), **options)
    with register_module_forward_hook(NOTHING):
        found += causes(ByHand(0.1))
    with register_optimizer_step_pre_hook(NOTHING):
        found += causes(type("Nothing", (Quadratic,), {"configure_optimizers": NOTHING})(0.1))
    assert_as_in(Path(__file__).with_suffix(".txt"), found, tmp_path)
    assert causes(Quadratic(0.1)) == []
    assert [describe_error(error) for error in (ValueError("one\ntwo"), KeyError())] == ["ValueError: one", "KeyError"]
