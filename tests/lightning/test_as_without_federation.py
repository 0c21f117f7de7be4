"""One client trains as stock Lightning does without a federation, bit for bit, whatever takes part in a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule

EXECUTORS = ("sequential", "vectorized")


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters() if p.grad is not None]


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(16, 6, dtype=torch.float64, generator=generator), torch.randint(0, 3, (16,), generator=generator)


def weights(make: Callable[[], Classifier], executor: str | None, callbacks: Any = tuple, **trainer: Any) -> Tensor:
    """Train one client; without an executor as Lightning does without the aggregation callback."""
    module = make()
    own = [] if executor is None else [FedAvg(1.0, executor=executor)]
    options = {key: value() if callable(value) else value for key, value in trainer.items()}
    fitter = quiet_trainer(callbacks=[*callbacks(), *own], **{"max_epochs": 2, **options})
    fitter.fit(module, datamodule=TensorDataModule([samples()], batch_size=4, shuffle=False))
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


@cache
def plain() -> Tensor:
    return weights(Classifier, None)


def check(make: Callable[[], Classifier], callbacks: Any = tuple, **trainer: Any) -> None:
    """Compare with Lightning, and make sure that what is tried matters: a plain fit ends elsewhere."""
    expected = weights(make, None, callbacks, **trainer)
    for executor in EXECUTORS:
        assert torch.equal(weights(make, executor, callbacks, **trainer), expected), executor
    assert not torch.equal(expected, plain())


# ---- gradients ----


class Centred(Classifier):
    """Wraps the optimizer's step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        stock = optimizer.step

        def step(_: Any, closure: Any) -> Any:
            loss = closure()
            for gradient in self.gradients():
                gradient.sub_(gradient.mean())
            stock()
            return loss

        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
        return optimizer


class WithSchedule(Centred):
    """A schedule wraps the step once more."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def test_a_step_that_is_wrapped() -> None:
    check(WithSchedule)


# ---- settings that begin later ----


def at(round_index: int, change: Callable[[pl.Trainer, Any], None]) -> Callable[[], list[Callback]]:
    class At(Callback):
        def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
            if trainer.current_epoch == round_index:
                change(trainer, pl_module)

    return lambda: [At()]


def clip(trainer: pl.Trainer, module: Any) -> None:
    trainer.gradient_clip_val = 0.01


def accumulate(trainer: pl.Trainer, module: Any) -> None:
    trainer.accumulate_grad_batches = 2


def shrink(module: Classifier) -> None:
    for gradient in module.gradients():
        gradient.mul_(0.1)


def set_hook(trainer: pl.Trainer, module: Any) -> None:
    module.on_after_backward = MethodType(shrink, module)


def append(trainer: pl.Trainer, module: Any) -> None:
    class Shrinks(Callback):
        def on_after_backward(self, trainer: pl.Trainer, pl_module: Any) -> None:
            shrink(pl_module)

    trainer.callbacks.append(Shrinks())  # type: ignore[attr-defined]


def own_transfer(trainer: pl.Trainer, module: Any) -> None:
    def halved(self: Any, batch: Any, dataloader_idx: int) -> Any:
        return batch[0] / 2, batch[1]

    module.on_after_batch_transfer = MethodType(halved, module)


def register(trainer: pl.Trainer, module: Any) -> None:
    def shrinks(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.mul_(0.1)

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(shrinks)


CHANGES = {f.__name__: f for f in (clip, accumulate, set_hook, append, own_transfer, register)}


@pytest.mark.parametrize(("name", "round_index"), [*((name, 1) for name in CHANGES), ("clip", 0), ("register", 0)])
def test_settings_that_begin_with_a_round(name: str, round_index: int) -> None:
    check(Classifier, at(round_index, CHANGES[name]))


def test_scheduled_accumulation() -> None:
    check(Classifier, lambda: [GradientAccumulationScheduler({0: 1, 1: 3})])


def test_a_change_to_manual_optimisation_is_refused() -> None:
    def change(trainer: pl.Trainer, module: Any) -> None:
        module.automatic_optimization = False

    with pytest.raises(RuntimeError, match="`automatic_optimization`"):
        weights(Classifier, "sequential", at(1, change))


# ---- plugins and strategies ----


class Backward(Precision):
    def backward(self, tensor: Tensor, model: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        (3 * tensor).backward()


class Decays(SingleDeviceStrategy):
    def optimizer_step(self, optimizer: Any, closure: Any, model: Any = None, **kwargs: Any) -> Any:
        outcome = super().optimizer_step(optimizer, closure, model, **kwargs)
        with torch.no_grad():
            torch._foreach_mul_(list(self.lightning_module.parameters()), 0.9)
        return outcome


class Moves(SingleDeviceStrategy):
    def batch_to_device(self, batch: Any, *args: Any, **kwargs: Any) -> Any:
        x, y = super().batch_to_device(batch, *args, **kwargs)
        return x / 2, y


@pytest.mark.parametrize("kind", [Backward, Decays, Moves])
def test_plugins_and_strategies(kind: Any) -> None:
    if issubclass(kind, Precision):
        check(Classifier, plugins=kind)
    else:
        check(Classifier, strategy=lambda: kind(device=torch.device("cpu")))


# ---- batches ----


class ChangesItsBatch(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batch[0].sub_(0.5)
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("rows", [None, range(2, 16), [3, 1, 2, 5]], ids=["all", "range", "list"])
def test_data_stay_as_they_are(rows: Any) -> None:
    x, y = samples()
    data = TensorDataset(x.t().contiguous().t(), y)
    client = data if rows is None else Subset(data, rows)
    for executor, shuffle in ((executor, shuffle) for executor in EXECUTORS for shuffle in (False, True)):
        federation = ClientDatasetsModule([client] * 3, batch_size=4, shuffle=shuffle)
        fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor)])
        fitter.fit(ChangesItsBatch(), datamodule=federation)
        assert torch.equal(data.tensors[0], x), (executor, shuffle)


def test_a_batch_that_changes_in_place() -> None:
    check(ChangesItsBatch)


def test_batches_are_contiguous() -> None:
    class Flattens(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step((batch[0].view(-1, 6), batch[1]), batch_idx)

    x, y = samples()
    federation = TensorDataModule([(x.view(16, 2, 3).permute(0, 2, 1), y)], batch_size=4, shuffle=False)
    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    fitter.fit(Flattens(), datamodule=federation)
    assert fitter.current_epoch == 1
