"""``executor="auto"`` measures, says what it chose, and keeps to it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import auto as choices
from fl_lightning.executors.auto import ExecutorChoice
from fl_lightning.executors.stacked.memory import clients_that_fit, memory_budget
from fl_lightning.executors.stacked.timing import StepTiming
from fl_lightning.parts.federation import Task


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
    monkeypatch.setattr(StepTiming, "seconds_alone", lambda self: alone)
    monkeypatch.setattr(StepTiming, "seconds_at_once", lambda self: at_once)
    with caplog.at_level(logging.INFO):
        fitter = fit(FedAvg(4, seed=1), linear())
    assert fitter.fit_loop.executor.choice.executor == chosen
    told = [record.message for record in caplog.records if record.message.startswith('executor="auto"')]
    assert len(told) == 1
    assert ("at once" if chosen == "vectorized" else "one after the other") in told[0]


def test_slow_steps_on_a_cpu_are_not_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepTiming, "seconds_alone", lambda self: 0.02)
    fitter = fit(FedAvg(4, seed=1), linear())
    assert "arithmetic bounds" in fitter.fit_loop.executor.choice.cause


def test_modules_that_draw_random_numbers_are_trained_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepTiming, "seconds_alone", lambda self: 2e-4)
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
    monkeypatch.setattr(StepTiming, "seconds_alone", lambda self: 2e-4)
    monkeypatch.setattr(StepTiming, "seconds_at_once", lambda self: 1e-5)
    save = ModelCheckpoint(tmp_path, filename="last", enable_version_counter=False)
    fit(FedAvg(4, seed=1), linear(), callbacks=[FedAvg(4, seed=1), save], enable_checkpointing=True)
    monkeypatch.setattr(StepTiming, "seconds_at_once", lambda self: 1.0)
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
    assert ExecutorChoice(**vars(ExecutorChoice("vectorized", "why", 1))) == ExecutorChoice("vectorized", "why", 1)
    assert ExecutorChoice(**vars(ExecutorChoice("sequential", "why", 1, True))) == ExecutorChoice(
        "sequential", "why", 1, True
    )


# ---- channels last ----


SECONDS_CHANNELS_LAST = StepTiming.seconds_channels_last  # as it is outside of tests


class FlattenByView(nn.Module):
    """Fails on channels that are last in memory."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1)


class RefusesChannelsLast(nn.Module):
    """Has an opinion on layouts."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not x.is_contiguous():
            raise ValueError("contiguous tensors only")
        return x.flatten(1)


def fit_images(
    monkeypatch: pytest.MonkeyPatch,
    *between: nn.Module,
    end: nn.Module | None = None,
    executor: str = "auto",
    callbacks: Sequence[Callback] = (),
) -> tuple[Any, set[bool]]:
    """Train a convolutional network whose steps seem to take half as long with channels last."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Unflatten(1, (2, 6, 6)), nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), *between)
    layers.extend([end or nn.Flatten(), nn.Linear(16, 3)])
    measured, weight = StepTiming.seconds_alone, layers[1].weight

    def seconds_alone(timing: StepTiming) -> float:
        measured(timing)
        [tried] = [p for p in timing._clients.vector.parameters if p.dim() == 4]  # of the copy that is measured
        return 0.02 if tried.is_contiguous() else 0.01

    contiguous: set[bool] = set()
    layers[2].register_forward_hook(lambda module, args, out: contiguous.add(out.is_contiguous()))
    with monkeypatch.context() as patched:
        patched.setattr(StepTiming, "seconds_alone", seconds_alone)
        patched.setattr(StepTiming, "seconds_channels_last", SECONDS_CHANNELS_LAST)
        fitter = quiet_trainer(max_epochs=2, callbacks=[FedAvg(3, seed=1, executor=executor), *callbacks])
        fitter.fit(Module(layers), datamodule=TensorDataModule(clients_of((72,), (8, 12, 6)), batch_size=4))
    assert weight.is_contiguous()  # as the user gave it
    return fitter, contiguous


def test_convolutions_train_with_channels_last_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        fitter, contiguous = fit_images(monkeypatch)
    assert fitter.fit_loop.executor.choice.channels_last
    assert any("channels last in memory" in record.message for record in caplog.records)
    assert contiguous == {True, False}  # it was tried both ways
    plain, contiguous = fit_images(monkeypatch, executor="sequential")
    assert contiguous == {True}
    for one, other in zip(fitter.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_modules_that_cannot_take_channels_last_are_left_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (FlattenByView(), RefusesChannelsLast()):
        fitter, _ = fit_images(monkeypatch, end=end)
        choice = fitter.fit_loop.executor.choice
        assert not choice.channels_last
        assert "arithmetic bounds" in choice.cause  # it works as it is


def test_callbacks_that_see_clients_see_the_users_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Watch(Callback):
        def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
            seen.append(all(p.is_contiguous() for p in pl_module.parameters()))
            torch.nn.utils.parameters_to_vector(pl_module.parameters())

    fitter, _ = fit_images(monkeypatch, callbacks=[Watch()])
    assert seen == [True] * 6
    assert not fitter.fit_loop.executor.choice.channels_last


def test_the_clock_does_not_decide_over_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    fitter, _ = fit_images(monkeypatch, nn.Dropout2d(0.5))
    assert not fitter.fit_loop.executor.choice.channels_last


def test_freed_memory_is_kept_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[tuple[int, int]] = []
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    library = SimpleNamespace(mallopt=lambda name, value: options.append((name, value)))
    monkeypatch.setattr("ctypes.CDLL", lambda name: library)
    monkeypatch.setattr("sys.platform", "linux")
    fit(FedAvg(4, seed=1), linear())
    assert options == [(-3, 32 << 20), (-1, 512 << 20)]  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
    options.clear()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    fit(FedAvg(4, seed=1), linear())
    assert not options
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_")
    monkeypatch.setattr("ctypes.CDLL", lambda name: SimpleNamespace())  # another C library
    fit(FedAvg(4, seed=1), linear())


def test_memory_bounds_a_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    fitter = fit(FedAvg(4, seed=1, executor="vectorized"), linear())
    loop = fitter.fit_loop
    # 53 values of 8 bytes six times, and 20 samples of 6 values and a class, 8 bytes each
    need = 6 * 53 * 8 + 20 * 7 * 8
    loop.algorithm.on_round_start(0)
    tasks = loop.algorithm.planned_tasks
    assert len(tasks) == 4
    for free, expected in ((4 * 2 * need, 2), (1, 1), (float("inf"), 4)):
        monkeypatch.setattr("fl_lightning.executors.stacked.memory.free_memory", lambda device, free=free: free)
        assert clients_that_fit(loop.clients, tasks, memory_budget(loop.clients)) == expected


def test_a_stack_on_a_cpu_takes_32_mebibytes_of_weights_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fl_lightning.executors.stacked.memory.free_memory", lambda device: 1e12)
    # 6 x 100,000 + 100,000 + 100,000 x 3 + 3 = 1,000,003 weights in double precision: 4 x 8,000,024 bytes fit
    tasks = [Task(slot, slot, 8) for slot in range(10)]
    fitter = fit(FedAvg(1, seed=1), nn.Sequential(nn.Linear(6, 100_000), nn.Linear(100_000, 3)), epochs=1)
    assert clients_that_fit(fitter.fit_loop.clients, tasks, 1e12) == 4
