"""What an exchange's `upload` puts into a result reaches the aggregation, under every schedule and in resumed runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor

from fl_lightning import FedAsync, FedAvg, FedBuff, FederatedCheckpoint, RADFed, TensorDataModule
from fl_lightning.parts import Aggregation, ClientResult, Exchange, Payload, Task

#: With learning rate 1 a client moves to its optimum.
CLIENTS = clients_that_reach([[2.0], [4.0], [9.0]], [1, 1, 1])
#: What the clients claim.
SAMPLES, SCORES = (1, 2, 3), (4.0, 1.0, 1.0)


class Claims(Exchange):
    def upload(self, result: ClientResult) -> ClientResult:
        client = result.task.client
        task = replace(result.task, num_samples=SAMPLES[client])
        payload = Payload(5, 8.0, client)
        return replace(result, task=task, score=SCORES[client], payload=payload, num_steps=7, loss=0.5)


class ByClaims(Aggregation):
    """Moves by the mean update, weighted by claimed samples times score."""

    needs_summed_lr = True

    def __init__(self) -> None:
        self.results: list[ClientResult] = []
        self.moves: list[list[Any]] = []

    def update(self, result: ClientResult) -> None:
        self.results.append(result)

    def merge(self, model: Tensor) -> Tensor | None:
        results, self.results = self.results, []
        if not results:
            return None
        self.moves.append([numbers(result) for result in results])
        weights = [result.num_samples * (result.score or 0.0) for result in results]
        moved = sum(weight * result.delta for weight, result in zip(weights, results, strict=True))
        return model + moved / sum(weights)

    def state_dict(self) -> dict[str, Any]:
        return {"moves": self.moves}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moves = state["moves"]


def numbers(result: ClientResult) -> list[Any]:
    payload = result.payload
    return [
        *(result.task.client, result.num_samples, result.score, result.num_steps, list(result.summed_lr), result.loss),
        *(payload.values, payload.bits_per_value, payload.extra_bits),
    ]


MAKE: dict[str, Callable[..., Any]] = {
    "FedAvg": lambda **parts: FedAvg(3, seed=1, **parts),
    "RADFed": lambda **parts: RADFed(2, clients_per_round=3, seed=1, **parts),
    "FedBuff": lambda **parts: FedBuff(3, 3, wait_for_flush=True, speeds=[1.0, 1.0, 1.0], seed=1, **parts),
    # the second client answers in every round, the others are trained ahead and answer later
    "ahead": lambda **parts: FedBuff(2, 2, speeds=[1.0, 3.0, 0.4], lookahead=3, seed=1, **parts),
    "FedAsync": lambda **parts: FedAsync(2, history=3, seed=1, **parts),
}


class Save(L.Callback):
    """Writes the weights and what the aggregation got."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            aggregation = trainer.callbacks[0].algorithm.aggregation
            torch.save((float(pl_module.w), aggregation.moves), self.path)


def fit(name: str, folder: Path, rounds: int, processes: int = 1, **options: Any) -> tuple[float, list[list[Any]]]:
    callback = MAKE[name](exchange=Claims(), aggregation=ByClaims(), executor="sequential")
    on_more: dict[str, Any] = {"devices": processes, "strategy": "ddp_fork"} if processes > 1 else {}
    saves = options.pop("callbacks", [])
    trainer = quiet_trainer(
        max_epochs=rounds,
        callbacks=[callback, *saves, Save(folder / "end.pt")],
        enable_checkpointing=bool(saves),
        **on_more,
    )
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None), **options)
    weight, moves = torch.load(folder / "end.pt", weights_only=True)
    return weight, moves


