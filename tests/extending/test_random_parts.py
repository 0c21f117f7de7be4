"""Parts of one's own that draw from torch's generator, NumPy's or Python's: the same draws however clients train."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedBuff, Federated, RADFed, TensorDataModule
from fl_lightning.parts import (
    Aggregation,
    Asynchronous,
    ClientResult,
    ClientSampler,
    Correction,
    Exchange,
    Federation,
    LocalObjective,
    Participation,
    ServerOptimizer,
    StalenessMixing,
    Synchronous,
    Task,
    VirtualClock,
)


class Upload(Exchange):
    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(result.delta + 0.01 * torch.randn_like(result.delta))


class Download(Exchange):
    def download(self, task: Any, model: Tensor) -> Tensor:
        return model + 0.01 * torch.as_tensor(np.random.standard_normal(len(model)))


class Merge(Aggregation):
    def __init__(self) -> None:
        self.results: list[ClientResult] = []

    def update(self, result: ClientResult) -> None:
        self.results.append(result)

    def merge(self, model: Tensor) -> Tensor:
        results, self.results = self.results, []
        return torch.stack([result.vector for result in results]).mean(0) + 0.01 * torch.randn_like(model)


class Stay(Merge):
    """The server fails now and then."""

    def merge(self, model: Tensor) -> Tensor | None:
        merged = super().merge(model)
        return merged if torch.rand(()) < 0.5 else None


class Step(ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return aggregate + 0.01 * random.gauss(0, 1)


class Pull(LocalObjective):
    def correction(self, client: Any) -> Correction:
        return Correction(linear=0.1 * torch.randn(self.federation.num_parameters).double())


class Losses(LocalObjective):
    def loss_of(self, task: Any) -> float:
        return 1 + random.random()


class ByLoss(Merge):
    """Weighs updates by the losses that clients send."""

    def merge(self, model: Tensor) -> Tensor:
        results, self.results = self.results, []
        return model + sum(result.loss * result.delta for result in results) / len(results)


class Release(Exchange):
    def published(self, model: Tensor) -> Tensor:
        return model + 0.01 * torch.randn_like(model)


class Scores(ClientSampler):
    """Draws the clients with the largest scores, which are at first asked for."""

    def __init__(self) -> None:
        self.scores: dict[int, float] = {}

    def cohort_size(self, num_clients: int) -> int:
        return 3

    def clients_without_score(self) -> list[int]:
        return [] if self.scores else np.random.permutation(self.federation.num_clients)[:4].tolist()

    def score(self, client: Any) -> float:
        return float(np.random.random())

    def take_scores(self, scores: Any) -> None:
        self.scores |= {client: score + random.random() for client, score in scores.items()}

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return np.array(sorted(range(num_clients), key=lambda client: -self.scores.get(client, client / 5))[:3])

    def state_dict(self) -> dict[str, Any]:
        return {"scores": self.scores}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scores = state["scores"]


class Circulate(Synchronous):
    """Each result, the chosen slots and what is shown are drawn."""

    def choose_slots(self, num_active: int, cohort_size: int, rng: np.random.Generator) -> list[int]:
        return [int(slot) for slot in torch.randperm(num_active)]

    def receive(self, result: ClientResult, server: Any) -> None:
        super().receive(result.with_delta(result.delta * random.random()), server)

    def publish(self, server: Any, failed: Any) -> Tensor:
        shown = super().publish(server, failed)
        return shown + 0.01 * torch.randn_like(shown)


class RandomClock(VirtualClock):
    def duration(self, client: int, number: int, share: Any = 1) -> int:
        return random.randrange(1, 100)


class Moody(Asynchronous):
    """Draws which clients are trained ahead, which part of a result arrives and whether it is used."""

    def to_train(self, arrivals: int) -> list[Task]:
        return super().to_train(random.randrange(1, arrivals + 1))

    def receive(self, result: ClientResult) -> None:
        super().receive(result.with_delta(result.delta * random.random()))

    def admits(self, result: ClientResult) -> bool:
        return float(torch.rand(())) < 0.7


def some(round_index: int) -> Any:
    return np.random.permutation(5)[:4]


def late(staleness: int) -> float:
    return 1 - random.random() / 2


class Draw(ClientSampler):
    def cohort_size(self, num_clients: int) -> int:
        return 3

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return torch.randperm(num_clients)[:3].numpy()


class Sketch(Exchange):
    """Sends a projection of the update that is drawn when the fit begins."""

    def on_fit_start(self, federation: Federation) -> None:
        direction = torch.randn(federation.num_parameters).double()
        self.direction = direction / direction.norm()

    def upload(self, result: ClientResult) -> ClientResult:
        return result.with_delta(self.direction * (self.direction @ result.delta))


class Notes(ServerOptimizer):
    """Draws as :class:`Sketch` does."""

    def on_fit_start(self, federation: Federation) -> None:
        direction = torch.randn(federation.num_parameters).double()
        self.direction = direction / direction.norm()

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return aggregate


PARTS = {
    "upload": lambda: {"exchange": Upload()},
    "fit start": lambda: {"exchange": Sketch()},
    "download": lambda: {"exchange": Download()},
    "merge": lambda: {"aggregation": Merge()},
    "merge or stay": lambda: {"aggregation": Stay()},
    "step": lambda: {"server": Step()},
    "loss_of": lambda: {"objective": Losses(), "aggregation": ByLoss()},
    "published": lambda: {"exchange": Release()},
    "schedule": lambda: {"schedule": Circulate()},
    "score": lambda: {"sampler": Scores()},
    "available": lambda: {"participation": Participation(available=some)},
    "clock": lambda: {"schedule": Asynchronous(RandomClock(), buffer_size=2)},
    "arrivals": lambda: {"schedule": Moody(VirtualClock([5, 4, 3, 2, 1]), buffer_size=2, flush_rounds=True)},
    "staleness": lambda: {
        "schedule": Asynchronous(VirtualClock([5, 4, 3, 2, 1]), buffer_size=2),
        "aggregation": StalenessMixing(0.5, late),
    },
    "correction": lambda: {"objective": Pull()},
    "draw": lambda: {"sampler": Draw()},
}


class Save(L.Callback):
    """Seeds each start and each process differently, and writes what each process has at the end."""

    starts = 0

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        Save.starts += 1
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(1000 * Save.starts + trainer.global_rank)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.folder is not None:
            torch.save(pl_module.state_dict(), self.folder / f"{trainer.global_rank}.pt")


def fit(name: str, rounds: int, executor: str = "sequential", folder: Path | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    own, path = PARTS[name](), options.pop("ckpt_path", None)
    clients = () if "sampler" in own else (3,)
    callback = Federated(*clients, seed=1, executor=executor, **own)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, Save(folder)], **options)
    module = Module(nn.Linear(6, 3))
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4), ckpt_path=path)
    return trainer


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[key] - value).abs().max()) for key, value in other.items())


@pytest.mark.parametrize("name", PARTS)
def test_draws_depend_neither_on_the_executor_nor_on_the_past(name: str, tmp_path: Path) -> None:
    expected = fit(name, 4).lightning_module.state_dict()
    assert differ(expected, fit(name, 4, "vectorized").lightning_module.state_dict()) < 1e-12
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*from round to round")
        fit(name, 2).save_checkpoint(tmp_path / "a.ckpt")
    resumed = fit(name, 4, ckpt_path=tmp_path / "a.ckpt").lightning_module.state_dict()
    assert all(torch.equal(expected[key], value) for key, value in resumed.items())


def test_draws_differ_between_clients_and_rounds() -> None:
    seen: list[Tensor] = []

    class Watched(Upload):
        def upload(self, result: ClientResult) -> ClientResult:
            seen.append(torch.randn(3))
            return result

    callback = Federated(3, seed=1, exchange=Watched())
    quiet_trainer(max_epochs=2, callbacks=[callback]).fit(
        Module(nn.Linear(6, 3)), datamodule=TensorDataModule(clients_of((6,)), batch_size=4)
    )
    assert len(seen) == 6
    assert len({tuple(drawn.tolist()) for drawn in seen}) == 6


class NeverMoves(Merge):
    """Notes what it draws, and lets the server stay."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def merge(self, model: Tensor) -> None:
        self.results = []
        self.drawn.append(float(torch.rand(())))


