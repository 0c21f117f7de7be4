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
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quadratic_clients, quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, FedBuff, Federated, TensorDataModule
from fl_lightning.diagnostics import Communication
from fl_lightning.parts import ClientResult, Momentum, Participation, Proximal

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def test_the_page_shows_every_example() -> None:
    shown = re.findall(r'^--8<-- "docs/examples/(.+)"$', PAGE.read_text(), re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in EXAMPLES.glob("*.py"))


# ---- aggregations ----


def test_normalized_averaging() -> None:
    # lr 1/2 from 0, one sample a step: client 0 (1 sample, target 4) gets to 2 in one step, client 1 (3 samples,
    # target 8) to 4, 6, 7 in three. tau = 1/4 1 + 3/4 3 = 5/2, the mean direction 1/4 2/1 + 3/4 7/3 = 9/4
    clients = quadratic_clients([1.0, 1.0], [4.0, 8.0], [1, 3])
    data = TensorDataModule(clients=clients, batch_size=1)
    for callback, expected in (
        (FedAvg(1.0, aggregation=example("normalized_mean").NormalizedMean()), 5 / 2 * 9 / 4),
        (FedAvg(1.0), 1 / 4 * 2 + 3 / 4 * 7),
    ):
        module = Quadratic(0.5)
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, datamodule=data)
        assert float(module.w.detach()) == pytest.approx(expected, abs=1e-12)


def test_the_median_of_three_clients() -> None:
    clients = clients_that_reach([[1.0, 5.0], [2.0, -7.0], [100.0, 6.0]], [1, 1, 1])
    callback = FedAvg(1.0, aggregation=example("coordinate_median").CoordinateMedian())
    assert fit_quadratic(callback, Quadratic(1.0, [0.0, 0.0]), clients, 1).tolist() == [2.0, 5.0]


def test_a_buffer_of_three_results_moves_to_their_median() -> None:
    clients = clients_that_reach([[1.0], [2.0], [100.0]], [1, 1, 1])
    callback = FedBuff(3, 3, aggregation=example("coordinate_median").CoordinateMedian())
    assert fit_quadratic(callback, Quadratic(1.0, [0.0]), clients, 1).tolist() == [2.0]


# ---- exchanges ----


def test_error_feedback_sends_later_what_was_left_out() -> None:
    # the client goes to (3, 1). Round 1 sends 3 and keeps 1; round 2 has 1 + 1 to send; round 3 goes back from 2 to 1
    clients = clients_that_reach([[3.0, 1.0]], [1])
    communication = Communication()
    for rounds, expected in ((1, [3.0, 0.0]), (2, [3.0, 2.0]), (3, [3.0, 1.0])):
        module = Quadratic(1.0, [0.0, 0.0])
        callback = FedAvg(1.0, exchange=example("top_k").TopK(1))
        data = TensorDataModule(clients=clients, batch_size=None, shuffle=False)
        quiet_trainer(max_epochs=rounds, callbacks=[callback, communication]).fit(module, datamodule=data)
        assert module.w.detach().tolist() == expected
    # float64 down: 2 x 64 bits; up: one number of 64 bits and its position among two, 1 bit
    assert communication.values["fed/bytes_down"] == 3 * 16
    assert communication.values["fed/bytes_up"] == 3 * 65 / 8


class BodyAndHead(Quadratic):
    """f_k = |body + head - c|^2 / 2 with two personal possibilities: body and head move alike."""

    def __init__(self) -> None:
        super().__init__(lr=0.25)
        self.body = nn.Linear(1, 1, bias=False).double()
        self.head = nn.Linear(1, 1, bias=False).double()
        del self.w
        nn.init.zeros_(self.body.weight)
        nn.init.zeros_(self.head.weight)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (0.5 * (self.body.weight + self.head.weight - batch[1]) ** 2).mean()


def test_heads_stay_with_their_clients() -> None:
    # targets 4 and 8, lr 1/4: body and head both move by (c - body - head) / 4. Round 1: 1 and 2; the body becomes 3/2.
    # Round 2: client 0 has 4 - 3/2 - 1 = 3/2, moves by 3/8; client 1 has 8 - 3/2 - 2 = 9/2, moves by 9/8
    data = TensorDataModule(clients=quadratic_clients([1.0, 1.0], [4.0, 8.0]), batch_size=None)
    module, personal = BodyAndHead(), example("personal_head").PersonalHead()
    communication = Communication()
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, exchange=personal), communication])
    trainer.fit(module, datamodule=data)
    assert float(module.body.weight) == pytest.approx(3 / 2 + (3 / 8 + 9 / 8) / 2)
    assert [float(personal.heads[client]) for client in (0, 1)] == pytest.approx([1 + 3 / 8, 2 + 9 / 8])
    # two rounds, two clients, the body's one number of 64 bits each way
    assert communication.values["fed/bytes_up"] == communication.values["fed/bytes_down"] == 2 * 2 * 8


