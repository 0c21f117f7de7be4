"""The newest round is on the disk whole at any moment, and a fit resumes from a whole file."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import fsspec
import lightning as L
import pytest
import torch
from helpers.algorithms import Net, data
from helpers.forking import in_child
from helpers.full_disk import limited_files
from helpers.toys import quiet_trainer
from helpers.written import assert_as_in, messages
from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.plugins.io import AsyncCheckpointIO

from fl_lightning import FederatedCheckpoint, RADFed

FILES = ["last.ckpt", "last.previous.ckpt"]


def fit(
    folder: Path, rounds: int, *callbacks: Callback, ckpt_path: Any = None, plugins: Any = (), **options: Any
) -> L.Trainer:
    """Train with RADFed; the best of its rounds is the first aggregation, as the steps only grow."""
    options = {"save_top_k": 0, **options}
    trainer = quiet_trainer(
        max_epochs=rounds,
        callbacks=[RADFed(3, 4, seed=1), FederatedCheckpoint(folder, **options), *callbacks],
        enable_checkpointing=True,
        plugins=[*plugins],
    )
    trainer.fit(Net(), datamodule=data(), ckpt_path=ckpt_path)
    return trainer


def weights(trainer: L.Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.lightning_module.parameters()])


@cache
def whole(rounds: int) -> torch.Tensor:
    """Return the weights after rounds without an interruption."""
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[RADFed(3, 4, seed=1)])
    trainer.fit(Net(), datamodule=data())
    return weights(trainer)


def epoch_of(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["epoch"]) + 1


def test_every_round_is_kept_though_only_the_first_aggregation_is_best(tmp_path: Path) -> None:
    fit(tmp_path, 5, save_top_k=1, monitor="fed/models_sent", mode="min", filename="best")
    assert sorted(os.listdir(tmp_path)) == ["best.ckpt", *FILES]
    assert [epoch_of(tmp_path / name) for name in ("best.ckpt", "last.ckpt", "last.previous.ckpt")] == [3, 5, 4]


def test_every_second_round_or_none(tmp_path: Path) -> None:
    fit(tmp_path / "two", 5, last_every_n_epochs=2)
    assert [epoch_of(tmp_path / "two" / name) for name in ("last.ckpt", "last.previous.ckpt")] == [4, 2]
    fit(tmp_path / "none", 2, save_last=False)
    assert not list((tmp_path / "none").glob("last*"))


def test_central_training_is_kept_too_and_a_trial_is_not(tmp_path: Path) -> None:
    for name, options in {"whole": {"max_epochs": 2}, "trial": {"fast_dev_run": True}}.items():
        keep = FederatedCheckpoint(tmp_path / name, "best")
        quiet_trainer(callbacks=[keep], enable_checkpointing=True, **options).fit(Net(), datamodule=data())
    assert [sorted(files) for _, _, files in os.walk(tmp_path)] == [[], ["best.ckpt", *FILES]]


def test_without_a_folder_the_trainers_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit(None, 1)  # type: ignore[arg-type]
    assert [sorted(files) for _, _, files in os.walk(tmp_path)] == [[], ["last.ckpt"]]


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "cut of a thread"])
def test_last_falls_back_to_the_one_before_and_says_so(tmp_path: Path, damage: str) -> None:
    plugins = [AsyncCheckpointIO()] if damage == "cut of a thread" else []
    fit(tmp_path, 4, plugins=plugins)
    last = tmp_path / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[content.index(b"state_dict")] ^= 1
    if damage == "missing":
        last.unlink()
    else:
        last.write_bytes(content if damage == "changed" else content[: len(content) // 2])
    with pytest.warns(UserWarning, match=rf"{re.escape(str(last))} is .* last\.previous\.ckpt"):
        resumed = fit(tmp_path, 6, ckpt_path=last if damage == "changed" else "last", plugins=plugins)
    assert not plugins or resumed.strategy.checkpoint_io in plugins
    assert torch.equal(weights(resumed), whole(6))
    assert sorted(os.listdir(tmp_path)) == FILES
    assert [epoch_of(tmp_path / name) for name in ("last.ckpt", "last.previous.ckpt")] == [6, 5]


def test_files_of_another_folder_are_not_to_be_removed(tmp_path: Path) -> None:
    keep = FederatedCheckpoint(tmp_path)
    state = {**keep.state_dict(), "outdated": [str(tmp_path / "best.ckpt")]}
    keep.load_state_dict(state)
    assert keep.state_dict()["outdated"] == state["outdated"]
    with pytest.warns(UserWarning, match="dirpath"):
        keep.load_state_dict({**state, "dirpath": "elsewhere"})
    assert keep.state_dict()["outdated"] == []


def test_another_run_leaves_the_files_of_the_first(tmp_path: Path) -> None:
    fit(tmp_path, 4)
    fit(tmp_path, 2)
    fit(tmp_path, 3, ckpt_path="last")
    assert epoch_of(tmp_path / "last.ckpt") == 4
    assert epoch_of(tmp_path / "last-v1.ckpt") == 3


def test_every_door_compares_a_checkpoint_with_its_checksums(tmp_path: Path) -> None:
    trainer = fit(tmp_path, 5, save_top_k=1, monitor="fed/models_sent", mode="min", filename="best")
    path = tmp_path / "best.ckpt"
    content = bytearray(path.read_bytes())
    # a longer stretch than the padding between two records
    for place in range(len(content) // 2, len(content) // 2 + 200):
        content[place] ^= 1
    path.write_bytes(content)
    for ckpt_path in ("best", str(path)):
        with pytest.raises(RuntimeError, match=r"best\.ckpt is damaged"):
            trainer.validate(datamodule=data(), ckpt_path=ckpt_path)


def test_checkpoints_need_no_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkstemp", lambda *args, **options: pytest.fail("a temporary file was made"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    fit(tmp_path, 3, save_top_k=1)
    assert len(list(tmp_path.glob("*.ckpt"))) == 3


# 0 and 1 in turn, each in three rounds
TURNS = LambdaCallback(on_train_epoch_end=lambda trainer, module: module.log("turn", trainer.current_epoch // 3 % 2.0))


@pytest.mark.parametrize("best", [{}, {"monitor": "fed/models_sent", "mode": "max"}])
def test_a_best_file_with_the_name_of_one_that_was_removed_stays(best: dict[str, Any], tmp_path: Path) -> None:
    options = {"save_top_k": 1, "filename": "{turn:.0f}", "last_every_n_epochs": 3, **best}
    fit(tmp_path, 6, TURNS, **options)
    assert sorted(os.listdir(tmp_path)) == [*FILES, "turn=1.ckpt"]
    fit(tmp_path, 9, TURNS, ckpt_path="last", **options)
    assert sorted(os.listdir(tmp_path)) == [*FILES, "turn=0.ckpt"]


class KilledBefore(Callback):
    """Dies in a round, when the best model is saved and ``last.ckpt`` is not."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.current_epoch == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)


