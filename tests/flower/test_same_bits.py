"""Real clients compute what the simulation computes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from helpers.marks import with_marks
from helpers.sites import CLIENTS, VALIDATION, Make, Net, Sites, assert_kept, bytes_of, net, simulate, trainer

import fl_lightning as fl
from fl_lightning import parts

EVERYBODY = {"clients_per_round": 1.0}
ALL = partial(fl.FedAvg, 1.0)
CLOCK = parts.VirtualClock([3.0, 2.0, 1.0])
NOISE = parts.LocalDifferentialPrivacy


class Pulled(parts.LocalObjective):
    """Of a user, whose term has no vector, and which one client does without."""

    runs_at = "server"

    def correction(self, client: parts.LocalClient) -> parts.Term | None:
        return None if client.task.client == 1 else parts.Term(pull=0.4)


METHODS: dict[str, Make] = {
    "FedAvg": partial(fl.FedAvg, 2, local_epochs=2),
    "FedProx": partial(fl.FedProx, 0.1, **EVERYBODY),
    "SCAFFOLD": partial(fl.Scaffold, **EVERYBODY),
    "FedDyn": partial(fl.FedDyn, 0.1, **EVERYBODY),
    "FedNova": partial(fl.FedNova, **EVERYBODY),
    "FedAdam": partial(fl.FedAdam, **EVERYBODY),
    "QFedAvg": partial(fl.QFedAvg, 1.0, **EVERYBODY),
    "FedExP": partial(fl.FedExP, **EVERYBODY),
    "MIFA": partial(fl.MIFA, clients_per_round=2),
    "DiLoCo": partial(fl.DiLoCo, local_steps=3, continue_epochs=False),
    "RADFed": partial(fl.RADFed, 2, clients_per_round=2),
    "HierFAVG": partial(fl.HierFAVG, [[0, 2], [1]], 2),
    "FedPer": partial(fl.FedPer, "head", **EVERYBODY),
    "FedRep": partial(fl.FedRep, "head", **EVERYBODY),
    "Ditto": partial(fl.Ditto, 0.5, **EVERYBODY),
    "a user's term": partial(fl.Federated, objective=Pulled(), **EVERYBODY),
    "MOON": partial(fl.MOON, **EVERYBODY),
    "FedLC": partial(fl.FedLC, **EVERYBODY),
    "FedNTD": partial(fl.FedNTD, **EVERYBODY),
    "FedDecorr": partial(fl.FedDecorr, **EVERYBODY),
    "FedSAM": partial(fl.FedSAM, **EVERYBODY),
    "pFedMe": partial(fl.PFedMe, **EVERYBODY),
    "APFL": partial(fl.APFL, **EVERYBODY),
    "FedALA": partial(fl.FedALA, "head", **EVERYBODY),
    "Fed-RoD": partial(fl.FedRoD, "head", **EVERYBODY),
    "FedProto": partial(fl.FedProto, **EVERYBODY),
    "IFCA": partial(fl.IFCA, 2, **EVERYBODY),
    "fine-tuning": partial(fl.FedAvgFineTuned, 1.0, every=2),
    "FedBABU": partial(fl.FedBABU, "head", every=1, fine_tune_epochs=1, clients_per_round=2),
    "Per-FedAvg": partial(fl.PerFedAvg, **EVERYBODY),
    "power of choice": lambda **more: fl.FedPer("head", sampler=parts.PowerOfChoice(1, 2), **more),
    "AFL": lambda **more: fl.FedAvg(sampler=parts.ActiveSampler(2), **more),
    "Oort": lambda **more: fl.FedAvg(sampler=parts.Oort(2, CLOCK), **more),
    "TiFL": lambda **more: fl.FedAvg(sampler=parts.TierSampler(1, CLOCK, num_tiers=2, interval=2), **more),
    "RADFedi": lambda **more: fl.RADFed(2, sampler=parts.ImportanceSampler(2), **more),
    "error feedback": lambda **more: fl.FedAvg(1.0, exchange=parts.TopK(0.2), **more),
    "clipped, with error feedback": lambda **more: fl.FedAvg(1.0, exchange=[fl.Clip(0.1), parts.TopK(0.2)], **more),
    "local noise": lambda **more: fl.FedAvg(
        1.0, exchange=[fl.Clip(0.5), NOISE(0.3, noise_multiplier=0.5, delta=1e-3)], **more
    ),
}


#: Bytes of models that go down once more than is counted: a client that was scored gets the model again to train, and
#: IFCA's client gets the model of the cluster that it chose last.
SENT_AGAIN = {"power of choice": 2 * 100, "AFL": 2 * 172, "TiFL": 172, "RADFedi": 2 * 172, "IFCA": 6 * 172}
#: Bytes that are counted and are in no array, less those of arrays that are not counted. Losses and scores are plain
#: values. The server computes the control variate that a client of SCAFFOLD would send. FedProto's sums are float64,
#: and a choice has 8 bytes.
NOT_IN_ARRAYS = {
    **{"QFedAvg": -4 * 6, "SCAFFOLD": -4 * 43 * 6, "FedProto": 4 * 18 * 6, "IFCA": 4 * 6},
    **{"power of choice": -4 * 4, "AFL": -4 * 7, "Oort": -4 * 4, "TiFL": -4 * 3, "RADFedi": -4 * 7},
}
#: Each of these takes a way of its own through messages; the others are long ones.
BY_DEFAULT = {
    *("FedAvg", "a user's term", "SCAFFOLD", "FedDyn", "FedNova", "QFedAvg", "RADFed", "FedRep", "Ditto", "MOON"),
    *("FedALA", "Fed-RoD", "FedProto", "IFCA", "FedBABU", "power of choice", "RADFedi"),
    *("clipped, with error feedback", "local noise"),
}


@pytest.mark.parametrize("name", with_marks(METHODS, BY_DEFAULT))
def test_server_and_clients_hold_the_tensors_of_the_simulation_and_send_the_bytes_that_are_counted(name: str) -> None:
    simulated = simulate(METHODS[name])
    sites = Sites(METHODS[name])
    deployed = sites.fit()

    assert torch.equal(simulated.algorithm.server.model, deployed.algorithm.server.model)
    assert simulated.algorithm.report == deployed.algorithm.report
    assert_kept(sites, simulated)

    traffic = deployed.algorithm.traffic
    assert traffic == simulated.algorithm.traffic
    assert bytes_of(sites.questions) == traffic.bits_down // 8 + SENT_AGAIN.get(name, 0)
    # A loss, a score and a choice are numbers of a message and no arrays; positions fill whole bytes.
    besides = NOT_IN_ARRAYS.get(name, 0)
    assert 0 <= bytes_of(sites.replies) - (traffic.bits_up // 8 + besides) <= 6


NORMED = ["FedAvg", "FedDyn", "SCAFFOLD", "FedPer", "Ditto", "error feedback", "IFCA", "fine-tuning"]


@pytest.mark.parametrize("name", with_marks(NORMED, {"SCAFFOLD", "fine-tuning", "error feedback"}))
def test_batch_norm_and_momentum_change_nothing_of_that(name: str) -> None:
    module = partial(net, norm=True, momentum=0.0 if name == "SCAFFOLD" else 0.9)
    make = partial(fl.FedAvgFineTuned, 1.0, every=1) if name == "fine-tuning" else METHODS[name]
    simulated = simulate(make, module=module())
    deployed = Sites(make, module).fit()
    assert torch.equal(simulated.algorithm.server.model, deployed.algorithm.server.model)
    assert simulated.algorithm.traffic == deployed.algorithm.traffic


class FallingByLosses(Net):
    """Its learning rate falls when the server's validation loss does not."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.2)
        falling = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": falling, "monitor": "val_loss"}}


