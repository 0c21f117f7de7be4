"""Vectors of clients other than the one at work: as of the round's start, whatever the executor; or a clear error.

Three clients with optima 8, 16 and 24 go half of the way in their one step. Each starts from the vector of its
neighbour, client 0 from that of client 1 and so on, and keeps its model as its own vector, at first 0:

* round 1: from 0, 0 and 0 to 4, 8 and 12;
* round 2: from 8, 12 and 4 to 8, 14 and 14;
* round 3: from 14, 14 and 8 to 11, 15 and 16, whose mean is 14.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.toys import clients_that_reach, quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, FedDyn, Federated, PersonalParameters, RADFed, Scaffold, TensorDataModule
from fl_lightning.parts import (
    ClientResult,
    ClientSampler,
    ClientStates,
    Exchange,
    Federation,
    InnerProductManipulation,
    Task,
)

CLIENTS = clients_that_reach([[8.0], [16.0], [24.0]], [1, 1, 1])


class Half(L.LightningModule):
    """Goes half of the way to the client's optimum in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return 0.5 * (self.w - batch[1]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Neighbour(Exchange):
    """Lets a client start from the vector of its neighbour."""

    def on_fit_start(self, federation: Federation) -> None:
        self.states = ClientStates(federation, federation.model)

    def of_neighbour(self, client: int) -> Tensor:
        return self.states[(client + 1) % self.federation.num_clients]

    def download(self, task: Task, model: Tensor) -> Tensor:
        return self.of_neighbour(task.client)

    def upload(self, result: ClientResult) -> ClientResult:
        self.states.put(result.task.client, result.vector)
        assert torch.equal(self.states[result.task.client], result.vector)  # its own is there at once
        return result


class NeighbourOnEveryProcess(Neighbour):
    """The same, with all vectors on all processes."""

    def on_round_start(self, round_index: int) -> None:
        self.known = self.states.state_dict()["clients"]

    def of_neighbour(self, client: int) -> Tensor:
        return self.known.get((client + 1) % self.federation.num_clients, self.federation.model)


class OwnMadeLate(Exchange):
    """Lets each client go on from its own model; the vectors are made when the first round begins."""

    def on_round_start(self, round_index: int) -> None:
        if round_index == 0:
            self.states = ClientStates(self.federation, self.federation.model)

    def download(self, task: Task, model: Tensor) -> Tensor:
        assert self.states is not None
        return self.states[task.client]

    def upload(self, result: ClientResult) -> ClientResult:
        assert self.states is not None
        self.states.put(result.task.client, result.vector)
        return result


class Save(L.Callback):
    """Writes the weights of each process, or what a function returns there for each client, or its error."""

    def __init__(self, folder: Path, read: Any = None) -> None:
        self.folder, self.read = folder, read

    def on_train_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        found: Any = pl_module.w.tolist()
        if self.read is not None:
            found = [value_or_error(self.read, client) for client in range(3)]
        torch.save(found, self.folder / f"{trainer.global_rank}.pt")


def value_or_error(read: Any, client: int) -> Any:
    try:
        return read(client)
    except RuntimeError as error:
        return str(error)


def fit(callback: Any, *callbacks: Any, rounds: int = 3, processes: int = 1, clients: Any = CLIENTS) -> float:
    options: dict[str, Any] = {"devices": processes, "strategy": "ddp_fork"} if processes > 1 else {}
    module = Half()
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *callbacks], **options)
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=None))
    return float(module.w)


def read_back(folder: Path, processes: int) -> list[Any]:
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(processes)]


@pytest.mark.parametrize("executor", ["sequential", "vectorized", "auto"])
def test_others_have_the_vectors_of_the_rounds_start(executor: Any) -> None:
    assert fit(FedAvg(1.0, exchange=Neighbour(), seed=1, executor=executor)) == 14.0


def test_a_vector_on_another_process_is_an_error_there() -> None:
    text = r"vector of client \d is on process [01] of 2, and this is process [01].*on all processes"
    with pytest.raises(Exception, match=text):
        fit(FedAvg(1.0, exchange=Neighbour(), seed=1, executor="sequential"), processes=2)


