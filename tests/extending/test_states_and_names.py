"""What a user's part keeps in checkpoints, logs, draws and forgets, and how its methods are spelt.

Two clients reach their optima 2 and 4 in one step, so that a round of FedAvg moves the server to their mean, 3.
"""

from __future__ import annotations

import random
import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic, quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, FedBuff, Federated, TensorDataModule
from fl_lightning.parts import (
    Aggregation,
    ClientResult,
    ClientSampler,
    Exchange,
    LocalObjective,
    Median,
    Participation,
    ServerOptimizer,
    UniformSampler,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])
Pair = namedtuple("Pair", "first second")


def fit(callback: Any, rounds: int = 1) -> float:
    return float(fit_quadratic(callback, Quadratic(1.0, [0.0]), CLIENTS, rounds))


# ---- checkpoints ----


class Keeping(ServerOptimizer):
    """Keeps a value in its state."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return aggregate

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["kept"]


class KeepingExchange(Exchange):
    def __init__(self, value: Any) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return self.value

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state


def resumed(value: Any, path: Path) -> Any:
    """Return the value that a part has after it was saved in a checkpoint and read again."""
    data = TensorDataModule(CLIENTS, batch_size=1)
    trainer = quiet_trainer(max_epochs=1, callbacks=[Federated(1.0, server=Keeping(value))])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=data)
    trainer.save_checkpoint(path / "last.ckpt")
    server = Keeping(None)
    trainer = quiet_trainer(max_epochs=2, callbacks=[Federated(1.0, server=server)])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=data, ckpt_path=path / "last.ckpt")
    return server.value


def test_numbers_of_numpy_are_saved_as_pythons(tmp_path: Path) -> None:
    value = {"count": np.int64(3), np.int32(7): [np.float32(0.5), (np.bool_(True), {1})], "text": np.str_("a")}
    read = resumed(value, tmp_path)
    assert read == {"count": 3, 7: [0.5, (True, {1})], "text": "a"}
    assert [type(read["count"]), type(read[7][0]), type(read[7][1][0])] == [int, float, bool]


def test_what_a_state_may_hold_is_read_again(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    value = {
        "list": [None, True, 1.5, "text", b"bytes", 2**70],
        "nested": (OrderedDict(a=1), Counter("aab"), {1, 2}),
        "rng": rng.bit_generator.state,
        "random": random.Random(1).getstate(),
        "dtype": torch.float32,
    }
    assert resumed(value, tmp_path) == value


@pytest.mark.parametrize(
    ("value", "way_out"),
    [
        (np.zeros(2), r"`torch.as_tensor\(array\)`"),
        (np.random.default_rng(0), "`rng.bit_generator.state`"),
        (torch.Generator(), r"`generator.get_state\(\)`"),
        (random.Random(0), r"`random.getstate\(\)`"),
        (deque([1]), r"`list\(...\)`"),
        (defaultdict(int), r"`dict\(...\)`"),
        (Pair(1, 2), r"`tuple\(...\)`"),
        (Path("x"), r"`str\(...\)`"),
        (object(), "Save what it is made of"),
    ],
)
def test_what_could_not_be_read_again_is_refused_when_the_fit_starts(value: Any, way_out: str) -> None:
    with pytest.raises(TypeError, match=rf"`Keeping.state_dict` holds .* at `state\['kept'\]\[1\]`.*{way_out}"):
        fit(Federated(1.0, server=Keeping([0, value])))
    with pytest.raises(TypeError, match=rf"`KeepingExchange.state_dict` holds .* `state\['a'\]`.*{way_out}"):
        fit(FedBuff(2, 2, speeds=[1, 1], exchange=KeepingExchange({"a": value})))


class ArrayLater(Keeping):
    """Keeps an array from its first step on; before that, its attribute is None, or not there."""

    steps = 0

    def __init__(self, has_attribute: bool) -> None:
        if has_attribute:
            super().__init__(None)

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.steps, self.value = self.steps + 1, np.zeros(2)
        return aggregate


@pytest.mark.parametrize("has_attribute", [True, False])
def test_what_comes_into_a_state_later_is_refused_before_the_next_round(has_attribute: bool) -> None:
    server, module = ArrayLater(has_attribute), Quadratic(1.0, [0.0])
    with pytest.raises(TypeError, match=r"`ArrayLater.state_dict` holds .* `state\['kept'\]`.*`torch.as_tensor"):
        fit_quadratic(Federated(1.0, server=server), module, CLIENTS, rounds=50)
    assert (server.steps, float(module.w)) == (1, 3.0)


def test_what_could_not_be_read_again_is_refused_when_a_checkpoint_is_written(tmp_path: Path) -> None:
    part = Keeping(0)
    trainer = quiet_trainer(max_epochs=1, callbacks=[Federated(1.0, server=part)])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=1))
    part.value = np.zeros(2)
    with pytest.raises(TypeError, match=r"`Keeping.state_dict` holds .*`state\['kept'\]`"):
        trainer.save_checkpoint(tmp_path / "last.ckpt")


def test_a_state_is_a_dict() -> None:
    with pytest.raises(TypeError, match=r"`KeepingExchange.state_dict` returned None; it must return a dict"):
        fit(FedAvg(1.0, exchange=KeepingExchange(None)))


# ---- samplers ----


class Sized(ClientSampler):
    def __init__(self, size: Any) -> None:
        self.size = size

    def cohort_size(self, num_clients: int) -> int:
        return self.size

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        return np.arange(num_clients)


def test_a_number_of_numpy_is_a_number_of_clients() -> None:
    callback = FedAvg(sampler=Sized(np.int64(2)))
    assert fit(callback) == 3.0
    assert type(callback.algorithm.sampler.cohort_size(2)) is int


@pytest.mark.parametrize("size", [-1, 0, 3, 2.5, True, None, "2", torch.tensor(2)])
def test_a_number_of_clients_that_is_none_names_the_sampler(size: Any) -> None:
    with pytest.raises(ValueError, match=r"`Sized.cohort_size` must return a whole number from 1 to 2, .* got "):
        fit(FedAvg(sampler=Sized(size)))


def test_clients_that_cannot_be_reached_are_not_drawn() -> None:
    with pytest.raises(ValueError, match=r"`Sized.draw` returned clients that cannot be reached in this round: \[1\]"):
        fit(FedAvg(sampler=Sized(2), participation=Participation(available=lambda round_index: [0])))


class Scored(UniformSampler):
    needs_scores = True

    def score(self, client: Any) -> Any:
        return "high"


def test_a_score_is_a_number() -> None:
    with pytest.raises(TypeError, match=r"`Scored.score` must return a number, .* got 'high'"):
        fit(FedAvg(sampler=Scored(2)))


# ---- logged values ----


class Logging(UniformSampler):
    def __init__(self, logged: Any) -> None:
        super().__init__(2)
        self.logged = logged

    def values(self) -> dict[str, float]:
        return self.logged


class LoggingToo(Exchange):
    def values(self) -> dict[str, float]:
        return {"mine": 1.0}


def test_numbers_are_logged() -> None:
    callback = FedAvg(sampler=Logging({"mine": np.float32(0.5), "tensor": torch.tensor([2.0]), "nan": float("nan")}))
    trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
    trainer.fit(Quadratic(1.0, [0.0]), datamodule=TensorDataModule(CLIENTS, batch_size=1))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert [logged["mine"], logged["tensor"], logged["fed/clients"]] == [0.5, 2.0, 2.0]


@pytest.mark.parametrize(
    ("logged", "error", "text"),
    [
        ({"fed/clients": 5.0}, ValueError, "'fed/clients', but SynchronousAlgorithm logs a value of this name"),
        ({"mine": 5.0}, ValueError, "`LoggingToo.values` returned 'mine', but Logging logs"),
        ({"curve": [1.0, 2.0]}, TypeError, r"`Logging.values` returned \[1.0, 2.0\] as 'curve'"),
        ({1: 2.0}, TypeError, "Names of logged values are texts"),
        (["curve"], TypeError, r"`Logging.values` returned \['curve'\]; it must return a dict"),
        (None, TypeError, "Is a `return` missing"),
    ],
)
def test_values_that_hide_others_or_are_none_are_refused(logged: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        fit(FedAvg(sampler=Logging(logged), exchange=LoggingToo()))


# ---- rounds that break off ----


class Mean(Aggregation):
    """The mean of a round's parameters, kept in one of several ways; it breaks off once.

    Args:
        kept: The way.
        breaks: ``at`` is the number of results after which it does, 0 for ``merge``; ``None`` afterwards.
    """

    def __init__(self, kept: str, breaks: SimpleNamespace) -> None:
        self.kept, self.breaks, self.merged_counts = kept, breaks, list[float]()
        self.number: float = 0
        self.total: Any = {"list": [], "nested": {"all": [[]]}, "array": np.zeros(1)}.get(kept)

    def on_fit_start(self, federation: Any) -> None:
        if self.kept == "tensor":
            self.total = torch.zeros(1, dtype=torch.float64)

    def update(self, result: ClientResult) -> None:
        self.number += 1
        if self.kept == "list":
            self.total.append(result.parameters)
        elif self.kept == "nested":
            self.total["all"][0].append(result.parameters)
        else:
            self.total += result.parameters if self.kept == "tensor" else result.parameters.numpy()
        self._break(self.number)

    def _break(self, place: float) -> None:
        if self.breaks.at == place:
            self.breaks.at = None
            raise ArithmeticError("broken by the test")

    def merge(self, model: Tensor) -> Tensor | None:
        self._break(0)
        kept = {"list": lambda: sum(self.total), "nested": lambda: sum(self.total["all"][0])}
        mean = torch.as_tensor(kept.get(self.kept, lambda: self.total)() / self.number).clone()
        if self.kept in ("tensor", "array"):
            self.total[:] = 0
        else:
            self.total = [] if self.kept == "list" else {"all": [[]]}
        self.merged_counts.append(self.number)
        self.number = 0
        return mean


@pytest.mark.parametrize("kept", ["list", "nested", "array", "tensor"])
@pytest.mark.parametrize("at", [1, 2, 0])
@pytest.mark.parametrize("name", ["FedAvg", "FedBuff"])
def test_results_of_a_round_that_broke_off_are_not_merged_later(name: str, at: int, kept: str) -> None:
    aggregation = Mean(kept, SimpleNamespace(at=at))
    make = {
        "FedAvg": lambda: FedAvg(1.0, aggregation=aggregation),
        "FedBuff": lambda: FedBuff(2, 2, speeds=[1, 1], aggregation=aggregation),
    }
    callback = make[name]()
    with pytest.raises(ArithmeticError, match="broken by the test"):
        fit(callback)
    assert fit(callback) == 3.0
    assert aggregation.merged_counts == [2]


class Around(Aggregation):
    """Another aggregation, which knows nothing of rounds that break off."""

    def __init__(self) -> None:
        self.inner, self.fails = Mean("list", SimpleNamespace(at=None)), True

    @property
    def held_parts(self) -> list[Aggregation]:
        return [self.inner]

    def update(self, result: ClientResult) -> None:
        self.inner.update(result)

    def merge(self, model: Tensor) -> Tensor | None:
        fails, self.fails = self.fails, False
        if fails:
            raise ArithmeticError("broken by the test")
        return self.inner.merge(model)


def test_results_in_an_aggregation_that_another_holds_are_forgotten_too() -> None:
    callback = FedAvg(1.0, aggregation=Around())
    with pytest.raises(ArithmeticError):
        fit(callback)
    assert fit(callback) == 3.0


# ---- names ----


def test_a_misspelt_hook_is_refused() -> None:
    with pytest.raises(TypeError, match=r"`Wrong.uplaod` would never be used: .* Did you mean `upload`\?"):
        type("Wrong", (Exchange,), {"uplaod": lambda self, result: result})
    with pytest.raises(TypeError, match=r"Did you mean `on_round_start`\?"):
        type("Wrong", (UniformSampler,), {"on_roundstart": lambda self, round_index: None})
    with pytest.raises(TypeError, match=r"Did you mean `corrections?`\?"):
        type("Wrong", (LocalObjective,), {"corection": lambda self, client: None})
    with pytest.raises(TypeError, match=r"Did you mean `reduces_over_ranks`\?"):
        type("Wrong", (Median,), {"reduce_over_ranks": True})


def test_methods_of_ones_own_are_not() -> None:
    names = ("uploads", "uploaded_bits", "download_speed", "merge_all", "_uplaod", "steps", "noise", "draw_again")
    for base in (Exchange, Aggregation, ClientSampler, ServerOptimizer, LocalObjective):
        type("Right", (base,), {"state": None, "value": 1.0, "load_state": lambda self: None})
        type("Right", (base,), dict.fromkeys(names, lambda self: None))


def test_a_hook_that_takes_other_arguments_is_refused() -> None:
    message = (
        "`Wrong.on_round_start` must take the arguments of `Part.on_round_start`, with which it is called: "
        "`def on_round_start(self, round_index)`, got `def on_round_start(self)`."
    )
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):

        class Wrong(UniformSampler):
            def on_round_start(self) -> None:  # type: ignore[override]
                """Miss the round."""

    with pytest.raises(TypeError, match=r"`Wrong.update` must take the arguments of `Aggregation.update`"):
        type("Wrong", (Around,), {"update": lambda self, result, weight: None})


def test_a_hook_may_take_any_arguments_and_more_with_defaults() -> None:
    for function in (lambda *given: None, lambda self, result, weight=1.0: None, lambda self, model: None):
        made = type("Right", (Around,), {"update": function})
        assert vars(made)["update"] is function
