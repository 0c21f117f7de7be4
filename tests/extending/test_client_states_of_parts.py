"""Vectors of clients in any attribute of any part: kept, dropped, saved and shared out without a line of the part's.

Two clients reach their optima 2 and 4 in one step. An exchange sends half of what a client owes: in round 1 halves of 2
and 4, so that the server moves by 1.5, and the clients owe 1 and 2. In round 2 they want 0.5 and 2.5, so they send 0.75
and 2.25: the server moves to 3, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, FedBuff, Federated, TensorDataModule
from fl_lightning.parts import (
    ClientResult,
    ClientSampler,
    ClientStates,
    Exchange,
    Federation,
    Median,
    PreAggregation,
    ServerOptimizer,
    Updates,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


class Errors(Exchange):
    """Sends half of an update and what the client owes, and keeps the rest in an attribute of some form."""

    def __init__(self, keep: Callable[[Any, ClientStates], None], find: Callable[[Any], ClientStates]) -> None:
        self.keep, self.find = keep, find

    def on_fit_start(self, federation: Federation) -> None:
        self.keep(self, ClientStates(federation, torch.zeros(federation.num_parameters, dtype=torch.float64)))

    def upload(self, result: ClientResult) -> ClientResult:
        owed, client = self.find(self), result.task.client
        half = (result.delta + owed[client]) / 2
        owed.put(client, half)
        return result.with_delta(half.to(result.delta))


def keep_beside(part: Any, states: ClientStates) -> None:
    part.states, part.errors = ClientStates(part.federation, torch.zeros(1)), states


FORMS: dict[str, tuple[Callable[[Any, ClientStates], None], Callable[[Any], ClientStates]]] = {
    "states": (lambda part, states: setattr(part, "states", states), lambda part: part.states),
    "errors": (lambda part, states: setattr(part, "errors", states), lambda part: part.errors),
    "beside": (keep_beside, lambda part: part.errors),
    "list": (lambda part, states: setattr(part, "all", [states]), lambda part: part.all[0]),
    "tuple": (lambda part, states: setattr(part, "all", (None, states)), lambda part: part.all[1]),
    "dict": (lambda part, states: setattr(part, "all", {"up": states}), lambda part: part.all["up"]),
}


class Breaks(L.Callback):
    """Breaks round 2 off once, after a number of clients."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_client_end(self, trainer: L.Trainer, pl_module: L.LightningModule, result: ClientResult) -> None:
        if trainer.current_epoch == 1:
            self.after -= 1
            if self.after == 0:
                raise ArithmeticError("broken by the test")


def fit(callback: Any, rounds: int, *more: Any, trainer: Any = None, **options: Any) -> tuple[float, Any]:
    module = Quadratic(1.0, [0.0])
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, *more])
    trainer.fit(module, datamodule=TensorDataModule(CLIENTS, batch_size=None), **options)
    return float(module.w), trainer


@pytest.mark.parametrize("form", FORMS)
def test_vectors_in_any_attribute_are_kept_dropped_and_saved(form: str, tmp_path: Path) -> None:
    def make() -> FedAvg:
        return FedAvg(1.0, exchange=Errors(*FORMS[form]), executor="sequential")

    # round 1: 1 and 2 are sent; round 2: (0.5 + 1) / 2 and (2.5 + 2) / 2
    after_two = 1.5 + (0.75 + 2.25) / 2
    assert fit(make(), 2)[0] == after_two
    whole = fit(make(), 4)[0]

    broken = make()
    module, data = Quadratic(1.0, [0.0]), TensorDataModule(CLIENTS, batch_size=None)
    trainer = quiet_trainer(max_epochs=4, callbacks=[broken, Breaks(1)])
    with pytest.raises(ArithmeticError):
        trainer.fit(module, datamodule=data)
    trainer.fit(module, datamodule=data)
    assert float(module.w) == whole

    fit(make(), 2)[1].save_checkpoint(tmp_path / "last.ckpt")
    assert fit(make(), 4, ckpt_path=tmp_path / "last.ckpt")[0] == whole


