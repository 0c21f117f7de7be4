"""Real clients compute what the simulation computes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from helpers.sites import CLIENTS, VALIDATION, Make, Sites, bytes_of, kept_in_simulation, net, simulate, trainer

from fl_lightning import (
    APFL,
    MOON,
    Clip,
    Ditto,
    FedAdam,
    FedAvg,
    FedDecorr,
    FedDyn,
    FedLC,
    FedNova,
    FedNTD,
    FedPer,
    FedProx,
    FedRep,
    FedSAM,
    PFedMe,
    QFedAvg,
    RADFed,
    Scaffold,
    TensorDataModule,
)
from fl_lightning.parts import LocalDifferentialPrivacy, TopK

EVERYBODY = {"clients_per_round": 1.0}
NOISE = LocalDifferentialPrivacy
METHODS: dict[str, Make] = {
    "FedAvg": partial(FedAvg, 1.0, local_epochs=2),
    "FedAvg, two clients": partial(FedAvg, 2),
    "FedProx": partial(FedProx, 0.1, **EVERYBODY),
    "SCAFFOLD": partial(Scaffold, **EVERYBODY),
    "FedDyn": partial(FedDyn, 0.1, **EVERYBODY),
    "FedNova": partial(FedNova, **EVERYBODY),
    "FedAdam": partial(FedAdam, **EVERYBODY),
    "QFedAvg": partial(QFedAvg, 1.0, **EVERYBODY),
    "RADFed": partial(RADFed, 2, clients_per_round=2),
    "FedPer": partial(FedPer, "head", **EVERYBODY),
    "FedRep": partial(FedRep, "head", **EVERYBODY),
    "Ditto": partial(Ditto, 0.5, **EVERYBODY),
    "MOON": partial(MOON, **EVERYBODY),
    "FedLC": partial(FedLC, **EVERYBODY),
    "FedNTD": partial(FedNTD, **EVERYBODY),
    "FedDecorr": partial(FedDecorr, **EVERYBODY),
    "FedSAM": partial(FedSAM, **EVERYBODY),
    "pFedMe": partial(PFedMe, **EVERYBODY),
    "APFL": partial(APFL, **EVERYBODY),
    "error feedback": lambda **more: FedAvg(1.0, exchange=TopK(0.2), **more),
    "clipped, with error feedback": lambda **more: FedAvg(1.0, exchange=[Clip(0.1), TopK(0.2)], **more),
    "local noise": lambda **more: FedAvg(
        1.0, exchange=[Clip(0.5), NOISE(0.3, noise_multiplier=0.5, delta=1e-3)], **more
    ),
}


@pytest.mark.parametrize("name", METHODS)
def test_server_and_clients_hold_the_tensors_of_the_simulation_and_send_the_bytes_that_are_counted(name: str) -> None:
    simulated = simulate(METHODS[name])
    sites = Sites(METHODS[name])
    deployed = sites.fit()

    assert torch.equal(simulated.algorithm.server.model, deployed.algorithm.server.model)
    assert simulated.algorithm.report == deployed.algorithm.report
    for client in range(3):
        expected = kept_in_simulation(simulated, client)
        kept = sites.kept(100 + client)
        assert kept.keys() == expected.keys()
        assert all(np.array_equal(kept[key], expected[key]) for key in expected)

    traffic = deployed.algorithm.traffic
    assert traffic == simulated.algorithm.traffic
    assert bytes_of(sites.questions) == traffic.bits_down // 8
    # A loss is a number of the message and no array; positions fill whole bytes; the server computes the control
    # variate that a client of SCAFFOLD would send.
    besides = {"QFedAvg": -4 * 6, "SCAFFOLD": -4 * 43 * 6}.get(name, 0)
    assert 0 <= bytes_of(sites.replies) - (traffic.bits_up // 8 + besides) <= 6


@pytest.mark.parametrize("name", ["FedAvg", "FedDyn", "SCAFFOLD", "FedPer", "Ditto", "error feedback"])
def test_batch_norm_and_momentum_change_nothing_of_that(name: str) -> None:
    module = partial(net, norm=True, momentum=0.0 if name == "SCAFFOLD" else 0.9)
    simulated = simulate(METHODS[name], module=module())
    deployed = Sites(METHODS[name], module).fit()
    assert torch.equal(simulated.algorithm.server.model, deployed.algorithm.server.model)
    assert simulated.algorithm.traffic == deployed.algorithm.traffic


def test_local_noise_is_secret_unless_the_bits_of_the_simulation_are_asked_for() -> None:
    make = METHODS["local noise"]
    known = simulate(make, rounds=1).algorithm
    first = Sites(make, options={}).fit(rounds=1).algorithm
    second = Sites(make, options={}).fit(rounds=1).algorithm
    models = [each.server.model for each in (known, first, second)]
    assert not torch.equal(models[0], models[1])
    assert not torch.equal(models[1], models[2])
    # All have the clipped mean update, and noise of 0.5 * 0.3 at each client.
    apart = torch.stack(models).std(0)
    assert 0.02 < float(apart.mean()) < 0.15
    assert first.chain.members[-1].values() == known.chain.members[-1].values() != {}


def test_steps_and_means_that_clients_log_are_those_of_the_simulation() -> None:
    make = partial(Ditto, 0.5, **EVERYBODY)
    simulated = trainer(make(executor="sequential", seed=11))
    simulated.fit(net(), datamodule=TensorDataModule(CLIENTS, val=VALIDATION, batch_size=5))
    sites = Sites(make)
    sites.fit()
    assert sites.trainer.global_step == simulated.global_step == 2 * 2 * (2 + 4 + 3)
    assert sites.trainer.callback_metrics.keys() == simulated.callback_metrics.keys()
    for name, value in simulated.callback_metrics.items():
        assert float(sites.trainer.callback_metrics[name]) == pytest.approx(float(value), rel=1e-6), name