@pytest.mark.parametrize("name", ["FedAvg", "FedBuff"])
def test_an_aggregation_gets_what_upload_returns(name: str, tmp_path: Path) -> None:
    weight, moves = fit(name, tmp_path, 2)
    # weights 4 * 1, 1 * 2 and 1 * 3 of the optima 2, 4 and 9
    assert weight == pytest.approx((4 * 2 + 2 * 4 + 3 * 9) / 9)
    claimed = [[k, SAMPLES[k], SCORES[k], 7, [1.0], 0.5, 5, 8.0, k] for k in range(3)]
    assert [sorted(move) for move in moves] == [claimed] * 2


def test_a_circulating_model_has_the_sums_of_its_trainings_and_the_rest_of_the_last_one(tmp_path: Path) -> None:
    weight, moves = fit("RADFed", tmp_path, 2)
    [move] = moves
    last = {entry[0]: entry for entry in move}
    assert sorted(last) == [0, 1, 2]
    # two trainings of 7 steps and summed learning rate 1; all clients train twice, so 1 + 2 + 3 samples count twice
    for client, entry in last.items():
        assert entry[2:] == [SCORES[client], 14, [2.0], 0.5, 5, 8.0, client]
        assert SAMPLES[client] < entry[1] <= SAMPLES[client] + 3
    assert sum(entry[1] for entry in move) == 12
    weights = {client: entry[1] * SCORES[client] for client, entry in last.items()}
    optima = {0: 2.0, 1: 4.0, 2: 9.0}
    assert weight == pytest.approx(sum(weights[k] * optima[k] for k in range(3)) / sum(weights.values()))


@pytest.mark.parametrize("name", MAKE)
def test_a_resumed_run_and_two_processes_give_the_same(name: str, tmp_path: Path) -> None:
    whole = fit(name, tmp_path, 5)
    saved = tmp_path / "saved"
    fit(name, tmp_path, 3, callbacks=[FederatedCheckpoint(saved)])
    assert fit(name, tmp_path, 5, callbacks=[FederatedCheckpoint(saved)], ckpt_path="last") == whole
    weight, moves = fit(name, tmp_path, 5, processes=2)
    assert weight == pytest.approx(whole[0], rel=1e-12)
    assert moves == whole[1]


@dataclass(frozen=True)
class Weighted(ClientResult):
    weight: float = 1.0


@dataclass(frozen=True)
class Named(Payload):
    name: str = ""


@dataclass(frozen=True)
class Urgent(Task):
    urgent: bool = True


def as_class(cls: type, value: Any) -> Any:
    return cls(**{name: held for name, held in vars(value).items() if name != "_read"})


class Attaches(Exchange):
    """Returns a result of which something has more than the library's class."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def upload(self, result: ClientResult) -> ClientResult:
        if self.kind is Weighted:
            return as_class(Weighted, result)
        if self.kind is Named:
            return replace(result, payload=as_class(Named, result.payload))
        return replace(result, task=as_class(Urgent, result.task))


class Passes(Exchange):
    def upload(self, result: ClientResult) -> ClientResult:
        return replace(result)


@pytest.mark.parametrize("kind", [Weighted, Named, Urgent])
@pytest.mark.parametrize("name", ["RADFed", "FedBuff", "FedAsync"])
def test_classes_that_a_checkpoint_cannot_hold_are_refused_at_once(name: str, kind: type) -> None:
    callback = MAKE[name](exchange=[Passes(), Attaches(kind), Passes()])
    trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
    with pytest.raises(TypeError, match=rf"^`Attaches.upload` returned a {kind.__name__}\. .* or use FedAvg\.$"):
        trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None))


def test_a_synchronous_server_gets_the_object_of_upload() -> None:
    seen: list[Any] = []

    class Sees(Aggregation):
        def update(self, result: ClientResult) -> None:
            seen.append((type(result), type(result.payload), type(result.task)))

        def merge(self, model: Tensor) -> None:
            return None

    exchange = [Attaches(Weighted), Attaches(Named), Attaches(Urgent)]
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(3, exchange=exchange, aggregation=Sees())])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=None))
    assert seen == [(Weighted, Named, Urgent)] * 3
