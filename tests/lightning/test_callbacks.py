"""Lightning's callbacks inside the federated loop, and rounds that are broken off."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import (
    Classifier,
    ValidatedClassifier,
    assert_same_weights,
    clients_of,
    samples,
    train_federatedly,
    weights_of,
)
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import (
    Callback,
    EarlyStopping,
    LearningRateMonitor,
    ModelCheckpoint,
    Timer,
)
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning import FedAvg, FederatedCheckpoint, RADFed, TensorDataModule

SIZES = (8, 3, 9)  # 2 + 1 + 3 batches of 4


class Scheduled(ValidatedClassifier):
    """Momentum and a schedule, so that a checkpoint has something to remember; the loss falls by 1 a round."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


class History(Callback):
    """Keeps the server's weights of each round's end."""

    def __init__(self) -> None:
        self.weights: list[dict[str, torch.Tensor]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.weights.append(weights_of(pl_module))


def run(module: L.LightningModule, *callbacks: Callback, max_epochs: int = 3, **trainer: Any) -> L.Trainer:
    return train_federatedly(
        module, clients_of(*SIZES), val=samples(6), callbacks=callbacks, max_epochs=max_epochs, **trainer
    )


def saved(path: Any) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def test_model_checkpoint_saves_the_servers_weights(tmp_path: Path) -> None:
    history = History()
    best = ModelCheckpoint(tmp_path / "best", filename="{epoch}", monitor="val_loss", save_top_k=2, save_last=True)
    second = ModelCheckpoint(tmp_path / "second", filename="{epoch}-{step}", every_n_epochs=2, save_top_k=-1)
    trained = ModelCheckpoint(tmp_path / "trained", monitor="train_loss")
    trainer = run(Scheduled(lr=0.1), history, best, second, trained, max_epochs=4)
    # the loss falls from round to round
    assert sorted(path.name for path in (tmp_path / "best").iterdir()) == ["epoch=2.ckpt", "epoch=3.ckpt", "last.ckpt"]
    assert best.best_model_path == str(tmp_path / "best" / "epoch=3.ckpt")
    # six steps a round
    names = ["epoch=1-step=12.ckpt", "epoch=3-step=24.ckpt"]
    assert sorted(path.name for path in (tmp_path / "second").iterdir()) == names
    for epoch, name in [(2, "best/epoch=2"), (3, "best/epoch=3"), (3, "best/last"), (3, "second/epoch=3-step=24")]:
        assert_same_weights(saved(tmp_path / f"{name}.ckpt")["state_dict"], history.weights[epoch])
    assert float(trained.best_model_score) == float(trainer.callback_metrics["train_loss"])  # type: ignore[arg-type]


class Falls(Classifier):
    """Validates to numbers that the test chose, one a round."""

    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses = losses

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.losses[self.current_epoch])


def test_early_stopping_stops_after_the_right_round() -> None:
    # the best is round 1; with patience 2 rounds 2 and 3 are awaited
    stop = EarlyStopping("val_loss", patience=2)
    trainer = run(Falls([5.0, 3.0, 4.0, 3.5, 1.0, 0.0]), stop, max_epochs=6)
    assert (trainer.current_epoch, stop.stopped_epoch) == (4, 3)
    assert trainer.global_step == 4 * 6


