"""One client trains as stock Lightning does without a federation, bit for bit, whatever takes part in a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import MethodType
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers import comparison
from helpers.comparison import assert_same_weights, clients_of, samples, train_centrally, train_federatedly, weights_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Subset, TensorDataset, default_collate

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule
from fl_lightning.seeding import Stream, seed_global_generators

EXECUTORS = ("sequential", "vectorized")
CPU = torch.device("cpu")
FEATURES, CLASSES = comparison.FEATURES, comparison.CLASSES


class Classifier(comparison.Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch) * torch.tensor(1.1)  # of the trainer's precision
        self.log("loss", loss, on_epoch=True)
        return loss

    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.parameters() if p.grad is not None]


class SeedLikeClient(Callback):
    """Gives central training the random numbers of client 0 in round 0."""

    def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        seed_global_generators(0, Stream.CLIENT, 0, 0)


def fit(kind: Any, executor: str | None, data: Any = None, **trainer: Any) -> tuple[Tensor, Any, int]:
    """Return the weights, the module's notes, and the steps."""
    module = kind()
    options = {key: value() if callable(value) else value for key, value in trainer.items()}
    last = FedAvg(1.0, seed=0, executor=executor) if executor else SeedLikeClient()
    fitter = quiet_trainer(callbacks=[*options.pop("callbacks", ()), last], **{"max_epochs": 1, **options})
    given = data() if data else TensorDataModule([samples(30)], batch_size=4, shuffle=False)
    with torch.no_grad():  # a fit switches gradients on
        fitter.fit(module, datamodule=given)
    weights = nn.utils.parameters_to_vector(module.parameters()).detach()
    state = [getattr(module, "notes", None), *(buffer.tolist() for buffer in module.buffers())]
    return weights, state, fitter.global_step


@cache
def plain(rounds: int) -> Tensor:
    """Return the weights of the classifier as it is."""
    return fit(Classifier, None, max_epochs=rounds)[0]


def check(kind: Any, data: Any = None, **trainer: Any) -> None:
    expected = fit(kind, None, data, **trainer)
    for executor in EXECUTORS:
        found = fit(kind, executor, data, **trainer)
        assert torch.equal(found[0], expected[0]), executor
        assert found[1:] == expected[1:], executor
    # what is tried matters
    assert not torch.equal(expected[0], plain(trainer.get("max_epochs", 1)))


class EndsEarly(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 3:
            raise StopIteration
        return super().training_step(batch, batch_idx)


class SkipsByHand(EndsEarly):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class Notes(Classifier):
    """Notes the learning rate, and what was the loss."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        optimizer = self.trainer.optimizers[0]
        self.notes.append((optimizer.param_groups[0]["lr"], float(outputs["loss"])))


class Halves(Notes):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        config = {"scheduler": schedule, "interval": "step", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": config}


class Falls(Classifier):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "step"}]


class Accumulates(Callback):
    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        trainer.accumulate_grad_batches = 2


class Momentum(Classifier):
    """The optimizer holds a state before the first step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        for parameter in self.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
        return optimizer


class WithSchedule(Classifier):
    """Wraps the optimizer's step, and a schedule wraps it once more."""

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
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


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


class ChangesItsBatch(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        batch[0].sub_(0.5)
        return super().training_step(batch, batch_idx)


class Pops(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch["x"], batch.pop("y")), batch_idx)


def of_samples(collate: Any) -> Any:
    return ClientDatasetsModule([TensorDataset(*samples(20))], batch_size=4, shuffle=False, collate_fn=collate)


def collated(batch: Any) -> Any:
    x, y = default_collate(batch)
    return None if int(y[2]) == 2 else [x, y]


def held_back() -> Any:
    kept: dict[int, Any] = {}

    def collate(batch: Any) -> Any:
        return kept.setdefault(len(kept) % 5, dict(zip("xy", default_collate(batch), strict=True)))

    return of_samples(collate)


class Nesterov(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)


class Adam(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class OutOfGrad(torch.optim.Optimizer):
    """Leaves it to the closure to switch gradients on, as Lightning's closures do, and keeps a half of each."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def zero_grad(self, set_to_none: bool = True) -> None:
        for gradient in [p.grad for p in self.param_groups[0]["params"] if p.grad is not None]:
            gradient.mul_(0.5)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure()
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(0.1 * parameter.grad)
        return loss


class ClosureSwitchesGradientsOn(Classifier):
    def configure_optimizers(self) -> Any:
        return OutOfGrad(self.parameters())


class ReturnsNone(Nesterov):
    """Skips every third batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx % 3 == 1 else self.loss(batch)


class WarmUp(Classifier):
    """Lightning's documented learning-rate warm-up."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        optimizer.step(closure=optimizer_closure)
        if self.trainer.global_step < 5:
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * (self.trainer.global_step + 1) / 5


class EverySecondStep(Classifier):
    """Runs the closure alone on odd batches, as Lightning's documentation shows."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any) -> None:
        if batch_idx % 2 == 0:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()


class KeepsGradientTensors(Nesterov):
    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)


class OwnBackward(Classifier):
    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        (3.0 * loss).backward()


class StopsEpoch(Classifier):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 3 else None


class Normed(Classifier):
    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Dropout(0.4), nn.Linear(6, CLASSES))


