"""Parts that two callbacks have, which are used in turn: each fit has the other parts of its own callback."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor, nn

from fl_lightning import BernoulliSampler, Federated, TensorDataModule
from fl_lightning.parts import (
    ClientResult,
    Clip,
    ControlVariates,
    Correction,
    DifferentialPrivacy,
    Exchange,
    LocalObjective,
    PersonalParameters,
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

    needs_summed_lr = starts_from_server = True

    def __init__(self, inner: LocalObjective) -> None:
        self.inner = inner

    @property
    def held_parts(self) -> list[LocalObjective]:
        return [self.inner]

    def correction(self, client: Any) -> Correction | None:
        return self.inner.correction(client)

    def on_client_end(self, result: Any) -> None:
        self.inner.on_client_end(result)


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