@pytest.mark.parametrize("processes", [1, 2])
def test_all_vectors_can_be_known_on_all_processes(processes: int, tmp_path: Path) -> None:
    callback = FedAvg(1.0, exchange=NeighbourOnEveryProcess(), seed=1, executor="sequential")
    fit(callback, Save(tmp_path), processes=processes)
    assert read_back(tmp_path, processes) == [[14.0]] * processes


def test_circulating_models_find_others_on_every_process(tmp_path: Path) -> None:
    # the models reach the vectors above, and the server's is their mean
    fit(RADFed(3, 1.0, exchange=Neighbour(), seed=1), Save(tmp_path), processes=2)
    assert read_back(tmp_path, 2) == [[14.0]] * 2


@pytest.mark.parametrize("processes", [1, 2])
def test_vectors_of_the_first_rounds_start_live_where_their_clients_train(processes: int, tmp_path: Path) -> None:
    # by size alone, clients 0 and 1 would train together. After three halves of the way: 7, 14 and 21
    clients = clients_that_reach([[8.0], [16.0], [24.0]], [1, 2, 3])
    fit(FedAvg(1.0, exchange=OwnMadeLate(), seed=1), Save(tmp_path), processes=processes, clients=clients)
    for [end] in read_back(tmp_path, processes):
        assert end == pytest.approx((7 + 2 * 14 + 3 * 21) / 6, abs=1e-12)


def personal() -> tuple[Any, Any]:
    exchange = PersonalParameters("*")
    return FedAvg(1.0, exchange=exchange, seed=1), lambda client: float(exchange.of_client(client)["w"])


def scaffold() -> tuple[Any, Any]:
    callback = Scaffold(1.0, seed=1)
    return callback, lambda client: float(callback.client_control_variate(client))


def feddyn() -> tuple[Any, Any]:
    callback = FedDyn(0.5, 1.0, seed=1)
    return callback, lambda client: float(callback.gradient(client))


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (personal, [4.0, 8.0, 12.0]),  # each client's own model
        (scaffold, [-8.0, -16.0, -24.0]),  # the gradient at 0
        (feddyn, [-2.0, -4.0, -6.0]),  # -alpha times the way that the client went
    ],
)
def test_values_of_clients_are_right_or_an_error(
    make: Any, expected: list[float], processes: int, tmp_path: Path
) -> None:
    callback, read = make()
    fit(callback, Save(tmp_path, read), rounds=1, processes=processes)
    for rank, found in enumerate(read_back(tmp_path, processes)):
        for client, value in enumerate(found):
            if client % processes == rank:
                assert value == expected[client]
            else:
                text = f"The vector of client {client} is on process {client % 2} of 2, and this is process {rank}"
                assert value.startswith(text)


class Seen(ClientSampler):
    """Counts how often clients were scored, and notes what the counts are before the round's end has joined them."""

    needs_scores = True

    def cohort_size(self, num_clients: int) -> int:
        return num_clients

    def on_fit_start(self, federation: Federation) -> None:
        self.counts = ClientStates(federation, torch.zeros(1, dtype=torch.float64))
        self.noted: list[list[float]] = []

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return range(num_clients)

    def score(self, client: Any) -> float:
        self.counts.put(client.task.client, self.counts[client.task.client] + 1)
        return 1.0

    def take_scores(self, scores: Any) -> None:
        self.noted.append([float(self.counts[client]) for client in range(3)])


@pytest.mark.parametrize("processes", [1, 2])
def test_all_processes_know_of_new_vectors_when_the_round_ends(processes: int, tmp_path: Path) -> None:
    sampler = Seen()
    fit(Federated(sampler=sampler, seed=1), Save(tmp_path, lambda client: sampler.noted), processes=processes)
    for found in read_back(tmp_path, processes):
        assert found[0] == [[0.0] * 3, [1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_mean_with_last_models_beside_attackers_who_know_the_others(processes: int) -> None:
    # round 1: clients 0 and 1 come to 4 and 8, and client 2 sends minus half of their mean: (4 + 8 - 3) / 3 = 3
    # round 2: from 3 to 5.5 and 9.5, by 4.5 in the mean, and to 3 - 2.25: (5.5 + 9.5 + 0.75) / 3 = 5.25
    attack = InnerProductManipulation([2], 0.5)
    federated = FedAvg(1.0, partial="stale", weighting="uniform", exchange=attack, seed=1, executor="sequential")
    assert fit(federated, rounds=2, processes=processes) == 5.25
