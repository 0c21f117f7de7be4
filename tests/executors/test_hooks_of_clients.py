"""Hooks of clients see the same in a stack as where clients train one after the other."""

from __future__ import annotations

import itertools
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Accuracy, MeanMetric

from fl_lightning import FedAvg, FedBuff, RADFed, TensorDataModule
from fl_lightning.diagnostics import RoundObserver
from fl_lightning.executors import SequentialExecutor, VectorizedExecutor

SIZES = (8, 13, 9, 21, 10, 6)


class Counted(Module):
    """Logs each step's loss, and has metric objects."""

    scale = 1.0

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)))
        self.accuracy = Accuracy("multiclass", num_classes=3)
        self.losses = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        scores = self.layers(batch[0])
        loss = self.scale * F.cross_entropy(scores, batch[1])
        self.accuracy(scores, batch[1])
        self.losses.update(loss)
        self.log("loss", loss)
        self.log("accuracy", self.accuracy, on_step=False, on_epoch=True)
        return loss


def fit(callback: Any, executor: str, aggregation: Any = None, at_once: int | None = None) -> Any:
    """Return the weights after four rounds, and why clients were not stacked."""
    trains = SequentialExecutor() if executor == "sequential" else VectorizedExecutor(at_once)
    module = Counted()
    federated = (aggregation or partial(FedAvg, 1.0))(seed=1, executor=trains)
    trainer = quiet_trainer(max_epochs=4, callbacks=[federated, callback])
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), SIZES), batch_size=4))
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    return weights, getattr(trains, "cause", None)


def compared(make: Any, **options: Any) -> tuple[Any, Any, str | None]:
    """Return the callback of a fit one after the other, that of a stacked one, and why it was not stacked."""
    callbacks = make(), make()
    alone, _ = fit(callbacks[0], "sequential", **options)
    at_once, cause = fit(callbacks[1], "vectorized", **options)
    assert torch.allclose(alone, at_once, rtol=0, atol=1e-10)
    return *callbacks, cause


class Notes(Callback):
    """Notes all that a callback can see of a client."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def seen(self, trainer: Any, module: Any) -> list[float]:
        progress = trainer.fit_loop.epoch_loop.batch_progress
        return [
            trainer.global_step,
            progress.current.ready,
            progress.total.completed,
            float(trainer.callback_metrics.get("loss", -1.0)),
            float(module.accuracy.tp.sum()),
            float(module.losses.compute()) if module.losses.update_count else 0.0,
            float(sum(parameter.detach().abs().sum() for parameter in module.parameters())),
        ]

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        self.notes.append([client.task.client, *self.seen(trainer, pl_module)])
        self.start = torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()])

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        end = torch.cat([parameter.detach().flatten() for parameter in pl_module.parameters()])
        drift = float((end - self.start).norm())
        self.notes.append([result.task.client, drift, *self.seen(trainer, pl_module)])


class OnlyEnds(Notes):
    on_client_start = None  # type: ignore[assignment]

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.notes.append([result.task.client, *self.seen(trainer, pl_module)])


@pytest.mark.parametrize("kind", [Notes, OnlyEnds])
@pytest.mark.parametrize(
    "options",
    [{}, {"at_once": 2}, {"aggregation": partial(RADFed, 2, 3)}, {"aggregation": partial(FedBuff, 3)}],
    ids=["a round", "stacks of two", "RADFed", "FedBuff"],
)
def test_hooks_see_each_client_as_if_it_had_trained_alone(kind: Any, options: dict[str, Any]) -> None:
    alone, at_once, cause = compared(kind, **options)
    assert cause is None
    assert len(alone.notes) == len(at_once.notes) > 0
    for before, after in zip(alone.notes, at_once.notes, strict=True):
        assert before == pytest.approx(after, rel=1e-6)


def test_a_hook_sees_the_steps_of_the_clients_so_far() -> None:
    _, at_once, _ = compared(OnlyEnds)
    steps = [2, 4, 3, 6, 3, 2]  # of clients with 8, 13, 9, 21, 10 and 6 samples, in batches of 4
    so_far = list(itertools.accumulate(steps[note[0]] for note in at_once.notes))
    assert [note[1] for note in at_once.notes] == so_far
    assert [note[2] for note in at_once.notes] == [(number - 1) % 20 + 1 for number in so_far]


class Resets(Callback):
    """Takes the metric object's value for each client, and starts it anew."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.values.append(float(pl_module.accuracy.compute()))
        pl_module.accuracy.reset()


def test_metric_objects_that_hooks_reset_are_stacked() -> None:
    alone, at_once, cause = compared(Resets)
    assert cause is None
    assert alone.values == pytest.approx(at_once.values)
    assert len(set(at_once.values)) > 3


class Noise(Callback):
    """Draws from all global generators; moves the weights."""

    def __init__(self, moves: bool = True) -> None:
        self.moves, self.drawn = moves, []

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        noise = torch.randn(()) + np.random.standard_normal() + random.random()
        if self.moves:
            with torch.no_grad():
                pl_module.layers[0].bias.add_(0.1 * noise)

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.drawn.append((float(torch.rand(())), float(np.random.rand()), random.random()))


@pytest.mark.parametrize("moves", [True, False])
def test_what_hooks_draw_depends_on_the_client_and_the_round(moves: bool) -> None:
    alone, at_once, cause = compared(lambda: Noise(moves))
    assert cause is None
    assert alone.drawn == at_once.drawn
    assert len(set(at_once.drawn)) == len(at_once.drawn) == 24


class Later(Callback):
    """Prepares some clients, from the third round on, that no trial has seen."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if trainer.current_epoch < 2 or client.task.client < 3:
            return
        if self.what == "rate":
            trainer.optimizers[0].param_groups[0]["lr"] = 0.01 * client.task.client
        elif self.what == "weights":
            with torch.no_grad():
                pl_module.layers[2].bias.fill_(0.1 * client.task.client)
        else:
            pl_module.scale = 0.5 * client.task.client


@pytest.mark.parametrize("what", ["rate", "weights", "attribute"])
def test_clients_that_a_hook_prepares_later_train_alone(what: str) -> None:
    compared(lambda: Later(what))


class Heads(Callback):
    """Keeps each client's last layer; with ``noting`` it notes the client at work, too."""

    def __init__(self, noting: bool) -> None:
        self.heads: dict[int, Tensor] = {}
        self.noting, self.at_work = noting, -1

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if self.noting:
            self.at_work = client.task.client
        with torch.no_grad():
            pl_module.layers[2].bias.copy_(self.heads.get(client.task.client, torch.full((3,), 0.3)))

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        client = self.at_work if self.noting else result.task.client
        self.heads[client] = pl_module.layers[2].bias.detach().clone()


@pytest.mark.parametrize("noting", [True, False])
def test_layers_that_hooks_keep_for_each_client(noting: bool) -> None:
    alone, at_once, cause = compared(lambda: Heads(noting))
    assert sorted(alone.heads) == sorted(at_once.heads) == list(range(6))
    for client, head in alone.heads.items():
        assert torch.allclose(head, at_once.heads[client], rtol=0, atol=1e-10)
    expected = "`on_client_start` changes `Heads.at_work`, of which there is one for all clients"
    assert cause == (expected if noting else None)


def test_an_observer_that_overrides_nothing_changes_nothing() -> None:
    _, _, cause = compared(RoundObserver)
    assert cause is None