class Save(L.Callback):
    """Writes the weights at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        torch.save(pl_module.state_dict(), self.folder / f"{trainer.global_rank}.pt")


def on_processes(make: Callable[[], Federated], folder: Path, number: int) -> list[dict[str, Tensor]]:
    options: dict[str, Any] = {"devices": number, "strategy": "ddp_fork"} if number > 1 else {}
    trainer = quiet_trainer(max_epochs=4, callbacks=[make(), Save(folder)], **options)
    torch.manual_seed(0)
    data = TensorDataModule(clients_of((6,)), batch_size=4)
    trainer.fit(Module(nn.Linear(6, 3)), datamodule=data)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(number)]


class Slowed(ServerOptimizer):
    """Moves by the mean of what a vector of each client has become, which all processes know."""

    def on_fit_start(self, federation: Federation) -> None:
        self.counts = ClientStates(federation, torch.zeros(1, dtype=torch.float64))

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        for client in range(self.federation.num_clients):
            self.counts.put(client, self.counts[client] + client + 1)
        return model + (aggregate - model) / (1 + float(self.counts[0]))


class Scores(ClientSampler):
    """Draws the clients that were scored least often."""

    def cohort_size(self, num_clients: int) -> int:
        return 3

    def on_fit_start(self, federation: Federation) -> None:
        self.seen = ClientStates(federation, torch.zeros(1, dtype=torch.float64))

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return sorted(range(num_clients), key=lambda client: (float(self.seen[client]), client))[:3]

    def score(self, client: Any) -> float:
        self.seen.put(client.task.client, self.seen[client.task.client] + 1)
        return 1.0

    def take_scores(self, scores: Any) -> None:
        pass


class Damped(PreAggregation):
    """Halves the update of a client that was there before."""

    def on_fit_start(self, federation: Federation) -> None:
        self.seen = ClientStates(federation, torch.ones(1, dtype=torch.float64))

    def mix(self, updates: Updates) -> Updates:
        clients = [result.task.client for result in updates.results]
        weights = torch.cat([self.seen[client] for client in clients])
        for client in clients:
            self.seen.put(client, self.seen[client] / 2)
        return updates.mixed(torch.diag(weights))


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "exchange": lambda: {"exchange": Errors(*FORMS["errors"])},
    "server": lambda: {"server": Slowed()},
    "sampler": lambda: {"sampler": Scores()},
    "before": lambda: {"aggregation": Median(Damped())},
}


@pytest.mark.parametrize("name", PARTS)
def test_two_processes_keep_the_vectors_of_one(name: str, tmp_path: Path) -> None:
    def make() -> Federated:
        options = PARTS[name]()
        return Federated(**({} if "sampler" in options else {"clients_per_round": 4}), seed=1, **options)

    [alone] = on_processes(make, tmp_path, 1)
    for each in on_processes(make, tmp_path, 2):
        assert all(torch.allclose(alone[key], each[key], rtol=0, atol=1e-12) for key in alone)


@pytest.mark.parametrize("name", ["server", "sampler", "before"])
def test_vectors_of_other_parts_are_saved(name: str, tmp_path: Path) -> None:
    def run(rounds: int, path: Path | None = None) -> tuple[Any, Any]:
        options = PARTS[name]()
        callback = Federated(**({} if "sampler" in options else {"clients_per_round": 4}), seed=1, **options)
        torch.manual_seed(0)
        module, trainer = Module(nn.Linear(6, 3)), quiet_trainer(max_epochs=rounds, callbacks=[callback])
        trainer.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4), ckpt_path=path)
        return trainer, module

    run(2)[0].save_checkpoint(tmp_path / "last.ckpt")
    resumed, whole = run(4, tmp_path / "last.ckpt")[1], run(4)[1]
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters(), strict=True))


def test_a_server_that_moves_several_times_in_a_round_keeps_the_vectors(tmp_path: Path) -> None:
    def run(rounds: int, path: Path | None = None) -> tuple[float, Any]:
        return fit(FedBuff(1, 2, speeds=[1, 2], server=Slowed()), rounds, ckpt_path=path)

    run(2)[1].save_checkpoint(tmp_path / "last.ckpt")
    assert run(4, tmp_path / "last.ckpt")[0] == run(4)[0]


class Nested(Errors):
    """Has its vectors in an object of its own, where nobody finds them."""

    def __init__(self) -> None:
        super().__init__(
            lambda part, states: setattr(part, "box", SimpleNamespace(states=states)), lambda part: part.box.states
        )


def test_vectors_in_no_part_are_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"no part has it in an attribute.*parts of your own are Nested"):
        fit(FedAvg(1.0, exchange=Nested()), 1)


class Sized(Exchange):
    """Keeps vectors of a length, or none."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def on_fit_start(self, federation: Federation) -> None:
        self.states = None if self.length is None else ClientStates(federation, torch.zeros(self.length))

    def upload(self, result: ClientResult) -> ClientResult:
        if self.states is not None:
            self.states.put(result.task.client, self.states[result.task.client] + 1)
        return result


@pytest.mark.parametrize(
    ("then", "now", "message"),
    [
        (2, 3, r"holds 2 values of each client in `Sized.states`, but this run keeps 3\. Resume with the arguments"),
        (2, None, r"clients' vectors of Sized in `states`, but this run's Sized keeps them in no attribute\. Resume"),
        (None, 2, r"clients' vectors of Sized in no attribute, but this run's Sized keeps them in `states`\. Resume"),
    ],
)
def test_vectors_of_other_arguments_are_not_taken(
    then: int | None, now: int | None, message: str, tmp_path: Path
) -> None:
    fit(FedAvg(1.0, exchange=Sized(then)), 1)[1].save_checkpoint(tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=message):
        fit(FedAvg(1.0, exchange=Sized(now)), 2, ckpt_path=tmp_path / "last.ckpt")


class MadeForSomeClients(Exchange):
    """Makes vectors in a client's hook, so that a process without this client has none."""

    def on_fit_start(self, federation: Federation) -> None:
        self.owed: dict[int, ClientStates] = {}

    def upload(self, result: ClientResult) -> ClientResult:
        if result.task.client == 0:
            self.owed[0] = ClientStates(self.federation, torch.zeros(self.federation.num_parameters))
            self.owed[0].put(0, result.delta.float())
        return result


def test_vectors_that_one_process_has_alone_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"do not have the same `ClientStates`.*Make each `ClientStates` in `on_fit_"):
        on_processes(lambda: Federated(1.0, exchange=MadeForSomeClients(), seed=0), tmp_path, 2)
