"""Parts that two callbacks have, which are used in turn: each fit has the other parts of its own callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor, nn

from fl_lightning import BernoulliSampler, Federated, TensorDataModule
from fl_lightning.parts import (
    Adaptive,
    ClientResult,
    Clip,
    ControlVariates,
    Correction,
    DifferentialPrivacy,
    Exchange,
    LocalObjective,
    PersonalParameters,
    Proximal,
    WeightedMean,
)


class Net(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(3, 3).double(), nn.Linear(3, 1).double()

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        return ((self.head(self.body(x)) - y) ** 2).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def trained(callback: Federated) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 6, 3, generator=generator).double(), torch.randn(5, 6, 1, generator=generator).double()
    module, data = Net(), TensorDataModule(clients=list(zip(x, y, strict=True)), batch_size=3)
    quiet_trainer(max_epochs=4, callbacks=[callback]).fit(module, datamodule=data)
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


class Holder(LocalObjective):
    """Leaves everything to the objective that it holds."""

    def __init__(self, inner: LocalObjective) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> list[LocalObjective]:
        return [self.inner]

    def correction(self, client: Any) -> Correction | None:
        return self.inner.correction(client)


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("fitted", [False, True])
def test_an_objective_leaves_out_the_personal_parameters_of_the_callback_that_trains(held: bool, fitted: bool) -> None:
    def make(objective: LocalObjective, **options: Any) -> Federated:
        return Federated(3, objective=Holder(objective) if held else objective, seed=1, **options)

    expected = trained(Federated(3, objective=ControlVariates(), exchange=PersonalParameters("head"), seed=1))
    shared = ControlVariates()
    personal, other = make(shared, exchange=PersonalParameters("head")), make(shared)
    if fitted:
        trained(other)
    assert torch.equal(trained(personal), expected)
    assert not torch.equal(trained(other), expected)


class Halves(Exchange):
    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(result.delta / 2)


def test_an_exchange_goes_on_to_another_callback() -> None:
    clients, exchange = clients_that_reach([[2.0], [4.0]], [1, 1]), Halves()
    alone = Federated(1.0, exchange=exchange, seed=1)
    assert float(fit_quadratic(alone, Quadratic(1.0, [0.0]), clients, 1)) == 1.5  # half of the mean, 3
    clipped = Federated(1.0, exchange=[Clip(1.0), exchange], seed=1)
    assert float(fit_quadratic(clipped, Quadratic(1.0, [0.0]), clients, 1)) == 0.5


def test_a_privacy_divides_by_the_cohort_of_the_callback_that_trains() -> None:
    clients = clients_that_reach([[2.0], [4.0]], [1, 1])
    privacy = DifferentialPrivacy(100.0, noise_multiplier=0.0, delta=0.1)

    def make(probability: float) -> Federated:
        sampler = BernoulliSampler(probability)
        return Federated(sampler=sampler, aggregation=WeightedMean("uniform"), exchange=privacy, seed=1)

    both, _ = make(1.0), make(0.5)
    # the updates 2 and 4, divided by the two clients that train in each round; by one it would be 6
    assert float(fit_quadratic(both, Quadratic(1.0, [0.0]), clients, 1)) == 3.0


@pytest.mark.parametrize("make", [lambda: {"objective": ControlVariates()}, lambda: {"server": Adaptive("adam")}])
def test_a_fit_is_not_continued_or_saved_with_the_state_of_another_callback_s(make: Any, tmp_path: Path) -> None:
    clients, part = clients_that_reach([[2.0], [4.0]], [1, 1]), make()
    first, other = Federated(1.0, seed=1, **part), Federated(1.0, seed=1, local_epochs=2, **part)
    module, data = Quadratic(0.5, [0.0]), TensorDataModule(clients, batch_size=None)
    trainer = quiet_trainer(max_epochs=2, callbacks=[first])
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "2.ckpt")
    fit_quadratic(other, Quadratic(0.5, [0.0]), clients, 1)
    trainer.fit_loop.max_epochs = 4
    message = r" no longer has the state of this fit: another callback has this part, too, .*Give each callback a part"
    with pytest.raises(ValueError, match=message):
        trainer.save_checkpoint(tmp_path / "no.ckpt")
    with pytest.raises(ValueError, match=message):
        trainer.fit(module, datamodule=data)
    trainer.fit(module, datamodule=data, ckpt_path=tmp_path / "2.ckpt")
    alone = Federated(1.0, seed=1, **make())
    assert float(module.w) == float(fit_quadratic(alone, Quadratic(0.5, [0.0]), clients, 4))


def test_a_fit_goes_on_with_parts_without_a_state_after_another_callback_s_fit() -> None:
    clients = clients_that_reach([[2.0], [4.0]], [1, 1])
    parts: dict[str, Any] = {"objective": Proximal(1.0), "exchange": Clip(1.0)}
    first, other = Federated(1.0, seed=1, **parts), Federated(1.0, seed=1, **parts)
    module, data = Quadratic(1.0, [0.0]), TensorDataModule(clients, batch_size=None)
    trainer = quiet_trainer(max_epochs=1, callbacks=[first])
    trainer.fit(module, datamodule=data)
    fit_quadratic(other, Quadratic(1.0, [0.0]), clients, 1)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=data)
    # each client moves to its optimum, and sends a step of length 1 of that
    assert float(module.w) == 2.0
