"""A client's pulls, looks, mixes and messages all have the model that it received, not the server's own."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.toys import BodyAndHead, Quadratic, fit_clients, fit_quadratic, own_model, quadratic_clients
from lightning.pytorch.callbacks import Callback
from torch import Tensor

import fl_lightning as fl
from fl_lightning import parts

A, C = [1.0, 4.0], [0.0, 1.0]


class Halved(parts.Exchange):
    """A message that loses half of the model on its way down."""

    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return model / 2


class Received(Callback):
    """Keeps what clients received, by round and client."""

    def __init__(self) -> None:
        self.models: dict[tuple[int, int], list[float]] = {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        self.models[client.task.round, client.task.client] = client.received.tolist()

    @property
    def drawn(self) -> list[int]:
        return [client for _, client in sorted(self.models)]


class InTurn(parts.Exchange):
    """The first client of a round gets the model, the second half of it, and so on."""

    def download(self, task: parts.Task, model: Tensor) -> Tensor:
        return model / (1 + task.slot)


def test_a_sum_of_updates_has_each_from_what_its_client_received() -> None:
    exchange = [InTurn(), parts.DifferentialPrivacy(9.0, noise_multiplier=0.0, delta=1e-5)]
    callback = fl.FedAvg(1.0, weighting="uniform", exchange=exchange)
    # From 4 and from 2 clients go half of the way to 0: by -2 and by -1.
    assert float(fit_quadratic(callback, Quadratic(0.5, start=4.0), quadratic_clients([1.0] * 2, [0.0] * 2), 1)) == 2.5


@pytest.mark.parametrize("exchange", [None, Halved()])
def test_a_proximal_term_pulls_to_the_received_model_where_training_starts_from_a_mix(exchange: Any) -> None:
    mu, lr, share_lr = 0.5, 0.1, 2.0
    callback = fl.Federated(
        1.0, schedule=parts.AdaptiveStart(lr=share_lr), objective=parts.Proximal(mu), exchange=exchange and [exchange]
    )
    fit_quadratic(callback, Quadratic(lr, start=0.4), quadratic_clients(A, C), rounds=3)
    last, shares, w = [0.4, 0.4], [1.0, 1.0], 0.4
    for _ in range(3):
        received = w if exchange is None else w / 2
        for k, (a, c) in enumerate(zip(A, C, strict=True)):
            mix = last[k] + (received - last[k]) * shares[k]
            slope = (received - last[k]) * a * (mix - c)
            shares[k] = min(1.0, max(0.0, shares[k] - share_lr * slope))
            mix = last[k] + (received - last[k]) * shares[k]
            last[k] = mix - lr * (a * (mix - c) + mu * (mix - received))
        w = sum(last) / 2
    assert [float(own_model(callback, k)) for k in (0, 1)] == pytest.approx(last, abs=1e-14)


def test_candidates_are_scored_with_what_they_receive() -> None:
    # at w = 1 client 0 has the larger loss, at the received 1/2 client 1
    seen = Received()
    callback = fl.FedAvg(sampler=parts.PowerOfChoice(1, 2), exchange=Halved())
    fit_clients(callback, Quadratic(0.0, start=1.0), quadratic_clients([1.0, 1.0], [-0.1, 2.0]), 1, seen)
    assert seen.drawn == [1]


def test_a_client_that_has_learnt_with_its_own_model_is_no_longer_the_worst() -> None:
    seen = Received()
    callback = fl.Local(sampler=parts.PowerOfChoice(1, 3))
    # one step with learning rate 1 takes a client to its optimum: it then has no loss
    fit_clients(callback, Quadratic(1.0), quadratic_clients([1.0] * 3, [1.0, 3.0, 2.0]), 3, seen)
    assert seen.drawn == [1, 2, 0]


def test_candidates_know_the_message_with_which_they_were_scored_and_train_from_it() -> None:
    seen = Received()
    callback = fl.FedAvg(sampler=parts.PowerOfChoice(1, 2), exchange=parts.TopK(0.5, link="down"))
    clients = [(torch.ones(1, 2).double(), torch.tensor([[c, 2.0]]).double()) for c in (4.0, 3.0)]
    fit_clients(callback, Quadratic(0.5, start=[0.0, 0.0]), clients, 2, seen)
    # after a round the server is at (2, 1); the larger of the two values is sent, once
    assert [model for (number, _), model in seen.models.items() if number == 1] == [[2.0, 0.0]]
    kept = callback.algorithm.chain.members[1].kept
    assert [kept[client].tolist() for client in (0, 1)] == [[2.0, 0.0], [2.0, 0.0]]


ROW = torch.zeros(1, 2)


@pytest.mark.parametrize("kind", [parts.ModelContrast, parts.NotTrueDistillation])
def test_losses_compare_with_the_received_model_beside_a_mix(kind: Any) -> None:
    """The objective asks for the received model, and its loss, wherever it trains from."""
    seen: list[tuple[float, float, float]] = []

    class Noting(kind):  # type: ignore[misc]
        def correction(self, client: Any) -> None:
            a, c = A[client.task.client], C[client.task.client]
            assert client.loss() == pytest.approx(a / 2 * (float(client.received) - c) ** 2, abs=1e-14)
            asked = Mock(features=ROW, logits=ROW, target=ROW[0, :1].long())
            asked.of.return_value = ROW, ROW
            super().correction(client).loss(torch.zeros(()), asked)
            for call in asked.of.call_args_list[:1]:
                seen.append((float(call.args[0]), float(client.received), float(client.start)))

    callback = fl.Federated(1.0, schedule=parts.AdaptiveStart(lr=1.0), objective=Noting(), exchange=[Halved()])
    fit_quadratic(callback, Quadratic(0.1, start=0.4), quadratic_clients(A, C), rounds=4)
    assert all(model == received for model, received, _ in seen)
    assert any(received != start for _, received, start in seen)


def test_the_head_s_phase_of_fedrep_starts_from_the_received_model() -> None:
    seen: dict[int, list[float]] = {}

    class Starts(Callback):
        def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
            seen.setdefault(client.task.phase, []).append(client.start.tolist()[0])

    callback = fl.FedRep("head", 1.0, exchange=Halved())
    clients = [(torch.zeros(1).double(), torch.tensor([1.0]).double())]
    fit_clients(callback, BodyAndHead(), clients, 2, Starts())
    assert seen[0] == seen[1]
    assert seen[0][1] > 0


def test_a_cluster_s_model_is_looked_at_and_evaluated_with_the_client_s_own_values() -> None:
    callback = fl.IFCA(2, 1.0, exchange=parts.PersonalParameters("head"), seed=0)
    clients = [(torch.zeros(1).double(), torch.tensor([c]).double()) for c in (1.0, -1.0, 1.1)]
    module = BodyAndHead()
    torch.nn.init.ones_(module.body.weight)
    fit_clients(callback, module, clients, 4)
    algorithm = callback.algorithm
    for client in range(3):
        body, head = own_model(callback, client).tolist()
        assert head == float(algorithm.chain.members[1].own[client])
        assert body == float(algorithm.schedule.models[algorithm.schedule.chosen[client]][0])
        assert head != 0.0


def test_fine_tuned_clients_receive_a_compressed_model_too() -> None:
    callback = fl.FedAvgFineTuned(1.0, every=1, exchange=parts.TopK(0.5, link="down"))
    clients = [(torch.ones(1, 2).double(), torch.tensor([[4.0, 2.0]]).double())]
    fit_clients(callback, Quadratic(0.5, start=[0.0, 0.0]), clients, 1)
    # the server's first move is to (2, 1), of which the client gets (2, 0); it tunes that by half a way to (4, 2)
    assert own_model(callback, 0).tolist() == [3.0, 1.0]
    assert callback.algorithm.traffic.values_down == 1 + 1


def test_a_frozen_head_is_not_sent() -> None:
    callback = fl.FedBABU("head", 1.0, every=5)
    clients = [(torch.zeros(1).double(), torch.tensor([c]).double()) for c in (1.0, 2.0)]
    fit_clients(callback, BodyAndHead(), clients, 1)
    tunings = 2  # in the last round
    assert callback.algorithm.traffic.values_up == 2
    assert callback.algorithm.traffic.values_down == 2 + tunings


@pytest.mark.parametrize("name", ["PowerOfChoice", "AFL", "Oort", "TiFL"])
def test_samplers_score_clients_with_their_own_values(name: str) -> None:
    """With parameters of its own that solve its task a client's loss is 0."""
    scored: list[dict[int, float]] = []
    kind = {
        "PowerOfChoice": lambda: fl.parts.PowerOfChoice(2, 3),
        "AFL": lambda: fl.parts.ActiveSampler(2),
        "Oort": lambda: fl.parts.Oort(2, fl.parts.VirtualClock()),
        "TiFL": lambda: fl.parts.TierSampler(2, fl.parts.VirtualClock(), 1, 1),
    }[name]()
    take = kind.take_scores
    kind.take_scores = lambda scores: (scored.append(dict(scores)), take(scores))
    callback = fl.Local(sampler=kind)
    fit_clients(callback, Quadratic(1.0), quadratic_clients([1.0] * 3, [1.0, 3.0, 2.0]), 4)
    assert np.isclose(list(scored[-1].values()), 0.0).sum() >= 2
