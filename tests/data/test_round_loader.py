"""Clients' batches that other processes make, ahead of time and across clients."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from helpers.stacked import Module
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset, default_collate

from fl_lightning import ClientDatasetsModule, FedAvg


class Points(Dataset[Any]):
    """Inputs of four numbers that may be scaled, and a class."""

    def __init__(self, size: int = 8, seed: int = 0) -> None:
        self.x = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.scale, self.maker = 1.0, os.getpid()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index] * self.scale, index % 3


class Drops(Module):
    """Draws in its steps."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.layers(F.dropout(batch[0], 0.3)), batch[1])


def fit(sets: list[Any], *callbacks: L.Callback, executor: Any = "sequential", **options: Any) -> Tensor:
    before, module = multiprocessing.active_children(), Drops()
    callbacks = (FedAvg(0.7, seed=1, executor=executor, local_epochs=2), *callbacks)
    data = ClientDatasetsModule(sets, **{"batch_size": 4, **options})
    quiet_trainer(max_epochs=2, callbacks=list(callbacks)).fit(module, datamodule=data)
    assert set(multiprocessing.active_children()) <= set(before)
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def sets_of(kind: Any = Points) -> list[Any]:
    return [kind(6 + 3 * place, place) for place in range(3)]


@pytest.mark.parametrize("options", [{}, {"drop_last": True, "shuffle": False}, {"batch_size": None}])
def test_processes_give_the_same_weights(options: dict[str, Any]) -> None:
    """Order, dropout and the number of batches do not depend on them."""
    expected = fit(sets_of(), **options)
    assert torch.equal(fit(sets_of(), num_workers=1, **options), expected)


def noisy(x: Tensor) -> Tensor:
    return x + torch.rand(()) + random.random() + np.random.rand()


def test_draws_depend_on_the_batch_and_not_on_who_makes_it() -> None:
    one = fit(sets_of(), num_workers=1, train_transform=noisy)
    assert torch.equal(fit(sets_of(), num_workers=2, train_transform=noisy), one)
    stacked = fit(sets_of(), num_workers=1, train_transform=noisy, executor="vectorized")
    assert torch.allclose(stacked, one, rtol=0, atol=1e-8)
    assert not torch.equal(fit(sets_of(), train_transform=noisy), one)


class Grows(L.Callback):
    def __init__(self, sets: list[Any]) -> None:
        self.sets = sets

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for changed in self.sets:
            changed.scale = 1.0 + trainer.current_epoch


def test_processes_see_what_hooks_of_a_rounds_start_have_changed() -> None:
    here, there = sets_of(), sets_of()
    assert torch.equal(fit(there, Grows(there), num_workers=1), fit(here, Grows(here)))


class Elsewhere(Points):
    """Cannot be read where it was made."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        assert os.getpid() != self.maker
        return super().__getitem__(index)


class Stops(L.Callback):
    """Ends each client after its first batch."""

    def on_train_batch_end(self, *arguments: Any) -> None:
        raise StopIteration


def test_what_a_client_leaves_is_passed_over() -> None:
    stopped = fit(sets_of(Elsewhere), Stops(), num_workers=1)
    assert torch.equal(stopped, fit(sets_of(), Stops()))
    assert not torch.equal(stopped, fit(sets_of()))


class Children(L.Callback):
    number = 0

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.number = max(self.number, len(multiprocessing.active_children()))


@pytest.mark.parametrize(("options", "number"), [({}, 0), ({"collate_fn": default_collate}, 1)])
def test_rows_of_tensors_are_gathered_here_unless_they_are_collated(options: dict[str, Any], number: int) -> None:
    rows = TensorDataset(Points().x, torch.arange(8) % 3)
    fit([rows], children := Children(), num_workers=1, **options)
    assert children.number == number


class Killed(Points):
    """Ends a process that reads its fourth sample."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 3 and os.getpid() != self.maker:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Missing(Points):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        raise KeyError(f"no sample {index}")


# PyTorch looks after its processes every five seconds.
KILLED = pytest.param(Killed, RuntimeError, marks=pytest.mark.long)


@pytest.mark.parametrize(("kind", "error"), [KILLED, (Missing, KeyError)])
def test_an_error_of_a_process_is_the_fits_error(kind: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"exited unexpectedly|no sample"):
        fit(sets_of(kind), num_workers=1)
