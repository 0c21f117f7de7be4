"""Lightning's callbacks inside the federated loop, and rounds that are broken off."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.comparison import ValidatedClassifier, assert_same_weights, clients_of, samples, train_federatedly
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor, ModelCheckpoint, Timer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning import FedAvg, FederatedCheckpoint, RADFed, TensorDataModule
from fl_lightning.testing.fits import Trace

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


def run(module: L.LightningModule, *callbacks: Callback, max_epochs: int = 3, **trainer: Any) -> L.Trainer:
    settings: dict[str, Any] = {"val": samples(6), "max_epochs": max_epochs, **trainer}
    return train_federatedly(module, clients_of(*SIZES), callbacks=callbacks, **settings)


def saved(path: Any) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def test_model_checkpoint_saves_the_servers_weights(tmp_path: Path) -> None:
    history = Trace()
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
        assert_same_weights(saved(tmp_path / f"{name}.ckpt")["state_dict"], history.rounds[epoch])
    assert float(trained.best_model_score) == float(trainer.callback_metrics["train_loss"])  # type: ignore[arg-type]


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


class Clock(Callback):
    """Time that passes by a second with every training batch."""

    now = 0.0
    #: Whether the fit was to stop before a round's end.
    stops_inside = False

    def monotonic(self) -> float:
        return self.now

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        self.now += 1.0
        self.stops_inside |= trainer.should_stop


@pytest.mark.parametrize("way", ["max_time", "step", "epoch"])
def test_time_limit_stops_at_a_rounds_end(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    clock, history, module = Clock(), Trace(), Scheduled()
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time", clock)
    # 8 of the 6 batches a round: in the middle of the second
    limit = timedelta(seconds=8)
    timer = [] if way == "max_time" else [Timer(limit, interval=way)]
    fit = run(module, clock, *timer, history, max_epochs=10, max_time=None if timer else limit)
    assert (fit.current_epoch, fit.global_step) == (2, 12)
    # With several processes all would wait, at each batch, for those that train fewer.
    assert not clock.stops_inside
    assert_same_weights(module.state_dict(), history.rounds[1])


class OneCycle(Scheduled):
    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.4, total_steps=steps)
        return [optimizer], [{"scheduler": cycle, "interval": "step"}]


FEDAVG, RADFED = (lambda: FedAvg(1.0, seed=0)), (lambda: RADFed(2, 1.0, seed=0))


class Breaks(Callback):
    """Saves a checkpoint in the middle of round 1, in the named hook, and raises an error, once."""

    def __init__(self, hook: str, error: BaseException, path: Path) -> None:
        self.error: BaseException | None = error
        self.path = path
        setattr(self, hook, self._break)

    def _break(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        batch_idx = args[-1] if args else 3
        if self.error is not None and trainer.current_epoch == 1 and batch_idx == 3:
            error, self.error = self.error, None
            trainer.save_checkpoint(self.path)
            raise error


@pytest.mark.parametrize(
    ("hook", "kind", "algorithm", "error"),
    [
        ("on_train_epoch_start", OneCycle, FEDAVG, ConnectionError()),
        ("on_train_batch_start", OneCycle, RADFED, ConnectionError()),
        ("on_train_batch_end", Scheduled, RADFED, ConnectionError()),
        ("on_train_batch_end", OneCycle, FEDAVG, KeyboardInterrupt()),
    ],
)
def test_a_round_that_is_broken_off_leaves_no_trace(
    tmp_path: Path, hook: str, kind: Any, algorithm: Any, error: BaseException
) -> None:
    undisturbed = kind()
    run(undisturbed, algorithm=algorithm())

    history, module, paths = Trace(), kind(), [tmp_path / "inside.ckpt", tmp_path / "after.ckpt"]
    start = ModelCheckpoint(tmp_path, filename="start-{epoch}", save_top_k=-1)
    callbacks = [algorithm(), history, start, Breaks(hook, error, paths[0])]
    data = TensorDataModule(clients_of(*SIZES), samples(6), batch_size=4, shuffle=False)
    trainer = quiet_trainer(max_epochs=3, callbacks=callbacks, enable_checkpointing=True)
    with pytest.raises((ConnectionError, SystemExit)):
        trainer.fit(module, datamodule=data)
    assert_same_weights(module.state_dict(), history.rounds[0])
    assert (trainer.current_epoch, trainer.global_step) == (1, 6)
    trainer.save_checkpoint(paths[1])

    at_start = saved(tmp_path / "start-epoch=0.ckpt")
    for path in paths:
        found = saved(path)
        assert_same_weights(found["state_dict"], history.rounds[0])
        for part in ("global_step", "optimizer_states", "lr_schedulers"):
            assert found[part] == at_start[part], part
        # rounds that are over; Lightning writes `start` before it counts the round
        assert (found["epoch"], found["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]) == (1, 1)
        assert found["optimizer_states"][0]["state"] == {}
        resumed = kind()
        run(resumed, algorithm=algorithm(), ckpt_path=str(path))
        assert_same_weights(resumed.state_dict(), undisturbed.state_dict())

    trainer.fit(module, datamodule=data)
    assert (trainer.current_epoch, trainer.global_step) == (3, 18)


def ctrl_c() -> None:
    raise KeyboardInterrupt


def sigterm() -> None:
    signal.raise_signal(signal.SIGTERM)


def slurm() -> None:
    signal.raise_signal(signal.SIGUSR1)
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
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stop: Any, error: Any, kept: bool, hint: str
) -> None:
    callbacks = [Stopped(stop), FederatedCheckpoint(tmp_path)][: 1 + kept]
    with caplog.at_level("INFO"), pytest.raises(error) as end:
        train_federatedly(ValidatedClassifier(), clients_of(8, 3), callbacks=callbacks, max_epochs=3)
    assert end.value.code == (143 if stop is sigterm else 1)  # the status of the program
    assert ("[rank: 0] Received SIGTERM: 15" in caplog.messages) == (stop is sigterm)
    (line,) = [record.getMessage() for record in caplog.records if "in round" in record.getMessage()]
    assert re.match(hint, line)
    assert "weights_only" not in caplog.text  # Lightning logs a default at each checkpoint


def test_slurm_saves_a_rounds_boundary_and_queues_the_job_again_without_a_hint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/queued\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    callbacks = [Stopped(slurm), FederatedCheckpoint(tmp_path)]
    options: dict[str, Any] = {"plugins": [SLURMEnvironment()], "default_root_dir": tmp_path}
    with caplog.at_level("INFO"), pytest.raises(SIGTERMException):
        train_federatedly(ValidatedClassifier(), clients_of(8, 3), callbacks=callbacks, max_epochs=3, **options)
    assert (tmp_path / "queued").read_text() == "requeue 7\n"
    assert saved(tmp_path / "hpc_ckpt_1.ckpt")["global_step"] == 3  # of the round that is over
    assert "Resume with" not in caplog.text