# ---- a sampler, a schedule, an objective, a server optimizer, an executor, an algorithm ----


def test_clients_train_in_turn() -> None:
    module = Quadratic(1.0)
    clients = quadratic_clients([1.0] * 5, [0.0, 1.0, 2.0, 3.0, 4.0])
    fit_quadratic(FedAvg(sampler=example("round_robin").RoundRobin(2), executor="sequential"), module, clients, 3)
    assert [sorted(module.seen[i : i + 2]) for i in (0, 2, 4)] == [[0.0, 1.0], [2.0, 3.0], [0.0, 4.0]]


class Reported(L.Callback):
    """Notes the clients that report in each round, and the weight after it; may break off a round once."""

    def __init__(self, breaks_off_at: int | None = None) -> None:
        self.breaks_off_at = breaks_off_at
        self.clients: list[int] = []
        self.rounds: list[tuple[list[int], float]] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.clients = []

    def on_client_end(self, trainer: L.Trainer, pl_module: L.LightningModule, result: ClientResult) -> None:
        self.clients.append(result.task.client)
        if trainer.current_epoch == self.breaks_off_at and len(self.clients) == 2:
            self.breaks_off_at = None
            raise ArithmeticError

    def on_round_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.rounds.append((self.clients, float(pl_module.w)))


def test_the_server_waits_for_a_quorum() -> None:
    optima, reported, weight = [1.0, 2.0, 4.0, 8.0], Reported(), 0.0
    schedule, participation = example("quorum").Quorum(3), Participation(dropout=0.5)
    callback = Federated(1.0, schedule=schedule, participation=participation, seed=1)
    trainer = quiet_trainer(max_epochs=8, callbacks=[callback, reported])
    trainer.fit(Quadratic(1.0), datamodule=TensorDataModule(quadratic_clients([1.0] * 4, optima), batch_size=None))
    # one step takes a client to its optimum
    for clients, shown in reported.rounds:
        weight = sum(optima[client] for client in clients) / len(clients) if len(clients) >= 3 else weight
        assert shown == pytest.approx(weight, abs=1e-12)
    assert {len(clients) >= 3 for clients, _ in reported.rounds} == {True, False}


def test_a_round_that_breaks_off_counts_for_no_quorum() -> None:
    data = TensorDataModule(quadratic_clients([1.0] * 3, [1.0, 2.0, 6.0]), batch_size=None)
    callback, reported = Federated(1.0, schedule=example("quorum").Quorum(3), executor="sequential"), Reported(1)
    module, trainer = Quadratic(1.0), quiet_trainer(max_epochs=3, callbacks=[callback, reported])
    with pytest.raises(ArithmeticError):
        trainer.fit(module, datamodule=data)
    trainer.fit(module, datamodule=data)
    assert [weight for _, weight in reported.rounds] == [3.0, 3.0, 3.0]


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
    data = TensorDataModule([(torch.ones(1, 1).double(), torch.full((1, 1), 3.0).double())], batch_size=None)
    quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module := Scaled(), datamodule=data)
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


@pytest.mark.parametrize(("file", "name"), [("own_algorithm", "FedProxM"), ("short_algorithm", "ShortFedProxM")])
def test_an_algorithm_is_the_composition_of_its_parts(file: str, name: str) -> None:
    clients, named = quadratic_clients([1.0, 3.0], [1.0, 2.0], [1, 3]), getattr(example(file), name)
    own = named(0.3, 1.0, local_epochs=2)
    composed = Federated(1.0, objective=Proximal(0.3), server=Momentum(0.9), local_epochs=2)
    weights = [fit_quadratic(callback, Quadratic(0.1), clients, 3) for callback in (own, composed)]
    assert torch.equal(weights[0], weights[1])
    # round 1 of a client with a and c from 0: .1 a c, then .1 (a (c - w) - .3 w) more; round 1 has no momentum yet
    one_round = fit_quadratic(named(0.3, 1.0, local_epochs=2), Quadratic(0.1), clients, 1)
    first, second = 0.1 + 0.1 * (0.9 - 0.03), 0.6 + 0.1 * (3 * 1.4 - 0.18)
    assert float(one_round) == pytest.approx(first / 4 + second * 3 / 4)


# ---- data ----


def test_a_partitioner_and_a_data_module_of_ones_own() -> None:
    alternating = example("alternating").Alternating
    data = example("own_data").WineDataModule(alternating(num_clients=6), batch_size=16)
    data.prepare_data()
    data.setup()
    partition = alternating(num_clients=4)(np.zeros(10, dtype=np.int64))
    assert [client.tolist() for client in partition.indices] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert data.client_dataset(0)[0][0].shape == (13,)