class Adversarial(pl.LightningModule):
    """Two optimizers by hand, as in Lightning's GAN example."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.generator, self.discriminator = nn.Linear(2, FEATURES), nn.Linear(FEATURES, 1)

    def training_step(self, batch: Any, number: int) -> None:
        g, d = self.optimizers()
        noise = torch.full((len(batch[0]), 2), 0.1 * (number + 1))
        self.toggle_optimizer(g)
        g.zero_grad()
        self.manual_backward(F.softplus(-self.discriminator(self.generator(noise))).mean())
        self.clip_gradients(g, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        g.step()
        self.untoggle_optimizer(g)
        self.toggle_optimizer(d)
        d.zero_grad()
        fake = self.discriminator(self.generator(noise).detach())
        self.manual_backward(F.softplus(-self.discriminator(batch[0])).mean() + F.softplus(fake).mean())
        d.step()
        self.untoggle_optimizer(d)

    def configure_optimizers(self) -> Any:
        g = torch.optim.Adam(self.generator.parameters(), lr=0.02)
        return [g, torch.optim.SGD(self.discriminator.parameters(), lr=0.1, momentum=0.9)], []


CASES: dict[str, tuple[type[Classifier], dict[str, Any]]] = {
    "StopIteration": (EndsEarly, {"max_epochs": 2}),
    "StopIteration, optimized by hand": (SkipsByHand, {"max_epochs": 2}),
    "a closure that switches gradients on": (ClosureSwitchesGradientsOn, {}),
    "batches without a loss": (ReturnsNone, {}),
    "batches without a loss, two a step": (ReturnsNone, {"accumulate_grad_batches": 2}),
    "a warm-up": (WarmUp, {}),
    "a warm-up, clipped, three batches a step": (WarmUp, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.05}),
    "every second step": (EverySecondStep, {}),
    "gradient tensors that are kept": (KeepsGradientTensors, {}),
    "a backward pass of its own": (OwnBackward, {}),
    "an epoch that is stopped": (StopsEpoch, {}),
    "BatchNorm and dropout": (Normed, {}),
    "two optimizers": (Adversarial, {}),
    "clipped by norm": (Nesterov, {"gradient_clip_val": 0.05}),
    "clipped by value": (Adam, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "momentum, three batches a step": (Nesterov, {"accumulate_grad_batches": 3}),  # the last step has two
    "bf16-mixed, clipped": (Nesterov, {"precision": "bf16-mixed", "gradient_clip_val": 0.05}),
    "bf16-true": (Adam, {"precision": "bf16-true"}),
    "a schedule by every second step": (Halves, {}),
    "that schedule, two batches a step": (Halves, {"accumulate_grad_batches": 2}),
    "that schedule, four batches a step": (Halves, {"accumulate_grad_batches": 4}),
    "an accumulation that begins with a batch": (Notes, {"callbacks": lambda: [Accumulates()]}),
    "a scheduled accumulation": (
        *(Classifier, {"max_epochs": 2, "callbacks": lambda: [GradientAccumulationScheduler({0: 1, 1: 3})]}),
    ),
    "a state before the first step": (Momentum, {}),
    "a step that is wrapped": (WithSchedule, {}),
    "a precision's backward": (Classifier, {"plugins": Backward}),
    "a strategy's step": (Classifier, {"strategy": lambda: Decays(device=CPU)}),
    "a strategy's batches": (Classifier, {"strategy": lambda: Moves(device=CPU)}),
    "a batch that changes in place": (ChangesItsBatch, {}),
    "a batch that is None": (Classifier, {"data": lambda: of_samples(collated)}),
    "a schedule by step, and a batch that is None": (Falls, {"data": lambda: of_samples(collated)}),
    "containers that are kept": (Pops, {"data": held_back, "max_epochs": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_one_client_trains_as_stock_lightning(name: str) -> None:
    kind, options = CASES[name]
    check(kind, **options)


def test_each_client_begins_with_the_state_before_the_first_step() -> None:
    def move(clients: int) -> Tensor:
        module = Momentum()
        start = nn.utils.parameters_to_vector(module.parameters()).detach()
        data = TensorDataModule([samples(18)] * clients, batch_size=None, shuffle=False)
        quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)]).fit(module, datamodule=data)
        return nn.utils.parameters_to_vector(module.parameters()).detach() - start

    torch.testing.assert_close(move(3), move(1))


# ---- settings that begin later ----


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


def own_transfer(name: str, trainer: pl.Trainer, module: Any) -> None:
    def halved(self: Any, batch: Any, *_: Any) -> Any:
        return batch[0] / 2, batch[1]

    setattr(module, name, MethodType(halved, module))


def register(trainer: pl.Trainer, module: Any) -> None:
    def shrinks(parameter: Tensor) -> None:
        parameter.grad.mul_(0.1)  # type: ignore[union-attr]

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(shrinks)


NAMES = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")
CHANGES = (clip, accumulate, set_hook, append, *(partial(own_transfer, name) for name in NAMES), register)


@pytest.mark.parametrize(("change", "round_index"), [*((change, 1) for change in CHANGES), (clip, 0), (register, 0)])
def test_settings_that_begin_with_a_round(change: Callable[[pl.Trainer, Any], None], round_index: int) -> None:
    class At(Callback):
        def on_train_epoch_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
            if trainer.current_epoch == round_index:
                change(trainer, pl_module)

    check(Classifier, callbacks=lambda: [At()], max_epochs=2)


# ---- batches ----


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_data_stay_as_they_are(executor: Any, shuffle: bool) -> None:
    x, y = samples(18)
    data = TensorDataset(x.t().contiguous().t(), y)
    clients = [data, Subset(data, range(2, 16)), Subset(data, [3, 1, 2, 5])]
    federation = ClientDatasetsModule(clients, batch_size=4, shuffle=shuffle)
    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor=executor)])
    fitter.fit(ChangesItsBatch(), datamodule=federation)
    assert torch.equal(data.tensors[0], x)


def test_batches_are_contiguous() -> None:
    class Flattens(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step((batch[0].view(-1, 4), batch[1]), batch_idx)

    x, y = samples(18)
    federation = TensorDataModule([(x.view(18, 2, 2).permute(0, 2, 1), y)], batch_size=4, shuffle=False)
    fitter = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    fitter.fit(Flattens(), datamodule=federation)
    assert fitter.current_epoch == 1


# ---- several clients ----


def test_steps_of_each_client_are_counted_alone() -> None:
    assert train_federatedly(StopsEpoch(), clients_of(8, 30)).global_step == 2 + 3
    # steps on the ragged end of 8, 3 and 1 batches
    trainer = train_federatedly(comparison.Classifier(), clients_of(30, 12, 4), accumulate_grad_batches=3)
    assert trainer.global_step == 3 + 1 + 1


def test_the_mean_of_one_model_in_double_precision_is_that_model() -> None:
    # n w / n is not always w
    left, right = Classifier(), Classifier()
    train_federatedly(left, [samples(49)], max_epochs=2, precision="64-true")
    train_centrally(right, samples(49), max_epochs=2, precision="64-true")
    assert_same_weights(weights_of(left), weights_of(right))
