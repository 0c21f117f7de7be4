"""A part that changes an attribute from round to round and saves nothing is named in a warning, once."""

from __future__ import annotations

import itertools
import random
import warnings
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from torch import Tensor, nn
from torchmetrics import MeanMetric

from fl_lightning import AggregationCallback, FedAvg, FedBuff, Federated, TensorDataModule
from fl_lightning.parts import (
    Aggregation,
    ClientResult,
    ClientSampler,
    Exchange,
    Momentum,
    Part,
    Redistribution,
    ServerOptimizer,
)

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


def warnings_of(callback: AggregationCallback, folder: Path, saved: tuple[int, ...] = (3, 4)) -> list[str]:
    """Return the warnings of unsaved state in a fit of four rounds, with checkpoints after some of them."""
    data = TensorDataModule(CLIENTS, batch_size=1)
    module = Quadratic(1.0, [0.0])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = quiet_trainer(max_epochs=0, callbacks=[callback])
        for rounds in saved:
            trainer.fit_loop.max_epochs = rounds
            trainer.fit(module, datamodule=data)
            trainer.save_checkpoint(folder / f"{rounds}.ckpt")
    texts = [str(warning.message) for warning in caught]
    return [text for text in texts if "from round to round" in text]


class Velocity(ServerOptimizer):
    """Keeps a velocity in one of several forms."""

    def __init__(self, first: Any, add: Callable[[Any, Tensor], Any]) -> None:
        self.kept, self.add = first, add

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.kept = self.add(self.kept, aggregate - model)
        return aggregate


class Restored(Velocity):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


