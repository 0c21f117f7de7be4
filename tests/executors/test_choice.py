"""``executor="auto"`` measures, says what it chose, and keeps to it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from stacked import Module, clients_of
from torch import nn
from toys import quiet_trainer

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import choice as choices
from fl_lightning.executors.choice import Choice
from fl_lightning.executors.memory import clients_that_fit


def fit(callback: FedAvg, layers: nn.Module, epochs: int = 2, ckpt_path: Any = None, **trainer: Any) -> Any:
    fitter = quiet_trainer(max_epochs=epochs, **{"callbacks": [callback], **trainer})
    data = TensorDataModule(clients_of((6,), (8, 12, 4, 20)), batch_size=4)
    fitter.fit(Module(layers), datamodule=data, ckpt_path=ckpt_path)
    return fitter


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


@pytest.mark.parametrize(("alone", "at_once", "chosen"), [(2e-4, 1e-5, "vectorized"), (2e-4, 1.9e-4, "sequential")])
def test_the_faster_one_is_chosen(
    alone: float, at_once: float, chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choices.Trial, "seconds_alone", lambda self: alone)
    monkeypatch.setattr(choices.Trial, "seconds_at_once", lambda self: at_once)
    with caplog.at_level(logging.INFO):
        fitter = fit(FedAvg(4, seed=1), linear())
    assert fitter.fit_loop.executor.choice.executor == chosen
    told = [record.message for record in caplog.records if record.message.startswith('executor="auto"')]
    assert len(told) == 1
    assert ("at once" if chosen == "vectorized" else "one after the other") in told[0]


def test_slow_steps_on_a_cpu_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices.Trial, "seconds_alone", lambda self: 0.02)
    fitter = fit(FedAvg(4, seed=1), linear())
    assert "arithmetic bounds" in fitter.fit_loop.executor.choice.cause


def test_modules_that_draw_random_numbers_are_trained_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices.Trial, "seconds_alone", lambda self: 2e-4)
    fitter = fit(FedAvg(4, seed=1), nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)))
    assert fitter.fit_loop.executor.choice.executor == "sequential"
    assert "random numbers" in fitter.fit_loop.executor.choice.cause


def test_measuring_leaves_no_trace() -> None:
    states = []
    for executor in ("sequential", "auto"):
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
        fitter = fit(FedAvg(4, seed=1, executor=executor), layers)
        states.append((layers.state_dict(), dict(fitter.callback_metrics), fitter.global_step))
    assert states[1][2] == states[0][2]
    for key, value in states[0][0].items():
        torch.testing.assert_close(states[1][0][key], value, rtol=1e-9, atol=1e-9)
    for key, value in states[0][1].items():
        torch.testing.assert_close(states[1][1][key], value, rtol=1e-5, atol=1e-6)


def test_a_resumed_run_keeps_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices.Trial, "seconds_alone", lambda self: 2e-4)
    monkeypatch.setattr(choices.Trial, "seconds_at_once", lambda self: 1e-5)
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    fit(FedAvg(4, seed=1), linear(), callbacks=[FedAvg(4, seed=1), save], enable_checkpointing=True)
    monkeypatch.setattr(choices.Trial, "seconds_at_once", lambda self: 1.0)
    fitter = fit(FedAvg(4, seed=1), linear(), epochs=4, ckpt_path=tmp_path / "last.ckpt")
    assert fitter.fit_loop.executor.choice.executor == "vectorized"


def test_threads_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setattr(choices, "adjustable_threads", lambda: 2)
    try:
        torch.set_num_threads(2)
        seen = []
        callback = FedAvg(4, seed=1)
        callback.on_train_start = lambda *args: seen.append(torch.get_num_threads())  # type: ignore[method-assign]
        callback.on_train_end = lambda *args: seen.append(torch.get_num_threads())  # type: ignore[method-assign]
        fit(callback, linear())
        assert seen == [2, 1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_that_the_user_set_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choices.adjustable_threads() is None


def test_a_choice_travels_in_a_checkpoint() -> None:
    assert Choice(**vars(Choice("vectorized", "why", 1))) == Choice("vectorized", "why", 1)


def test_memory_bounds_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    fitter = fit(FedAvg(4, seed=1, executor="vectorized"), linear())
    loop = fitter.fit_loop
    tasks = loop.callback.algorithm.plan(0, loop.data.client_sizes, 1)
    assert isinstance(tasks, list) and len(tasks) == 4
    # 53 values of 8 bytes six times, and 20 samples of 6 values and a class, 8 bytes each
    need = 6 * 53 * 8 + 20 * 7 * 8
    for free, expected in ((4 * 2 * need, 2), (1, 1), (1e12, 4)):
        monkeypatch.setattr("fl_lightning.executors.memory.free_memory", lambda device, free=free: free)
        assert clients_that_fit(loop, tasks) == expected