def test_a_learning_rate_that_falls_by_the_servers_metric_falls_at_the_clients() -> None:
    sites = Sites(ALL, partial(net, FallingByLosses))
    deployed = sites.fit(rounds=3).algorithm
    assert sites.trainer.optimizers[0].param_groups[0]["lr"] < 0.2
    simulated = simulate(ALL, rounds=3, module=net(FallingByLosses)).algorithm
    assert torch.equal(deployed.server.model, simulated.server.model)


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
    make = partial(fl.Ditto, 0.5, **EVERYBODY)
    simulated = trainer(make(executor="sequential", seed=11))
    simulated.fit(net(), datamodule=fl.TensorDataModule(CLIENTS, val=VALIDATION, batch_size=5))
    sites = Sites(make)
    sites.fit()
    assert sites.trainer.global_step == simulated.global_step == 2 * 2 * (2 + 4 + 3)
    assert sites.trainer.callback_metrics.keys() == simulated.callback_metrics.keys()
    for name, value in simulated.callback_metrics.items():
        assert float(sites.trainer.callback_metrics[name]) == pytest.approx(float(value), rel=1e-6), name
    assert len(sites.trainer.datamodule.test_dataloader().dataset) == len(CLIENTS[0][0])
    assert sites.trainer.progress_bar_metrics.keys() == simulated.progress_bar_metrics.keys() >= {"first_label"}


class Annealed(Net):
    """The weight of its penalty falls to 0 in the last round."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        left = 1 - (self.current_epoch + 1) / self.trainer.max_epochs
        penalty = sum(parameter.square().sum() for parameter in self.parameters())
        return super().training_step(batch, batch_idx) + left * penalty / (batch_idx + 1)


# Clients are fine-tuned after the last round alone.
@pytest.mark.parametrize("make", [ALL, partial(fl.FedAvgFineTuned, 1.0, every=5)])
def test_a_loss_may_read_the_round_and_how_many_there_are(make: Make) -> None:
    sites = Sites(make, partial(net, Annealed))
    simulated = simulate(make, module=net(Annealed))
    assert torch.equal(sites.fit().algorithm.server.model, simulated.algorithm.server.model)
    assert_kept(sites, simulated)


@pytest.mark.parametrize("make", [ALL, partial(fl.Ditto, 0.5, **EVERYBODY)])
def test_what_optimizers_hold_is_kept_at_the_site(make: Make) -> None:
    make = partial(make, optimizer_state="kept")
    momentum = partial(net, momentum=0.9)
    simulated = simulate(make, rounds=3, module=momentum())
    sites = Sites(make, momentum)
    deployed = sites.fit(rounds=3)
    assert torch.equal(simulated.algorithm.server.model, deployed.algorithm.server.model)
    assert not torch.equal(simulate(make, module=net()).algorithm.server.model, simulated.algorithm.server.model)
    assert any("ClientOptimizers" in key for key in sites.kept(100))
    assert_kept(sites, simulated)