@pytest.mark.parametrize(
    ("make", "tries"),
    [
        (lambda part: Federated(3, seed=1, aggregation=part), [1, 1, 1, 1]),
        # the buffer of 2 is full after results 2, 4, 6, ..., and a round is 3 results
        (lambda part: FedBuff(2, 3, speeds=[5, 4, 3, 2, 1], seed=1, aggregation=part), [1, 2, 1, 2]),
    ],
)
def test_an_aggregation_that_lets_the_server_stay_draws_anew(make: Any, tries: list[int], tmp_path: Path) -> None:
    data = TensorDataModule(clients_of((6,)), batch_size=4)

    def drawn(rounds: int, path: Path | None = None) -> list[float]:
        torch.manual_seed(0)
        part, module = NeverMoves(), Module(nn.Linear(6, 3))
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[make(part)])
        trainer.fit(module, datamodule=data, ckpt_path=path)
        if path is None:
            trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        return part.drawn

    expected = drawn(4)
    assert len(set(expected)) == len(expected) == sum(tries)
    for rounds in (1, 2, 3):
        drawn(rounds)
        assert drawn(4, tmp_path / f"{rounds}.ckpt") == expected[sum(tries[:rounds]) :]


class Perturbs(Merge):
    """Notes what it draws for each model: the round, the slot, the client and the number."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[tuple[int, int, int, float]] = []

    def update(self, result: ClientResult) -> None:
        super().update(result)
        task = result.task
        self.drawn.append((task.round, task.slot, task.client, float(torch.rand(()))))


def test_circulating_models_get_draws_of_their_own_in_each_cycle(tmp_path: Path) -> None:
    data = TensorDataModule(clients_of((6,)), batch_size=4)

    def drawn(rounds: int, path: Path | None = None) -> list[tuple[int, int, int, float]]:
        part = Perturbs()
        # client 0 alone can be reached, so that two of the three models stay as they are
        options: dict[str, Any] = {"participation": Participation(available=lambda index: [0]), "unequal": "park"}
        callback = RADFed(2, clients_per_round=3, aggregation=part, seed=1, **options)
        trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback])
        trainer.fit(Module(nn.Linear(6, 3)), datamodule=data, ckpt_path=path)
        if path is None:
            trainer.save_checkpoint(tmp_path / f"{rounds}.ckpt")
        return part.drawn

    expected = drawn(6)
    assert [task[:2] for task in expected] == [(last, slot) for last in (1, 3, 5) for slot in (0, 1, 2)]
    assert {-1, 0} == {client for _, _, client, _ in expected}
    assert len({number for *_, number in expected}) == 9
    drawn(3)
    assert drawn(6, tmp_path / "3.ckpt") == expected[3:]


def test_draws_of_a_fit_s_start_differ_between_parts_and_are_those_of_the_next_fit() -> None:
    parts = Sketch(), Notes()
    module, data = Module(nn.Linear(6, 3)), TensorDataModule(clients_of((6,)), batch_size=4)
    callback = Federated(3, seed=1, exchange=parts[0], server=parts[1])
    drawn = []
    for seed in (0, 7):
        torch.manual_seed(seed)
        quiet_trainer(max_epochs=1, callbacks=[callback]).fit(module, datamodule=data)
        drawn.append([part.direction for part in parts])
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
    assert not torch.equal(*drawn[0])


def test_results_of_a_schedule_s_own_tasks_get_draws_of_their_own_in_each_round() -> None:
    class Renames(Synchronous):
        def receive(self, result: ClientResult, server: Any) -> None:
            super().receive(replace(result, task=Task(result.task.slot, -1, 1)), server)

    part = Perturbs()
    callback = Federated(3, seed=1, schedule=Renames(), aggregation=part)
    data = TensorDataModule(clients_of((6,)), batch_size=4)
    quiet_trainer(max_epochs=4, callbacks=[callback]).fit(Module(nn.Linear(6, 3)), datamodule=data)
    assert len({number for *_, number in part.drawn}) == len(part.drawn) == 12


@pytest.mark.parametrize("name", PARTS)
def test_two_processes_hold_one_model(name: str, tmp_path: Path) -> None:
    expected = fit(name, 3).lightning_module.state_dict()
    fit(name, 3, folder=tmp_path, devices=2, strategy="ddp_fork")
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    assert all(torch.equal(first[key], value) for key, value in second.items())
    assert differ(expected, first) < 1e-12


class Feedback(Exchange):
    """Keeps for each client what it has not sent, where a client that moves to another process does not find it."""

    def __init__(self) -> None:
        self.rest: dict[int, Tensor] = {}

    def upload(self, result: ClientResult) -> ClientResult:
        whole = result.delta + self.rest.get(result.task.client, 0.0)
        self.rest[result.task.client] = whole / 2
        return result.with_delta(whole / 2)

    def state_dict(self) -> dict[str, Any]:
        return {"rest": self.rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rest = state["rest"]


def test_states_of_clients_that_differ_between_processes_are_an_error() -> None:
    trainer = quiet_trainer(
        max_epochs=3, devices=2, strategy="ddp_fork", callbacks=[Federated(4, seed=1, exchange=Feedback())]
    )
    text = r"state of Feedback differs between the 2 processes.*`ClientStates`"
    with pytest.raises(Exception, match=text):
        trainer.fit(Module(nn.Linear(6, 3)), datamodule=TensorDataModule(clients_of((6,)), batch_size=4))


class ForgetsOthers(Aggregation):
    """Sums the clients of its own process alone."""

    reduces_over_ranks = True

    def __init__(self) -> None:
        self.deltas: list[Tensor] = []

    def update(self, result: ClientResult) -> None:
        self.deltas.append(result.delta)

    def merge(self, model: Tensor) -> Tensor:
        deltas, self.deltas = self.deltas, []
        return model + sum(deltas)


class Unseeded(ServerOptimizer):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        noise = np.random.default_rng(None).standard_normal(len(model))
        return aggregate + 0.01 * torch.as_tensor(noise).to(aggregate)


class Adapts(Exchange):
    """Scales what the server moves to by the number of this process's clients."""

    count = 0

    def upload(self, result: ClientResult) -> ClientResult:
        self.count += result.task.client
        return result

    def merged(self, aggregate: Tensor) -> Tensor:
        return aggregate * (1 + 0.01 * self.count)


