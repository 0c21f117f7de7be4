"""One thread for steps of little arithmetic, in all that a fit computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors.machine import Threads, using_threads

HOOKS = ("on_train_start", "on_train_batch_start", "on_validation_batch_start", "on_round_end")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let torch use both cores that a process has, of a machine of seven, as it does by itself."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 7)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


class Watch(Callback):
    """Notes torch's threads in each hook."""

    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {name: [] for name in HOOKS}
        for name, seen in self.seen.items():
            setattr(self, name, lambda *args, seen=seen: seen.append(torch.get_num_threads()))


class Validated(Module):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.layers(batch[0])


def prepared(*callbacks: Callback, executor: str = "sequential", epochs: int = 2) -> tuple[Watch, Trainer, Any]:
    watch = Watch()
    options = {"enable_checkpointing": bool(callbacks), "max_epochs": epochs, "num_sanity_val_steps": 0}
    trainer = quiet_trainer(callbacks=[FedAvg(2, seed=1, executor=executor), watch, *callbacks], **options)
    [(x, y)] = clients_of((6,), (8,))
    return watch, trainer, TensorDataModule([(x, y), (x, y)], val=(x, y), batch_size=4)


def fit(*callbacks: Callback, ckpt_path: Any = None, **options: Any) -> dict[str, Any]:
    watch, trainer, data = prepared(*callbacks, **options)
    trainer.fit(Validated(linear()), datamodule=data, ckpt_path=ckpt_path)
    return watch.seen


@pytest.mark.auto_decides
@pytest.mark.parametrize(("executor", "threads"), [("sequential", 3), ("auto", 2)])
def test_small_steps_have_one_thread_and_the_others_come_back(
    executor: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if threads == 3:  # by default half of all, where the system does not say which a process has
        monkeypatch.delattr("os.sched_getaffinity")
    torch.set_num_threads(threads)
    seen = fit(executor=executor)
    assert {number for numbers in seen.values() for number in numbers} == {1}
    assert all(seen.values())
    assert torch.get_num_threads() == threads


def test_stacks_have_one_thread() -> None:
    assert set(fit(executor="vectorized")["on_round_end"]) == {1}


# 2 x 4 samples x (6 x 5 + 5 x 3) forward, as many for the weights' gradients, 2 x 4 x 5 x 3 for the hidden layer's: 840
@pytest.mark.parametrize(("limit", "threads", "told"), [(840, 2, "2 threads."), (841, 1, "1 thread.")])
def test_steps_of_much_arithmetic_have_all_threads(
    limit: float, threads: int, told: str, monkeypatch: Any, tmp_path: Path, caplog: Any
) -> None:
    monkeypatch.setattr("fl_lightning.executors.machine.LARGE_STEP", limit)
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    seen = fit(save)
    assert f"one after the other. Torch uses {told}" in caplog.text
    # the first client decides: two batches of each of two clients in two rounds
    assert seen["on_train_batch_start"] == [1] * 2 + [threads] * 6
    assert set(seen["on_round_end"] + seen["on_validation_batch_start"]) == {threads}
    monkeypatch.setattr("fl_lightning.executors.machine.LARGE_STEP", 1e9)
    assert fit(save, ckpt_path=tmp_path / "last.ckpt", epochs=3)["on_train_start"] == [threads]


def test_each_of_several_processes_has_one_thread_and_other_devices_leave_them_alone() -> None:
    threads, counts = Threads(), MagicMock(flops=1e12)
    with threads.of_fit(torch.device("cpu")):
        threads.choose(counts, processes=2)
    with using_threads(threads.chosen, torch.device("cuda")) as usual:
        assert (threads.chosen, usual, torch.get_num_threads()) == (1, None, 2)


def test_an_evaluation_has_the_threads_of_its_fit(tmp_path: Path) -> None:
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    watch, trainer, data = prepared(save)
    trainer.fit(module := Validated(linear()), datamodule=data)
    for ckpt_path in (None, tmp_path / "last.ckpt"):
        trainer.validate(module, datamodule=data, ckpt_path=ckpt_path, verbose=False)
    assert watch.seen["on_validation_batch_start"] == [1] * 4
    assert torch.get_num_threads() == 2
    for ckpt_path, threads in ((None, 2), (tmp_path / "last.ckpt", 1)):  # without any fit all of torch's
        watch, trainer, data = prepared()
        trainer.validate(module, datamodule=data, ckpt_path=ckpt_path, verbose=False)
        assert watch.seen["on_validation_batch_start"] == [threads]


def test_an_evaluation_after_stacks_has_one_thread() -> None:
    watch, trainer, data = prepared(executor="vectorized")
    trainer.callbacks.remove(watch)  # clients are not stacked under it
    trainer.fit(module := Validated(linear()), datamodule=data)
    assert trainer.fit_loop.executor.describe().startswith("in stacks")
    trainer.callbacks.append(watch)
    trainer.validate(module, datamodule=data, verbose=False)
    assert set(watch.seen["on_validation_batch_start"]) == {1}


def test_threads_that_the_user_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    assert fit()["on_round_end"] == [3, 3]
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert fit()["on_round_end"] == [2, 2]
