"""A federation of one client trains bit for bit as stock Lightning does, however the module optimises."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import (
    CLASSES,
    FEATURES,
    Classifier,
    assert_same_weights,
    clients_of,
    samples,
    train_centrally,
    train_federatedly,
    weights_of,
)
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg
from fl_lightning.seeding import Stream, seed_global_generators

ALL = samples(30)  # 8 batches of 4, the last of 2


class Momentum(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)


class Adam(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=0.05)


class Lbfgs(Classifier):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.3, max_iter=4)


class OutOfGrad(torch.optim.Optimizer):
    """Leaves it to the closure to switch gradients on, as Lightning's closures do."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure()
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(0.1 * parameter.grad)
        return loss


class ClosureSwitchesGradientsOn(Classifier):
    def configure_optimizers(self) -> Any:
        return OutOfGrad(self.parameters())


class ReturnsNone(Momentum):
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


class KeepsGradientTensors(Momentum):
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


class Tied(Classifier):
    """Uses one matrix twice."""

    def build(self) -> nn.Module:
        layers = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES))
        layers[2].weight = layers[0].weight
        return layers


class Adversarial(L.LightningModule):
    """Two optimizers by hand, as in Lightning's GAN example."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.generator, self.discriminator = nn.Linear(2, FEATURES), nn.Linear(FEATURES, 1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        g, d = self.optimizers()
        noise = torch.full((len(batch[0]), 2), 0.1 * (batch_idx + 1))
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


class SeedLikeClient(Callback):
    """Gives central training the random numbers of client 0 in round 0."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        seed_global_generators(0, Stream.CLIENT, 0, 0)


CASES: list[tuple[type[L.LightningModule], dict[str, Any]]] = [
    (Lbfgs, {}),
    (ClosureSwitchesGradientsOn, {}),
    (ReturnsNone, {}),
    (WarmUp, {}),
    (EverySecondStep, {}),
    (KeepsGradientTensors, {}),
    (OwnBackward, {}),
    (StopsEpoch, {}),
    (Normed, {}),
    (Adversarial, {}),
    (Momentum, {"gradient_clip_val": 0.05}),
    (Adam, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    (Momentum, {"accumulate_grad_batches": 3}),  # 8 batches: steps after 3, 6 and the last 2
    (WarmUp, {"accumulate_grad_batches": 3, "gradient_clip_val": 0.05}),
    (ReturnsNone, {"accumulate_grad_batches": 2}),
    (Momentum, {"precision": "bf16-mixed", "gradient_clip_val": 0.05}),
    (Adam, {"precision": "bf16-true"}),
    (Momentum, {"precision": "64-true"}),
]


@pytest.mark.parametrize(
    ("kind", "trainer"), CASES, ids=[f"{kind.__name__}-{'-'.join(map(str, t.values()))}" for kind, t in CASES]
)
def test_one_client_is_central_training(kind: type[L.LightningModule], trainer: dict[str, Any]) -> None:
    start, federated, central = kind(), kind(), kind()
    # a weight of 1 keeps float64 models exact, too
    fit = train_federatedly(federated, [ALL], algorithm=FedAvg(1.0, weighting="uniform", seed=0), **trainer)
    stock = train_centrally(central, ALL, callbacks=[SeedLikeClient()], **trainer)
    assert_same_weights(weights_of(federated), weights_of(central))
    assert fit.global_step == stock.global_step > 0
    changed = [not torch.equal(v, start.state_dict()[n].to(v)) for n, v in federated.state_dict().items()]
    assert any(changed)


def test_two_clients_are_the_mean_of_two_central_trainings() -> None:
    sizes, states = (6, 18), []
    for client in clients_of(*sizes):
        module = Normed()
        module.layers[2].p = 0.0
        train_centrally(module, client)
        states.append(weights_of(module))
    federated = Normed()
    federated.layers[2].p = 0.0
    train_federatedly(federated, clients_of(*sizes))
    for name, value in federated.state_dict().items():
        mean = (6 * states[0][name].double() + 18 * states[1][name].double()) / 24
        if not value.is_floating_point():
            # num_batches_tracked: clients make 2 and 5 batches, the mean 4.25 is rounded
            assert (states[0][name], states[1][name], value) == (2, 5, 4)
        else:
            assert torch.equal(value, mean.to(value.dtype)), name


class FirstSteps(Adam):
    """Notes whether the optimizer knows anything when a client begins."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.sizes.append(len(self.optimizers().state))  # type: ignore[union-attr]


def test_every_client_begins_with_a_fresh_optimizer() -> None:
    module = FirstSteps()
    trainer = train_federatedly(module, clients_of(8, 12), max_epochs=2)
    # Adam keeps a state for each of 4 parameters after its first step; slots may hold either client first
    rounds = [module.sizes[:5], module.sizes[5:]]
    assert all(sizes in ([0, 4, 0, 4, 4], [0, 4, 4, 0, 4]) for sizes in rounds)
    assert not trainer.optimizers[0].state


def test_clients_restore_what_a_module_changed_in_its_optimizer() -> None:
    module = WarmUp()
    trainer = train_federatedly(module, clients_of(8, 8))
    assert trainer.optimizers[0].param_groups[0]["lr"] == 0.1


def test_steps_of_each_client_are_counted_alone() -> None:
    assert train_federatedly(StopsEpoch(), clients_of(8, 30)).global_step == 2 + 3
    # steps on the ragged end of 8, 3 and 1 batches
    trainer = train_federatedly(Classifier(), clients_of(30, 12, 4), accumulate_grad_batches=3)
    assert trainer.global_step == 3 + 1 + 1


def test_tied_weights_travel_once_and_stay_tied() -> None:
    module = Tied()
    train_federatedly(module, clients_of(8, 9), max_epochs=2)
    assert module.layers[2].weight is module.layers[0].weight
    # one matrix and two biases
    assert module.trainer.fit_loop.training.vector.size == FEATURES * FEATURES + 2 * FEATURES


def test_the_mean_of_one_model_in_double_precision_is_that_model(number: int = 49) -> None:
    # n w / n is not always w
    left, right = Classifier(), Classifier()
    train_federatedly(left, [samples(number)], max_epochs=2, precision="64-true")
    train_centrally(right, samples(number), max_epochs=2, precision="64-true")
    assert_same_weights(weights_of(left), weights_of(right))
