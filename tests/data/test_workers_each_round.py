"""Other processes see the data as they are when a round begins; and one that dies is told."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.read_samples import Points, Told, fit, flat, linear, sets_of
from helpers.toys import quiet_trainer
from torch import Tensor
from torch.utils.data import DataLoader

from fl_lightning import ClientDatasetsModule, FedAvg, FederatedCheckpoint
from fl_lightning.data import make_loader

EXECUTORS = ["sequential", "vectorized", "auto"]
pytestmark = pytest.mark.auto_decides


class Grows(L.Callback):
    """Changes an attribute of some objects before each round."""

    def __init__(self, *objects: Any) -> None:
        self.objects = objects

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        for changed in self.objects:
            changed.scale = 1.0 + trainer.current_epoch


class Scales:
    scale = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.scale


# ---- what is changed between rounds ----


def test_data_that_change_each_round_train_one_client_as_stock_lightning_does() -> None:
    samples, module = Points(), linear()
    quiet_trainer(max_epochs=3, callbacks=[Grows(samples)]).fit(module, DataLoader(samples, batch_size=4))
    ours = Points()
    trainer = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0, executor="sequential"), Grows(ours)])
    federated = linear()
    trainer.fit(federated, datamodule=ClientDatasetsModule([ours], batch_size=4, shuffle=False, num_workers=1))
    assert torch.equal(flat(federated), flat(module))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_data_that_change_each_round_do_not_depend_on_processes(executor: str) -> None:
    def run(num_workers: int) -> Tensor:
        sets = sets_of()
        return fit(sets, Grows(*sets), executor=executor, num_workers=num_workers)

    assert torch.equal(run(0), run(2))


def test_a_transform_that_changes_each_round() -> None:
    def run(num_workers: int) -> Tensor:
        scales = Scales()
        return fit(sets_of(), Grows(scales), train_transform=scales, num_workers=num_workers)

    assert torch.equal(run(0), run(1))


def test_a_resumed_fit_on_changing_data_is_the_uninterrupted_one(tmp_path: Path) -> None:
    def run(rounds: int, *more: L.Callback, ckpt_path: str | None = None) -> Tensor:
        sets = sets_of()
        return fit(sets, Grows(*sets), *more, rounds=rounds, num_workers=1, ckpt_path=ckpt_path)

    run(2, FederatedCheckpoint(tmp_path))
    assert torch.equal(run(4, FederatedCheckpoint(tmp_path), ckpt_path="last"), run(4))


def test_hooks_after_a_round_get_batches_of_the_present_data_and_keep_none_for_the_next_round() -> None:
    class Reads(L.Callback):
        def __init__(self, samples: Points) -> None:
            self.samples, self.seen = samples, []

        def on_train_epoch_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
            self.samples.scale = 10.0 + trainer.current_epoch
            data: Any = trainer.datamodule  # type: ignore[attr-defined]
            x, _ = next(data.client_batches(0, generator=torch.Generator(), shuffle=False))
            self.seen.append(float((x[0] / self.samples.x[0]).mean()))

    def run(num_workers: int) -> Tensor:
        sets = sets_of()
        reads = Reads(sets[0])
        found = fit(sets, reads, Grows(*sets), num_workers=num_workers)
        assert reads.seen == pytest.approx([10.0, 11.0])
        return found

    assert torch.equal(run(0), run(1))


@pytest.mark.parametrize("algorithm", [[FedAvg(1.0, seed=1)], []])
def test_validation_and_central_training_see_changed_data(algorithm: list[L.Callback]) -> None:
    losses, weights = [], []
    for num_workers in (0, 1):
        val, sets, module = Points(9, 99), sets_of(), linear()
        trainer = quiet_trainer(max_epochs=3, callbacks=[*algorithm, Grows(val, *sets)])
        data = ClientDatasetsModule(sets, val=val, batch_size=4, shuffle=False, num_workers=num_workers)
        trainer.fit(module, datamodule=data)
        losses.append(trainer.callback_metrics["val_loss"])
        weights.append(flat(module))
    assert torch.equal(*losses)
    assert torch.equal(*weights)


def test_loaders_end_their_processes_with_an_epoch() -> None:
    assert make_loader(Points(), 4, shuffle=False, num_workers=1).persistent_workers is False


# ---- processes that are not forked ----


class Changes(L.Callback):
    """Changes the data of a client before some rounds, and notes what the batches of each round tell."""

    def __init__(self, samples: Told) -> None:
        self.samples, self.seen = samples, []

    def on_train_epoch_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self.seen.append(set())
        if trainer.current_epoch == 2:
            self.samples.scale = 7.0
        if trainer.current_epoch == 3:
            self.samples.array[0] = 8.0
        if trainer.current_epoch == 4:
            self.samples.tensor[0] = 9.0

    def on_train_batch_start(self, trainer: L.Trainer, module: L.LightningModule, batch: Any, batch_idx: int) -> None:
        self.seen[-1] |= {tuple(row) for row in batch[0].tolist()}


def test_processes_that_are_not_forked_stay_as_long_as_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fl_lightning"])  # so that each process need not import it
    monkeypatch.setattr(torch.multiprocessing, "get_context", lambda: context)
    before = multiprocessing.active_children()
    changes = Changes(Told(8))
    fit([changes.samples], changes, rounds=6, num_workers=1)
    told = [row for (row,) in changes.seen]  # one process in each round
    assert [row[1:] for row in told] == [(1, 0, 0)] * 2 + [(7, 0, 0), (7, 8, 0)] + [(7, 8, 9)] * 2
    places = [[row[0] for row in told].index(row[0]) for row in told]  # the first round of each round's process
    assert places == [0, 0, 2, 3, 4, 4]
    assert os.getpid() not in {row[0] for row in told}
    assert set(multiprocessing.active_children()) <= set(before)


# ---- processes that die ----


class Killed(Points):
    """Ends every process that reads its fourth sample but the one that made the data."""

    def __init__(self, size: int, seed: int) -> None:
        super().__init__(size, seed)
        self.maker = os.getpid()

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 3 and os.getpid() != self.maker:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("number", [1, 2])
def test_a_process_that_dies_is_told_with_the_way_out(number: int) -> None:
    before = multiprocessing.active_children()
    with pytest.raises(RuntimeError, match=rf"has died \(`num_workers={number}`\).*too little memory.*or 0"):
        fit(sets_of(Killed), num_workers=number)
    assert set(multiprocessing.active_children()) <= set(before)
    fit(sets_of(Killed), num_workers=0)