@pytest.mark.parametrize("interval", ["epoch", "step"])
def test_learning_rate_monitor(tmp_path: Path, interval: str) -> None:
    monitor = LearningRateMonitor(logging_interval=interval)  # type: ignore[arg-type]
    run(Scheduled(), monitor, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    lines = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("lr-SGD")
    rates = [float(cells[column]) for line in lines[1:] if (cells := line.split(","))[column]]
    # the schedule halves the rate after each round; a round has 6 steps
    per_round = 1 if interval == "epoch" else 6
    assert rates == pytest.approx([0.1] * per_round + [0.05] * per_round + [0.025] * per_round)


class Clock:
    """Time that passes by a second with every training batch."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Ticks(Callback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_batch_start(self, *_: Any) -> None:
        self.clock.now += 1.0


@pytest.mark.parametrize("way", ["max_time", "step", "epoch"])
def test_time_limit_stops_at_a_rounds_end(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    clock, history = Clock(), History()
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time", clock)
    # 8 of the 6 batches a round: in the middle of the second
    limit = timedelta(seconds=8)
    timer = [] if way == "max_time" else [Timer(limit, interval=way)]
    trainer = {"max_time": limit} if way == "max_time" else {}
    module = Scheduled()
    fit = run(module, Ticks(clock), *timer, history, max_epochs=10, **trainer)
    assert fit.current_epoch == 2
    assert fit.global_step == 12
    assert_same_weights(weights_of(module), history.weights[1])


# ---- a checkpoint written inside a round ----


class SavesInside(Callback):
    """Calls ``trainer.save_checkpoint`` after a batch in the middle of round 1."""

    def __init__(self, path: Path, weights_only: bool) -> None:
        self.path, self.weights_only = path, weights_only
        self.saved = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.current_epoch == 1 and batch_idx == 3 and not self.saved:
            self.saved = True
            before = weights_of(pl_module)
            trainer.save_checkpoint(self.path, weights_only=self.weights_only)
            # the client goes on from where it was
            assert_same_weights(weights_of(pl_module), before)


class OneCycle(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.4, total_steps=steps)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


FEDAVG, RADFED = (lambda: FedAvg(1.0, seed=0)), (lambda: RADFed(2, 1.0, seed=0))


@pytest.mark.parametrize(("kind", "algorithm"), [(Scheduled, RADFED), (OneCycle, FEDAVG)])
def test_checkpoint_inside_a_round_is_that_of_its_start(tmp_path: Path, kind: Any, algorithm: Any) -> None:
    undisturbed = kind()
    run(undisturbed, algorithm=algorithm())

    history, module = History(), kind()
    start = ModelCheckpoint(tmp_path, filename="start-{epoch}", save_top_k=-1)
    run(module, history, start, SavesInside(tmp_path / "inside.ckpt", weights_only=False), algorithm=algorithm())
    assert_same_weights(weights_of(module), weights_of(undisturbed))

    inside, at_start = saved(tmp_path / "inside.ckpt"), saved(tmp_path / "start-epoch=0.ckpt")
    assert_same_weights(inside["state_dict"], history.weights[0])
    assert inside["global_step"] == at_start["global_step"] == 6
    assert inside["epoch"] == 1  # rounds that are over; Lightning writes `start` before it counts the round
    assert inside["optimizer_states"] == at_start["optimizer_states"]
    assert inside["optimizer_states"][0]["state"] == {}
    assert inside["lr_schedulers"] == at_start["lr_schedulers"]
    progress = [c["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] for c in (inside, at_start)]
    assert progress == [1, 1]

    resumed = kind()
    run(resumed, algorithm=algorithm(), ckpt_path=str(tmp_path / "inside.ckpt"))
    assert_same_weights(weights_of(resumed), weights_of(undisturbed))


# ---- a round that is broken off ----


class Breaks(Callback):
    """Raises in round 1, in the named hook."""

    def __init__(self, hook: str, error: BaseException) -> None:
        self.error: BaseException | None = error
        setattr(self, hook, self._break)

    def _break(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        batch_idx = args[-1] if args else 3
        if self.error is not None and trainer.current_epoch == 1 and batch_idx == 3:
            error, self.error = self.error, None
            raise error


@pytest.mark.parametrize(
    ("hook", "kind", "algorithm"),
    [
        ("on_train_epoch_start", OneCycle, FEDAVG),
        ("on_train_batch_start", OneCycle, RADFED),
        ("on_train_batch_end", Scheduled, RADFED),
    ],
)
def test_broken_off_round_leaves_no_trace(tmp_path: Path, hook: str, kind: Any, algorithm: Any) -> None:
    undisturbed = kind()
    run(undisturbed, algorithm=algorithm())

    history, module = History(), kind()
    data = TensorDataModule(clients_of(*SIZES), samples(6), batch_size=4, shuffle=False)
    callbacks = [algorithm(), history, Breaks(hook, RuntimeError("the disk is full"))]
    trainer = quiet_trainer(max_epochs=3, callbacks=callbacks)
    with pytest.raises(RuntimeError, match="the disk is full"):
        trainer.fit(module, datamodule=data)
    assert_same_weights(weights_of(module), history.weights[0])
    assert (trainer.current_epoch, trainer.global_step) == (1, 6)
    trainer.save_checkpoint(tmp_path / "after.ckpt")

    trainer.fit(module, datamodule=data)
    assert (trainer.current_epoch, trainer.global_step) == (3, 18)

    resumed = kind()
    run(resumed, algorithm=algorithm(), ckpt_path=str(tmp_path / "after.ckpt"))
    assert_same_weights(weights_of(resumed), weights_of(undisturbed))


class InterruptedStep(Scheduled):
    """Stands for a user who presses Ctrl-C in the fifth batch of round 1."""

    batches = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.batches += 1
        if self.batches == 6 + 5:
            raise KeyboardInterrupt
        return super().training_step(batch, batch_idx)


def test_keyboard_interrupt_leaves_the_servers_weights(tmp_path: Path) -> None:
    undisturbed, module, history = Scheduled(), InterruptedStep(), History()
    run(undisturbed)
    keep = ModelCheckpoint(tmp_path, save_last=True, save_on_exception=True)
    with pytest.raises(SystemExit):
        run(module, history, keep)
    assert len(history.weights) == 1
    assert_same_weights(weights_of(module), history.weights[0])
    resumed = Scheduled()
    run(resumed, ckpt_path=str(tmp_path / "last.ckpt"))
    assert_same_weights(weights_of(resumed), weights_of(undisturbed))


def test_layers_unfrozen_during_the_fit_are_reported() -> None:
    class Unfreezes(Callback):
        def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                pl_module.layers[0].requires_grad_(True)
                trainer.optimizers[0].add_param_group({"params": list(pl_module.layers[0].parameters()), "lr": 0.1})

    class Frozen(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)

    module, history = Frozen(), History()
    module.layers[0].requires_grad_(False)  # type: ignore[index]
    with pytest.raises(RuntimeError, match="trained parameters of Frozen"):
        run(module, history, Unfreezes())
    assert_same_weights(weights_of(module), history.weights[0])


def ctrl_c() -> None:
    raise KeyboardInterrupt


def sigterm() -> None:
    signal.raise_signal(signal.SIGTERM)


class Stopped(Callback):
    """Stops the fit in the second round."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.current_epoch == 1:
            self.stop()


@pytest.mark.parametrize(
    ("stop", "error", "kept", "hint"),
    [
        (ctrl_c, SystemExit, True, r"Interrupted in round 2\. .*ckpt_path=\".*last\.ckpt\""),
        (sigterm, SIGTERMException, True, r"Ended by SIGTERM in round 2\. .*ckpt_path=\".*last\.ckpt\""),
        (ctrl_c, SystemExit, False, r"Interrupted in round 2\. There is no checkpoint.*FederatedCheckpoint\(\)"),
    ],
)
def test_a_signal_says_how_to_resume(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    stop: Callable[[], None],
    error: type[BaseException],
    kept: bool,
    hint: str,
) -> None:
    callbacks = [Stopped(stop), *([FederatedCheckpoint(tmp_path)] if kept else [])]
    with caplog.at_level("INFO"), pytest.raises(error):
        train_federatedly(Classifier(), clients_of(8, 3), callbacks=callbacks, max_epochs=3)
    (line,) = [record.getMessage() for record in caplog.records if "in round" in record.getMessage()]
    assert re.match(hint, line)


def test_a_job_that_is_queued_again_needs_no_hint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    callbacks = [Stopped(partial(signal.raise_signal, signal.SIGUSR1)), FederatedCheckpoint(tmp_path)]
    options: dict[str, Any] = {"plugins": [SLURMEnvironment()], "default_root_dir": tmp_path}
    with caplog.at_level("INFO"), pytest.raises(SIGTERMException):
        train_federatedly(Classifier(), clients_of(8, 3), callbacks=callbacks, max_epochs=3, **options)
    assert (tmp_path / "hpc_ckpt_1.ckpt").exists()
    assert "Resume with" not in caplog.text