class UnseededRelease(Exchange):
    def published(self, model: Tensor) -> Tensor:
        return model + 0.01 * torch.as_tensor(np.random.default_rng(None).standard_normal(len(model)))


class UnseededDraw(ClientSampler):
    def cohort_size(self, num_clients: int) -> int:
        return 3

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return np.random.default_rng(None).choice(num_clients, 3, replace=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aggregation": ForgetsOthers()}, "server's model differs between the 2 processes.*Look at ForgetsOthers"),
        ({"server": Unseeded()}, "server's model differs between the 2 processes.*Look at Unseeded"),
        ({"exchange": Adapts()}, "server's model differs between the 2 processes.*Look at Adapts"),
        ({"exchange": UnseededRelease()}, "published model.*differs between the 2 processes.*Look at UnseededRelease"),
        ({"sampler": UnseededDraw()}, "`UnseededDraw.draw` drew other clients on each of the 2 processes"),
    ],
)
def test_what_differs_between_processes_is_an_error(options: dict[str, Any], message: str) -> None:
    chosen = {} if "sampler" in options else {"clients_per_round": 4}
    callback = Federated(**chosen, seed=1, **options)
    trainer = quiet_trainer(max_epochs=6, devices=2, strategy="ddp_fork", callbacks=[callback])
    with pytest.raises(Exception, match=message):
        trainer.fit(Module(nn.Linear(6, 3)), datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
