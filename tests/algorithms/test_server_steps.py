"""FedExP and MIFA on numbers by hand, DiLoCo beside a plain loop and what it reduces to."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import (
    BodyAndHead,
    Quadratic,
    clients_that_reach,
    fit_clients,
    fit_quadratic,
    quadratic_clients,
    quiet_trainer,
)
from torch import Tensor, nn

import fl_lightning as fl
from fl_lightning import parts

CLIENTS = clients_of((6,), (8, 8, 8))


@pytest.mark.parametrize(
    ("optima", "eta"),
    # the mean square is 82 and the mean 1; and clients that agree
    [([10.0, -8.0], 41.0), ([2.0, 2.0], 1.0)],
)
def test_fedexp_steps_beyond_the_mean_where_updates_differ(optima: list[float], eta: float) -> None:
    callback = fl.FedExP(1.0, epsilon=1e-12)
    clients = clients_that_reach([[c] for c in optima], [1, 3])
    w = float(fit_quadratic(callback, Quadratic(1.0, start=[0.0]), clients, rounds=1))
    assert w == pytest.approx(eta * sum(optima) / 2, rel=1e-9)
    assert callback.algorithm.aggregation.values() == pytest.approx({"fed/extrapolation": eta}, rel=1e-9)


def test_fedexp_s_epsilon_bounds_the_step_of_updates_that_cancel_out() -> None:
    clients = clients_that_reach([[4.0], [-4.0]], [1, 1])
    callback = fl.FedExP(1.0, epsilon=2.0)
    fit_quadratic(callback, Quadratic(1.0, start=[0.0]), clients, rounds=1)
    assert callback.algorithm.aggregation.values()["fed/extrapolation"] == pytest.approx(16 / (2 * 2.0))


def test_fedexp_s_step_does_not_see_what_clients_keep() -> None:
    # Targets 4 and -8, learning rate 1/4: body and head of both move by 1 and by -2. The bodies' mean square is 5/2 and
    # their mean -1/2, so that eta is 5/2 / (2 / 4) = 5, and the body -5/2. Round 2: by (4 + 5/2 - 1) / 4 = 11/8 and by
    # (-8 + 5/2 + 2) / 4 = -7/8, of mean square 85/64 and mean 1/4: eta is 85/8.
    callback, module = fl.FedExP(1.0, epsilon=1e-12, exchange=parts.PersonalParameters("head")), BodyAndHead()
    fit_clients(callback, module, quadratic_clients([1.0, 1.0], [4.0, -8.0]), 2)
    assert callback.algorithm.aggregation.values() == pytest.approx({"fed/extrapolation": 85 / 8}, rel=1e-9)
    assert float(module.body.weight) == pytest.approx(-5 / 2 + 85 / 32, abs=1e-9)


class Slowing(Quadratic):
    """Its learning rate is halved after each round."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def test_mifa_counts_a_client_that_stays_away_with_its_last_gradient_at_the_present_rate() -> None:
    # client 1 comes in round 0 alone, client 2 never
    participation = fl.Participation(available=lambda t: [0, 1] if t == 0 else [0])
    clients = quadratic_clients([1.0, 2.0, 1.0], [1.0, -1.0, 50.0])
    callback = fl.MIFA(1.0, participation=participation)
    w = float(fit_quadratic(callback, Slowing(0.2, start=0.0), clients, rounds=3))
    expected, gradients = 0.0, [0.0, 0.0, 0.0]
    for number, rate in enumerate([0.2, 0.1, 0.05]):
        gradients[0] = expected - 1.0
        if number == 0:
            gradients[1] = 2 * (expected + 1.0)
        expected -= rate * sum(gradients) / 3
    assert w == pytest.approx(expected, abs=1e-14)


def test_the_rates_of_steps_of_two_passes_count() -> None:
    # gradients -1 and 2 at 0, so they are taken at -1/10 and 1/10: -1.1 and 2.2, in the mean 0.55
    callback = fl.Federated(1.0, objective=parts.SharpnessAware(0.1), aggregation=parts.RememberedUpdates())
    w = fit_quadratic(callback, Quadratic(0.2, start=0.0), quadratic_clients([1.0, 2.0], [1.0, -1.0]), rounds=1)
    assert float(w) == pytest.approx(-0.2 * 0.55, abs=1e-14)


class Inner(Module):
    """A linear model, trained by AdamW."""

    def __init__(self) -> None:
        super().__init__(linear())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.05)


def trained(callback: fl.AggregationCallback, rounds: int = 3, shuffle: bool = False) -> Tensor:
    module = Inner()
    data = fl.TensorDataModule(CLIENTS, batch_size=4, shuffle=shuffle)
    quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=data)
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_diloco_is_its_algorithm_with_the_optimizers_of_pytorch() -> None:
    server = Inner()
    outer = torch.optim.SGD(server.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    workers = [Inner() for _ in CLIENTS]
    inner = [worker.configure_optimizers() for worker in workers]
    made = 0
    for _ in range(3):
        for worker, optimizer, (x, y) in zip(workers, inner, CLIENTS, strict=True):
            worker.load_state_dict(server.state_dict())
            for step in range(made, made + 3):
                start = 4 * (step % 2)
                optimizer.zero_grad()
                worker.training_step((x[start : start + 4], y[start : start + 4]), 0).backward()
                optimizer.step()
        made += 3
        for parameter, *theirs in zip(*(each.parameters() for each in (server, *workers)), strict=True):
            parameter.grad = parameter.detach() - torch.stack([each.detach() for each in theirs]).mean(0)
        outer.step()
    expected = nn.utils.parameters_to_vector(server.parameters()).detach()
    assert (trained(fl.DiLoCo(local_steps=3)) - expected).abs().max() < 1e-14


def test_diloco_with_an_outer_step_of_one_is_fedavg_with_optimizers_that_go_on() -> None:
    diloco = fl.DiLoCo(local_steps=2, continue_epochs=False, server_lr=1.0, momentum=0.0, seed=1)
    kept = fl.FedAvg(1.0, weighting="uniform", optimizer_state="kept", seed=1)
    assert (trained(diloco, shuffle=True) - trained(kept, shuffle=True)).abs().max() < 1e-15
