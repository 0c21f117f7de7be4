"""The parts of docs/examples, each against numbers by hand.

That they resume, roll back and train on two processes is the contract of ``tests/contracts/test_parts.py``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.examples import EXAMPLES, example
from helpers.toys import BodyAndHead, Quadratic, clients_that_reach, fit_clients, fit_quadratic, quadratic_clients
from torch import Tensor, nn

from fl_lightning import AggregationCallback, FedAvg, Federated, FedNova
from fl_lightning.parts import Median, Momentum, Participation, PersonalParameters, Proximal, TopK

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_page_shows_every_example() -> None:
    shown = re.findall(r'^--8<-- "docs/examples/(.+)"$', PAGE.read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in EXAMPLES.glob("*.py"))


# ---- what the library has too ----

#: An example, and the same of the library.
ALIKE: list[tuple[AggregationCallback, AggregationCallback]] = [
    (FedAvg(1.0, aggregation=example("normalized_mean").NormalizedMean()), FedNova(1.0)),
    (FedAvg(1.0, aggregation=example("coordinate_median").CoordinateMedian()), FedAvg(1.0, aggregation=Median())),
    (FedAvg(1.0, exchange=example("top_k").TopK(1)), FedAvg(1.0, exchange=TopK(0.5))),
    (FedAvg(1.0, exchange=example("personal_head").PersonalHead()), FedAvg(1.0, exchange=PersonalParameters("head"))),
    *(
        (of(0.3, 1.0, local_epochs=2), Federated(1.0, objective=Proximal(0.3), server=Momentum(0.9), local_epochs=2))
        for of in (example("own_algorithm").FedProxM, example("short_algorithm").ShortFedProxM)
    ),
]


@pytest.mark.parametrize(("callback", "same"), ALIKE)
def test_an_example_trains_as_what_the_library_has(callback: AggregationCallback, same: AggregationCallback) -> None:
    ends, clients = [], quadratic_clients([1.0] * 3, [4.0, 8.0, 3.0], [1, 3, 2])
    for each in (callback, same):
        torch.nn.init.constant_((module := BodyAndHead()).body.weight, 1.0)  # body and head are not alike
        fit_clients(each, module, clients, 3, batch_size=1)
        traffic = each.algorithm.traffic
        ends.append([float(module.body.weight), traffic.bits_up, traffic.bits_down])
    assert ends[0] == pytest.approx(ends[1], rel=1e-12)


# ---- a sampler, a schedule, an objective, a server optimizer, an executor, an algorithm ----


def test_clients_train_in_turn() -> None:
    module = Quadratic(1.0)
    clients = quadratic_clients([1.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0])
    fit_quadratic(FedAvg(sampler=example("round_robin").RoundRobin(2), executor="sequential"), module, clients, 3)
    assert [sorted(module.seen[i : i + 2]) for i in (0, 2, 4)] == [[0.0, 1.0], [2.0, 3.0], [0.0, 4.0]]


class Reported(L.Callback):
    """Notes the clients that report in each round, and the weight after it."""

    def __init__(self) -> None:
        self.rounds: list[tuple[list[int], float]] = []

    def on_round_end(self, trainer: Any, pl_module: Any) -> None:
        self.rounds.append((trainer.callbacks[0].algorithm.report.reported, float(pl_module.w)))


def test_the_server_waits_for_a_quorum() -> None:
    optima, reported, weight = [1.0, 2.0, 4.0, 8.0], Reported(), 0.0
    schedule, participation = example("quorum").Quorum(3), Participation(dropout=0.5)
    callback = Federated(1.0, schedule=schedule, participation=participation, seed=1)
    fit_quadratic(callback, Quadratic(1.0), quadratic_clients([1.0] * 4, optima), 8, reported)
    # one step takes a client to its optimum
    for clients, shown in reported.rounds:
        weight = sum(optima[client] for client in clients) / len(clients) if len(clients) >= 3 else weight
        assert shown == pytest.approx(weight, abs=1e-12)
    assert {len(clients) >= 3 for clients, _ in reported.rounds} == {True, False}


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_the_anchor_pulls_no_harder_than_mu(executor: Any) -> None:
    # f = (w - 3)^2 / 2 from 1 with lr 1/2 and mu 1/2: 2; then -1 + 1/2 gives 2.25; then -.75 + 1/2 gives 2.375
    callback = Federated(1.0, objective=example("huber_anchor").HuberAnchor(0.5), local_steps=3, executor=executor)
    assert float(fit_quadratic(callback, Quadratic(0.5, 1.0), quadratic_clients([1.0], [3.0]), 1)) == 2.375


class Scaled(L.LightningModule):
    """z = w x with the loss (z - c)^2 / 2, and an output layer that does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1)
        nn.init.ones_(self.w.weight)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.w(x))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, c = batch
        return 0.5 * (self.w(x) - c).square().sum() + 0 * self(x).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.25)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_features_are_kept_near_the_received_model_s(executor: Any) -> None:
    # c = 3, x = 1, mu 1/2: from 1 by (3 - 1) / 4 to 3/2, then by (3 - 3/2 - (3/2 - 1)) / 4 to 7/4
    objective = example("kept_features").KeptFeatures(0.5)
    callback = Federated(1.0, objective=objective, local_steps=2, executor=executor)
    fit_clients(callback, module := Scaled(), [(torch.ones(1, 1).double(), torch.full((1, 1), 3.0).double())])
    assert float(module.w.weight) == 7 / 4


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_an_objective_reads_the_servers_last_move(executor: Any) -> None:
    # lr 1/4 and two steps from 0 to 4: 1, 7/4. The last move is 7/4, mixed in by half: w + (4 - w) / 8 + 7/4 / 4
    server = example("last_move").Remembers()
    objective = example("last_move").LastMove(server, weight=0.5, reach=0.5)
    callback = Federated(1.0, objective=objective, server=server, local_steps=2, executor=executor)
    first = 7 / 4 + (4 - 7 / 4) / 8 + 7 / 4 / 2 / 0.5 / 4
    second = first + (4 - first) / 8 + 7 / 4 / 2 / 0.5 / 4
    assert float(fit_quadratic(callback, Quadratic(0.25), quadratic_clients([1.0], [4.0]), 2)) == second


def test_the_server_moves_by_signs() -> None:
    callback = Federated(1.0, server=example("sign_descent").SignDescent(0.5))
    clients = clients_that_reach([[3.0, -1.0]], [1])
    assert fit_quadratic(callback, Quadratic(1.0, [0.0, 0.0]), clients, 1).tolist() == [0.5, -0.5]


def test_clients_train_in_reversed_order() -> None:
    forward, backward = Quadratic(1.0), Quadratic(1.0)
    clients = quadratic_clients([1.0] * 3, [1.0, 2.0, 6.0])
    fit_quadratic(FedAvg(1.0, executor="sequential"), forward, clients, 1)
    weights = fit_quadratic(FedAvg(1.0, executor=example("reversed_order").ReversedOrder()), backward, clients, 1)
    assert backward.seen == forward.seen[::-1]
    assert float(weights) == 3.0


# ---- data ----


def test_a_partitioner_and_a_data_module_of_ones_own() -> None:
    alternating = example("alternating").Alternating
    data = example("own_data").WineDataModule(alternating(num_clients=6), batch_size=16)
    data.prepare_data()
    data.setup()
    partition = alternating(num_clients=4)(np.zeros(10, dtype=np.int64))
    assert [client.tolist() for client in partition.indices] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert data.client_dataset(0)[0][0].shape == (13,)
