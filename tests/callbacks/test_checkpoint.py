"""The newest round is on the disk whole at any moment, and a damaged file is not resumed from."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import lightning as L
import pytest
import torch
from fl_lightning.checked_file import CheckedFile
from helpers.algorithms import Net, data
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback

from datamodules import DigitsDataModule
from fl_lightning import FedAvg, FederatedCheckpoint, RADFed
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import IIDPartitioner

FILES = ["last.ckpt", "last.ckpt.sha256", "last.previous.ckpt"]


def fit(folder: Path, rounds: int, *callbacks: Callback, ckpt_path: Any = None, **options: Any) -> L.Trainer:
    """Train with RADFed; the best of its rounds is the first aggregation, as the steps only grow."""
    options = {"save_top_k": 0, **options}
    trainer = quiet_trainer(
        max_epochs=rounds,
        callbacks=[RADFed(3, 4, seed=1), FederatedCheckpoint(folder, **options), *callbacks],
        enable_checkpointing=True,
    )
    trainer.fit(Net(), datamodule=data(), ckpt_path=ckpt_path)
    return trainer


def weights(trainer: L.Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.lightning_module.parameters()])


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


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_last_falls_back_to_the_one_before_and_says_so(tmp_path: Path, damage: str) -> None:
    fit(tmp_path, 4)
    last = tmp_path / "last.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        last.unlink()
    else:
        last.write_bytes(content if damage == "changed" else content[: len(content) // 2])
    with pytest.warns(UserWarning, match="previous"):
        resumed = fit(tmp_path, 6, ckpt_path="last")
    assert torch.equal(weights(resumed), weights(fit(tmp_path / "whole", 6)))
    assert sorted(os.listdir(tmp_path)) == [*FILES, "whole"]
    assert [epoch_of(tmp_path / name) for name in ("last.ckpt", "last.previous.ckpt")] == [6, 5]


def test_two_damaged_files_are_an_error(tmp_path: Path) -> None:
    fit(tmp_path, 2)
    for name in ("last.ckpt", "last.previous.ckpt"):
        (tmp_path / name).write_bytes(b"half")
    with pytest.raises(RuntimeError, match="sha256"):
        fit(tmp_path, 4, ckpt_path="last")


@pytest.mark.parametrize("stage", ["fit", "test"])
def test_a_damaged_file_is_told_without_a_checkpoint_callback_too(tmp_path: Path, stage: str) -> None:
    path = tmp_path / "bad.ckpt"
    path.write_text("hello")
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)])
    module = MLPClassifier(in_features=3072, hidden=(4,))
    with pytest.raises(ValueError, match="ckpt_path"):
        getattr(trainer, stage)(module, datamodule=DigitsDataModule(IIDPartitioner(10)), ckpt_path=path)


def test_another_run_leaves_the_files_of_the_first(tmp_path: Path) -> None:
    fit(tmp_path, 4)
    fit(tmp_path, 2)
    assert epoch_of(tmp_path / "last.ckpt") == 4
    assert epoch_of(tmp_path / "last-v1.ckpt") == 2


def test_a_folder_that_cannot_be_written_is_told_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    for folder, why in ((tmp_path / "file", "File exists"), ("/proc/nope", "No such file or directory")):
        trained: list[int] = []

        class Rounds(Callback):
            def on_train_start(self, trainer: Any, module: Any, trained: list[int] = trained) -> None:
                trained.append(1)

        trainer = quiet_trainer(
            max_epochs=1, callbacks=[FedAvg(2), FederatedCheckpoint(folder), Rounds()], enable_checkpointing=True
        )
        message = rf"^`dirpath` must be a folder into which files can be written, got '{folder}': .*{why}.* Give"
        with pytest.raises(OSError, match=message):
            trainer.fit(MLPClassifier(in_features=3072, hidden=(4,)), datamodule=DigitsDataModule(IIDPartitioner(10)))
        assert not trained


class KilledWhileSaving(Callback):
    """Dies in the middle of the third checkpoint."""

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.current_epoch == 2:
            # what is left of a file that is being written, as when temporary files are on another device
            write = torch.save
            torch.save = lambda obj, file, **k: (write(obj, file, **k), os.kill(os.getpid(), signal.SIGKILL))


def test_a_kill_while_saving_leaves_the_round_before(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            fit(tmp_path, 4, KilledWhileSaving())
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert epoch_of(tmp_path / "last.ckpt") == 2
    assert fit(tmp_path, 4, ckpt_path="last").current_epoch == 4


@pytest.mark.parametrize("step", range(4))
def test_a_kill_between_any_two_steps_leaves_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    path = tmp_path / "last.ckpt"
    file = CheckedFile(path)
    for content in ("one", "two"):
        with file.replaced() as temporary:
            temporary.write_text(content)
    replace, calls = os.replace, []

    def killed(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) > step:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed)
    for attempt in range(2):  # the next attempt may be broken off, too
        calls.clear()
        try:
            with CheckedFile(path).replaced() as temporary:
                temporary.write_text("three")
        except KeyboardInterrupt:
            pass
        intact = CheckedFile(path).newest_intact()
        assert intact is not None
        assert intact.read_text() in (("three",) if step == 3 else ("two",) if attempt == 0 else ("two", "three"))


def test_a_store_elsewhere_gets_whole_checkpoints_too() -> None:
    trainer = fit("memory://runs/one", 3)  # type: ignore[arg-type]
    with fsspec.open("memory://runs/one/last.ckpt", "rb") as file:
        content = torch.load(file, weights_only=True)
    assert content["epoch"] + 1 == 3
    assert content["callbacks"]["RADFed"]
    assert trainer.checkpoint_callback.last_model_path == "memory://runs/one/last.ckpt"  # type: ignore[union-attr]


class Meanwhile(Callback):
    """Does something at the end of each round."""

    def __init__(self, act: Callable[[L.Trainer], None]) -> None:
        self.act = act

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.act(trainer)


def test_runs_that_begin_at_once_have_files_of_their_own(tmp_path: Path) -> None:
    """The second run chooses its file after the first has, and before the first has written it."""
    first = CheckedFile(tmp_path / "last.ckpt")
    assert first.claim()
    trainer = quiet_trainer(
        max_epochs=2, callbacks=[FedAvg(4), FederatedCheckpoint(tmp_path, save_top_k=0)], enable_checkpointing=True
    )
    trainer.fit(Net(), datamodule=data())
    assert not first.path.exists()
    assert epoch_of(tmp_path / "last-v1.ckpt") == 2


def test_a_file_that_another_run_writes_stays_as_it_is(tmp_path: Path) -> None:
    """Two processes resume one run: the one that finds the other's file ends."""

    def write(trainer: L.Trainer) -> None:
        if trainer.current_epoch == 1:
            with CheckedFile(tmp_path / "last.ckpt").replaced() as temporary:
                temporary.write_text("the other's")

    checkpoint = FederatedCheckpoint(tmp_path, save_top_k=0)
    trainer = quiet_trainer(
        max_epochs=3, callbacks=[Meanwhile(write), FedAvg(4), checkpoint], enable_checkpointing=True
    )
    with pytest.raises(RuntimeError, match="Another run"):
        trainer.fit(Net(), datamodule=data())
    assert (tmp_path / "last.ckpt").read_text() == "the other's"


def test_a_damaged_file_that_is_named_is_an_error(tmp_path: Path) -> None:
    fit(tmp_path, 2)
    path = tmp_path / "last.ckpt"
    torch.save(torch.load(path, weights_only=True), path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="sha256"):
        fit(tmp_path, 4, ckpt_path=path)


def test_the_smallest_accuracy_as_the_best_is_a_warning() -> None:
    with pytest.warns(UserWarning, match="mode"):
        FederatedCheckpoint(monitor="val_acc_clients")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FederatedCheckpoint(monitor="val_acc", mode="min")
        for name in ("val_loss", "val_dice_loss", "val_acc_clients_std", "f1_error"):
            FederatedCheckpoint(monitor=name)
