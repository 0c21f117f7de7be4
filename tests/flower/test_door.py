"""What real clients cannot do ends with a line that says what to write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler

pytest.importorskip("flwr")

from helpers.sites import CLIENTS, VALIDATION, Make, Net, Sites, net, simulate, trainer
from helpers.written import assert_as_in, told

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.data import ClientRotation
from fl_lightning.diagnostics import CentralTwin
from fl_lightning.flower import FlowerClients
from fl_lightning.parts.messages import Payload


class Own(parts.Exchange):
    """Of a user, who says nothing of other machines."""


class OwnScores(parts.UniformSampler):
    """Of a user, whose clients send scores."""

    def score(self, client: Any) -> float:
        return client.loss()


class OwnAtClient(parts.Exchange):
    """Of a user, who says that it works at the client."""

    runs_at = "client"

    def upload(self, result: Any) -> Any:
        return result.with_delta(0.5 * result.delta)


class ByHook(parts.LocalObjective):
    """Of a user, whose correction is no term."""

    runs_at = "server"

    def correction(self, client: Any) -> Any:
        return print


class Counted(OwnAtClient):
    """Of a user, who says so, and sends bits besides."""

    runs_at = "client"

    def payload_up(self, payload: Payload) -> Payload:
        return replace(payload, extra_bits=8)


def with_exchange(*exchange: parts.Exchange, make: Make = fl.FedAvg) -> Make:
    return lambda **more: make(clients_per_round=1.0, exchange=list(exchange), **more)


ALL = partial(fl.FedAvg, 1.0)
UNIFORM = partial(fl.FedAvg, weighting="uniform", buffers="server")


class BySteps(Net):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ByHand(Net):
    automatic_optimization = False


class RateInTensor(Net):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=torch.tensor(0.1))


class Scaled(Net):
    """Its loss is divided by a number that counts what all clients do."""

    def __init__(self, number: str) -> None:
        super().__init__()
        self.number = number

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step(batch, batch_idx) / (1 + getattr(self.trainer, self.number))


class WatchesClients(L.Callback):
    def on_client_end(self, *given: Any) -> None: ...


class ChangesGradients(L.Callback):
    def on_after_backward(self, *given: Any) -> None: ...


def fit(make: Make = ALL, module: Callable[[], Net] = net, site: Any = None, **options: Any) -> Sites:
    """Fit with three sites, and return them; what a site has besides is given."""
    sites = Sites(make, module, **site or {})
    sites.fit(**options)
    return sites


def fit_with_data(make: Make, data: fl.TensorDataModule) -> None:
    """Fit with another data module at the server."""
    clients = FlowerClients(Sites(make), num_clients=3)  # type: ignore[arg-type]
    trainer(make(executor=clients)).fit(net(), datamodule=data)


def grid(**options: Any) -> FlowerClients:
    return FlowerClients(Sites(ALL), **options)  # type: ignore[arg-type]


#: Methods that are refused before any client trains.
METHODS: list[Make] = [
    partial(fl.FedAsync, clients_per_round=2),
    partial(fl.FedAvg, participation=fl.Participation(dropout=0.5)),
    partial(fl.FedAvg, sampler=OwnScores(2)),
    with_exchange(Own()),
    partial(fl.Scaffold, clients_per_round=1.0, option=1),
    partial(fl.MimeLite, clients_per_round=1.0),
    partial(fl.HeteroFL, [1.0], clients_per_round=1.0),
    with_exchange(parts.Clip(1.0), make=fl.Scaffold),
    with_exchange(parts.Clip(1.0), make=partial(fl.FedDyn, 0.1)),
    with_exchange(parts.TopK(0.2, link="down")),
    with_exchange(parts.QSGD(4)),
    with_exchange(parts.SignSGD()),
    with_exchange(parts.RandomK(0.2)),
    with_exchange(parts.LowRank(1)),
    with_exchange(parts.SecureAggregation(1.0), make=UNIFORM),
    with_exchange(parts.TopK(0.5), Counted()),
    partial(fl.FedAvg, continue_epochs=True, local_steps=2),
]
#: Modules, callbacks, data and arguments.
OTHERS: list[Callable[[], object]] = [
    partial(fit, partial(fl.FedAvg, 1.0, buffers="local"), partial(net, norm=True)),
    partial(fit, partial(fl.Federated, sampler=parts.UniformSampler(1.0), objective=ByHook())),
    partial(fit, module=BySteps),
    partial(fit, module=ByHand),
    partial(fit, module=RateInTensor),
    partial(fit, callbacks=[WatchesClients()]),
    partial(fit, callbacks=[ChangesGradients()]),
    partial(fit, callbacks=[CentralTwin()]),
    partial(fit, callbacks=[GradientAccumulationScheduler({1: 2})]),
    partial(fit, callbacks=[fl.ExamplePrivacy(clip=1.0, noise_multiplier=1.0, delta=1e-3)]),
    partial(fit, site={"options": {"callbacks": [fl.ExamplePrivacy(clip=1.0, noise_multiplier=1.0, delta=1e-3)]}}),
    partial(fit_with_data, ALL, fl.TensorDataModule(CLIENTS[:2])),
    partial(fit_with_data, ALL, fl.TensorDataModule(CLIENTS, changes=ClientRotation(1))),
    partial(fit_with_data, partial(fl.FedPer, "head"), fl.TensorDataModule(CLIENTS, val=[VALIDATION] * 3)),
    partial(grid, num_clients=0),
    partial(grid, num_clients=2.5),
    partial(grid, num_clients=2, timeout=0.0),
]


def test_what_real_clients_cannot_do_is_named(tmp_path: Path) -> None:
    sites = [Sites(make) for make in METHODS]
    lines = [told(each.fit, tmp_path) for each in sites]
    assert {message.metadata.message_type for each in sites for message in each.questions} == {"query"}
    lines += [told(each, tmp_path) for each in OTHERS]
    assert_as_in(Path(__file__).with_suffix(".txt"), lines, tmp_path)


def test_a_part_of_ones_own_works_at_the_client_if_it_says_so() -> None:
    make = with_exchange(OwnAtClient())
    assert torch.equal(Sites(make).fit().algorithm.server.model, simulate(make).algorithm.server.model)


def test_local_buffers_are_no_matter_where_there_are_none() -> None:
    Sites(partial(fl.FedAvg, 1.0, buffers="local")).fit(rounds=1)


def by_score(**more: Any) -> fl.FedAvg:
    return fl.FedAvg(sampler=parts.PowerOfChoice(2, 3), **more)


# A score is a loss before the draw.
@pytest.mark.parametrize("make", [ALL, by_score])
@pytest.mark.parametrize("number", ["global_step", "num_training_batches", "estimated_stepping_batches"])
def test_losses_that_read_numbers_of_all_clients_are_named(number: str, make: Make) -> None:
    with pytest.raises(RuntimeError, match=f"`{number}` belongs to all clients together.* Read `current_epoch`"):
        fit(make, partial(net, Scaled, number=number))