def test_a_kill_between_the_best_file_and_the_last_leaves_one_best_file(tmp_path: Path) -> None:
    # the number of steps grows, so that each aggregation is better; weights alone call no `on_save_checkpoint`
    options = {"save_top_k": 1, "monitor": "fed/models_sent", "mode": "max", "save_weights_only": True}
    assert in_child(fit, tmp_path, 7, KilledBefore(5), **options) == -signal.SIGKILL
    assert len(list(tmp_path.glob("epoch=*.ckpt"))) == 2  # `last.ckpt` knows of the first one alone
    resumed = fit(tmp_path, 7, ckpt_path="last", **options)
    [best] = tmp_path.glob("epoch=*.ckpt")
    assert str(best) == resumed.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    assert (best.name.startswith("epoch=5-"), "-v" in best.name) == (True, False)


class KilledWhileSaving(Callback):
    """Dies at one of the steps in which the third checkpoint is saved."""

    def __init__(self, module: Any, step: str, calls: int) -> None:
        self.module, self.step, self.calls = module, step, calls

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.current_epoch == 2:
            done, calls = getattr(self.module, self.step), count(1)

            def killed(*args: Any, **options: Any) -> None:
                if next(calls) == self.calls:
                    os.kill(os.getpid(), signal.SIGKILL)
                done(*args, **options)

            setattr(self.module, self.step, killed)


