"""Programs learn of the sizes of batches before they come; sizes that never come do no harm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor
from fl_lightning.executors.stacked.mapped import MappedStep
from fl_lightning.executors.stacked.trials.rehearsal import Rehearsal
from fl_lightning.parts import ClientSampler

PER_ROUND = 4


class InTurn(ClientSampler):
    """Four clients a round, in turn."""

    def cohort_size(self, num_clients: int) -> int:
        return PER_ROUND

    def on_round_start(self, round_index: int) -> None:
        self.first = round_index * PER_ROUND

    def draw(self, num_clients: int, rng: np.random.Generator, available: Any = None) -> Any:
        return (self.first + np.arange(PER_ROUND)) % num_clients


def fit(module: Module, executor: Any, sizes: tuple[int, ...], rounds: int, drop_last: bool = False) -> Any:
    """Train a module whose clients have one batch of their own size, or a batch of 64 before it."""
    callback = FedAvg(sampler=InTurn(), executor=executor, seed=0)
    data = TensorDataModule(clients_of((6,), sizes), batch_size=64, drop_last=drop_last)
    quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=data)
    return executor


@pytest.fixture
def rehearsals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an entry for each rehearsal; steps are programs, mapped ones fail."""
    found: list[int] = []
    rehearse = Rehearsal.__call__

    def counted(self: Rehearsal, step: Callable[..., Any]) -> Any:
        found.append(1)
        return rehearse(self, step)

    def refuse(*args: Any) -> Any:
        raise AssertionError("the step is mapped")

    monkeypatch.setattr(Rehearsal, "__call__", counted)
    monkeypatch.setattr(MappedStep, "__call__", refuse)
    return found


def test_new_sizes_are_tried_out_in_a_few_rehearsals(rehearsals: list[int]) -> None:
    """Forty clients of forty sizes, four of them in each of ten rounds: four, eight, sixteen, ... sizes are known."""
    sizes, modules = tuple(range(21, 61)), (Module(linear()), Module(linear()))
    stacks = fit(modules[0], VectorizedExecutor(), sizes, 10)
    fit(modules[1], "sequential", sizes, 10)
    assert stacks.cause is None
    assert 1 <= len(rehearsals) <= 4
    for alone, at_once in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(alone, at_once, rtol=1e-9, atol=1e-12)


class RefusesFive(Module):
    """Fails on batches of five samples, having counted them; trains on all others."""

    seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if len(batch[1]) == 5:
            type(self).seen += 1
            raise ValueError("five samples")
        return F.cross_entropy(self.layers(batch[0]), batch[1])


def test_a_size_that_never_comes_does_no_harm(rehearsals: list[int]) -> None:
    """The last client, whose batch the step refuses, trains in no round; new sizes come in all rounds."""
    sizes, modules = (*range(10, 42), 5), (RefusesFive(linear()), RefusesFive(linear()))
    stacks = fit(modules[0], VectorizedExecutor(), sizes, 8)
    assert stacks.cause is None
    assert RefusesFive.seen == 0
    fit(modules[1], "sequential", sizes, 8)
    for alone, at_once in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(alone, at_once, rtol=1e-9, atol=1e-12)


def test_a_size_that_the_step_refuses_is_the_users_error() -> None:
    with pytest.raises(ValueError, match="five samples"):
        fit(RefusesFive(linear()), "vectorized", (*range(10, 22), 5), 4)


@pytest.mark.parametrize("drop_last", [False, True])
def test_whole_batches_alone_need_no_rehearsal(drop_last: bool, rehearsals: list[int]) -> None:
    sizes = tuple(range(65, 73)) if drop_last else (64, 128) * 4
    assert fit(Module(linear()), VectorizedExecutor(), sizes, 2, drop_last).cause is None
    assert not rehearsals