FORMS: dict[str, tuple[Any, Callable[[Any, Tensor], Any]]] = {
    "number": (0, lambda kept, delta: kept + 1),
    "tensor": (None, lambda kept, delta: delta + 1 if kept is None else kept + 1),
    "array": (np.zeros(1), lambda kept, delta: kept + 1),
    "list": ([], lambda kept, delta: [*kept, delta]),
    "dict": ({}, lambda kept, delta: {**kept, len(kept): 1.0}),
    "set": (set(), lambda kept, delta: kept | {len(kept)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_state_that_is_not_saved_is_named_once(form: str, tmp_path: Path) -> None:
    [text] = warnings_of(Federated(1.0, server=Velocity(*FORMS[form])), tmp_path)
    assert text.startswith("Velocity changes `kept` from round to round, and has no `state_dict`.")
    assert "Define `state_dict()` and `load_state_dict(state)`" in text
    # a part with a `state_dict` of its own knows what it saves
    assert not warnings_of(Federated(1.0, server=Restored(*FORMS[form])), tmp_path)


class Holder:
    """An object with an attribute."""

    count = 0


class Slotted:
    """An object with a slot."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def writes(array: Any) -> tuple[Any, Callable[[Any, Tensor], Any]]:
    def add_one(kept: Any) -> None:
        kept[0] = kept[0] + 1

    return draws(array, add_one)


def draws(generator: Any, draw: Callable[[Any], Any]) -> tuple[Any, Callable[[Any, Tensor], Any]]:
    def add(kept: Any, delta: Tensor) -> Any:
        draw(kept)
        return kept

    return generator, add


STATEFUL: dict[str, Callable[[], tuple[Any, Callable[[Any, Tensor], Any]]]] = {
    "numpy": lambda: draws(np.random.default_rng(1), lambda kept: kept.random()),
    "torch": lambda: draws(torch.Generator().manual_seed(1), lambda kept: torch.rand(3, generator=kept)),
    "python": lambda: draws(random.Random(1), lambda kept: kept.random()),
    "iterator": lambda: draws(itertools.cycle([1, 2, 3]), next),
    "object": lambda: draws(Holder(), lambda kept: setattr(kept, "count", kept.count + 1)),
    "slots": lambda: draws(Slotted(), lambda kept: setattr(kept, "count", kept.count + 1)),
    "metric": lambda: draws(MeanMetric(), lambda kept: kept.update(2.0)),
    "generator function": lambda: draws((number for number in range(9)), next),
    "iterator of a list": lambda: draws(iter([1] * 9), next),
    "number of numpy": lambda: (np.int64(0), lambda kept, delta: kept + np.int64(1)),
    "array of objects": lambda: writes(np.array([0, None], dtype=object)),
    "bytes": lambda: writes(bytearray(1)),
    "array of python": lambda: writes(array("d", [0.0])),
    "table": lambda: writes(pd.Series([0.0])),
}


@pytest.mark.parametrize("form", STATEFUL)
def test_generators_and_objects_that_are_not_saved_are_named(form: str, tmp_path: Path) -> None:
    [text] = warnings_of(Federated(1.0, server=Velocity(*STATEFUL[form]())), tmp_path)
    assert text.startswith("Velocity changes `kept` from round to round, and has no `state_dict`.")


def test_what_an_object_only_caches_is_no_state(tmp_path: Path) -> None:
    assert not warnings_of(Federated(1.0, server=Velocity(*draws(Path("a") / "b", hash))), tmp_path)


class Slow(Momentum):
    """Adds a state of its own to that of the library's class."""

    last: Tensor | None = None

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.last = super().step(model, aggregate) + (0 if self.last is None else 1)
        return self.last


class PlainMomentum(Momentum):
    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        return super().step(model, aggregate) * 1


def test_what_a_subclass_adds_to_a_part_of_the_library_is_named(tmp_path: Path) -> None:
    [text] = warnings_of(Federated(1.0, server=Slow(0.9)), tmp_path)
    assert text.startswith("Slow changes `last` from round to round")
    assert not warnings_of(Federated(1.0, server=PlainMomentum(0.9)), tmp_path)


class NotSaving(Momentum):
    def state_dict(self) -> dict[str, Any]:
        return super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)


class SavesMore(NotSaving):
    """Inherits the way in which its own base class loads."""

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict()


def test_one_of_both_methods_may_come_from_a_class_of_ones_own(tmp_path: Path) -> None:
    assert not warnings_of(Federated(1.0, server=SavesMore(0.9)), tmp_path)


class Counting(Exchange):
    calls = 0

    def upload(self, result: ClientResult) -> ClientResult:
        self.calls += 1
        return result


@pytest.mark.parametrize("name", ["FedAvg", "FedBuff"])
def test_members_of_a_chain_are_looked_at(name: str, tmp_path: Path) -> None:
    make: dict[str, Any] = {
        "FedAvg": lambda **k: FedAvg(1.0, **k),
        "FedBuff": lambda **k: FedBuff(2, 2, speeds=[1, 1], **k),
    }
    [text] = warnings_of(make[name](exchange=[Exchange(), Counting()]), tmp_path)
    assert text.startswith("Counting changes `calls`")


class InTurn(ClientSampler):
    """Sets its first client anew in each round."""

    def cohort_size(self, num_clients: int) -> int:
        return 1

    def on_round_start(self, round_index: int) -> None:
        self.first = round_index

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        return np.array([self.first % num_clients])


class Emptied(Aggregation):
    """Keeps results until they are merged, and a mask that its first round makes."""

    def __init__(self) -> None:
        self.results, self.mask = list[Tensor](), None

    def update(self, result: ClientResult) -> None:
        self.mask = torch.ones_like(result.parameters) if self.mask is None else self.mask
        self.results.append(result.parameters)

    def merge(self, model: Tensor) -> Tensor | None:
        results, self.results = self.results, []
        return torch.stack(results).mean(0) * self.mask if results else None


def test_what_changes_when_a_server_acts_that_acts_seldom_is_named(tmp_path: Path) -> None:
    callback = Federated(1.0, schedule=Redistribution(12), server=Velocity(*FORMS["number"]))
    [text] = warnings_of(callback, tmp_path, saved=(12,))
    assert text.startswith("Velocity changes `kept` from round to round")


class Later(ServerOptimizer):
    """Makes an attribute in round 3, which changes in each round after that, and one that stays."""

    def __init__(self) -> None:
        self.steps = Restored(0, lambda kept, delta: kept + 1)

    @property
    def held_parts(self) -> list[Part]:
        return [self.steps]

    def step(self, model: Tensor, aggregate: Tensor) -> Tensor:
        self.steps.step(model, aggregate)
        if self.steps.kept >= 3:
            self.late, self.cache = self.steps.kept, "made once"
        return aggregate


def test_an_attribute_that_appears_later_is_named(tmp_path: Path) -> None:
    [text] = warnings_of(Federated(1.0, server=Later()), tmp_path, saved=(6,))
    assert text.startswith("Later changes `late` from round to round")


class LaterInTurn(InTurn):
    """Begins in round 3 to set an attribute anew."""

    def on_round_start(self, round_index: int) -> None:
        super().on_round_start(round_index)
        if round_index >= 2:
            self.later = round_index


def test_an_attribute_that_is_set_anew_later_is_no_state(tmp_path: Path) -> None:
    assert not warnings_of(FedAvg(sampler=LaterInTurn()), tmp_path, saved=(6,))


class Normalizes(Exchange):
    """Has a module that counts in a buffer, or keeps its own parameters."""

    def __init__(self, counts: bool) -> None:
        self.norm = nn.BatchNorm1d(1, dtype=torch.float64)
        self.norm.train(counts)

    def upload(self, result: ClientResult) -> ClientResult:
        self.norm(torch.stack([result.delta, -result.delta]))
        return result


def test_buffers_of_a_module_count(tmp_path: Path) -> None:
    [text] = warnings_of(FedAvg(1.0, exchange=Normalizes(True)), tmp_path)
    assert text.startswith("Normalizes changes `norm` from round to round")
    assert not warnings_of(FedAvg(1.0, exchange=Normalizes(False)), tmp_path)


def test_what_is_no_state_is_not_warned_of(tmp_path: Path) -> None:
    assert not warnings_of(FedAvg(sampler=InTurn(), aggregation=Emptied()), tmp_path)


def test_a_fit_without_checkpoints_is_not_warned(tmp_path: Path) -> None:
    callback = Federated(1.0, server=Velocity(*FORMS["number"]))
    data = TensorDataModule(CLIENTS, batch_size=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet_trainer(max_epochs=3, callbacks=[callback]).fit(Quadratic(1.0, [0.0]), datamodule=data)
    assert not [warning for warning in caught if "from round to round" in str(warning.message)]