@pytest.mark.parametrize(
    ("module", "step", "calls", "last", "previous"),
    [(torch, "save", 1, 2, 1), (os, "fsync", 1, None, 2), (os, "replace", 1, 2, 1), (os, "replace", 2, None, 2)],
)
def test_a_kill_while_saving_leaves_the_round_before(
    tmp_path: Path, module: Any, step: str, calls: int, last: int | None, previous: int
) -> None:
    assert in_child(fit, tmp_path, 4, KilledWhileSaving(module, step, calls)) == -signal.SIGKILL
    kept = {path.name: epoch_of(path) for path in tmp_path.glob("last*.ckpt")}
    assert kept == {name: epoch for name, epoch in zip(FILES, (last, previous), strict=True) if epoch is not None}
    assert torch.equal(weights(fit(tmp_path, 4, ckpt_path="last")), whole(4))


def test_a_store_elsewhere_gets_whole_checkpoints_too(caplog: pytest.LogCaptureFixture) -> None:
    folder: Any = "memory://runs/one/"
    trainer = fit(folder, 3)
    with fsspec.open("memory://runs/one/last.ckpt", "rb") as file:
        content = torch.load(file, weights_only=True)
    assert content["epoch"] + 1 == 3
    assert content["callbacks"]["RADFed"]
    assert trainer.checkpoint_callback.last_model_path == "memory://runs/one/last.ckpt"  # type: ignore[union-attr]
    with caplog.at_level("INFO"):
        resumed = fit(folder, 6, ckpt_path="last")
    assert torch.equal(weights(resumed), whole(6))
    assert "Restored all states from the checkpoint at memory://runs/one/last.ckpt" in caplog.text


def damaged(folder: Path, pattern: str, ckpt_path: str | None = None) -> None:
    fit(folder, 3, save_top_k=1)
    for path in folder.glob(pattern):
        path.write_bytes(b"half")
    fit(folder, 3, ckpt_path=ckpt_path, save_top_k=1)


def full(folder: Path) -> None:
    with limited_files(1000):
        fit(folder, 1)


#: What is done; the text file has the error or the warning.
TOLD: dict[str, Callable[[Path], Any]] = {
    "a file for a folder": lambda folder: [(folder / "file").touch(), fit(folder / "file", 1)],
    "a folder that cannot be made": lambda _: fit(Path("/proc/nope"), 1),
    "two damaged files": lambda folder: damaged(folder, "last*", "last"),
    "a damaged best file": lambda folder: damaged(folder, "epoch*"),
    "no options of a store": lambda folder: fit(folder, 1).save_checkpoint(folder / "a.ckpt", storage_options={}),
    "a full disk": full,
    "a folder of another run": lambda folder: [fit(folder, 3, save_top_k=1) for _ in range(2)],
    "no file": lambda folder: fit(folder, 1, ckpt_path=folder / "none.ckpt"),
    "an accuracy": lambda _: FederatedCheckpoint(monitor="val_acc_clients"),
    "a loss": lambda _: FederatedCheckpoint(monitor="val_loss"),
    "an accuracy that is to be small": lambda _: FederatedCheckpoint(monitor="val_acc", mode="min"),
    "a mode of nothing": lambda _: FederatedCheckpoint(mode="max"),
    "the default mode of nothing": lambda _: FederatedCheckpoint(mode="min"),  # as LightningCLI gives it
    "no argument": lambda _: FederatedCheckpoint(every=1),
}


def test_what_is_refused_and_what_is_told(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_suffix(".txt"), messages(TOLD, tmp_path), tmp_path)
