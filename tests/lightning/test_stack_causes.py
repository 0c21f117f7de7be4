"""What keeps clients from training in stacks: every cause that Lightning's side has is told, with its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from torch.optim.lr_scheduler import CyclicLR, ExponentialLR, LambdaLR, SequentialLR
from torchmetrics import MeanMetric
from torchmetrics.wrappers import BootStrapper

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning._lightning.stacks.stacked_loop import StackedLoop


class OwnSchedule(LambdaLR):
    """Of a user."""


class Watching(Callback):
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None: ...


class OwnStrategy(SingleDeviceStrategy):
    def backward(self, *args: Any, **options: Any) -> Any:
        return super().backward(*args, **options)


class OwnPrecision(MixedPrecision):
    def clip_gradients(self, *args: Any, **options: Any) -> None: ...


class OwnTransfer(TensorDataModule):
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch


class All(Quadratic):
    """Has whatever keeps clients from training at once."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.scripted = torch.jit.script(nn.Identity())
        self.sampled = BootStrapper(MeanMetric())
        self.v = nn.Parameter(torch.zeros(1))
        self.w.register_hook(lambda gradient: None)
        self.v.register_post_accumulate_grad_hook(lambda parameter: None)

    def on_before_zero_grad(self, optimizer: Any) -> None: ...

    def log(self, *args: Any, **options: Any) -> None: ...

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD([self.w], lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: None)
        optimizer.state[self.w]["step"] = 1
        replaced, cyclic = ExponentialLR(optimizer, 0.9), CyclicLR(optimizer, 0.1, 1.0, scale_fn=lambda x: x)
        replaced.get_lr = replaced.get_lr
        inside = SequentialLR(optimizer, [OwnSchedule(optimizer, lambda t: 1.0), ExponentialLR(optimizer, 0.9)], [2])
        optimizer.zero_grad = lambda *_: None  # type: ignore[method-assign]
        return [optimizer], [{"scheduler": each, "interval": "step"} for each in (replaced, cyclic, inside)]


class ByHand(Quadratic):
    def __init__(self) -> None:
        super().__init__(0.1)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(3)]


class Nothing(Quadratic):
    def configure_optimizers(self) -> Any:
        return None


class Begun(Exception):
    """Ends a fit before its first round."""


def causes(module: Any, data: type[TensorDataModule] = TensorDataModule, *others: Any, **options: Any) -> list[str]:
    class Ask(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            found.extend(StackedLoop(trainer.fit_loop.epoch_loop)._causes())
            raise Begun

    found: list[str] = []
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0), *others, Ask()], **options)
    with pytest.raises(Begun):
        trainer.fit(module, datamodule=data(quadratic_clients([1.0], [1.0])))
    return found


@pytest.fixture
def hooked() -> Iterator[None]:
    hook = nn.modules.module.register_module_forward_hook(lambda *_: None)
    yield
    hook.remove()


ALL = [
    *("All overrides `on_before_zero_grad`", "All overrides `log`", "hook of the data module"),
    *("callback Watching overrides `on_after_backward`", "hooks of modules are", "optimizer has step hooks"),
    *(
        "parameter 'w' has hooks",
        "parameter 'v' has hooks",
        "`self.scripted` is compiled",
        "`self.sampled` draws",
        "holds a state",
    ),
    *("All overrides `lr_scheduler_step`", "OwnSchedule is no schedule of torch's"),
    *("CyclicLR calls a function of your own after", "ExponentialLR has another `step` or `get_lr` that is called"),
    *("optimizer's `zero_grad` was", "OwnStrategy overrides `backward`", "OwnPrecision overrides `clip_gradients`"),
    *("(`detect_anomaly`)", 'precision="16-mixed"'),
]


@pytest.mark.usefixtures("hooked")
def test_each_cause_is_told() -> None:
    scaled = OwnPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    options = {"strategy": OwnStrategy(torch.device("cpu")), "plugins": [scaled], "detect_anomaly": True}
    found = causes(All(), OwnTransfer, Watching(), **options)
    torch.autograd.set_detect_anomaly(False)
    assert [text in cause for text, cause in zip(ALL, found, strict=True)] == [True] * len(ALL), found


def test_steps_by_hand_and_no_steps_are_causes_and_plain_ones_are_none() -> None:
    first, second = causes(ByHand())
    assert ("ByHand optimises" in first, "ByHand has 3 optimizers" in second) == (True, True)
    [only] = causes(Nothing(0.1))
    assert "`Nothing.configure_optimizers`" in only
    assert causes(Quadratic(0.1)) == []
