"""Buffers that a `state_dict` leaves out or that hooks write, what is saved in mid-round, and other checkpoints.

Each step adds the client's batch to a buffer: one step of each of two clients, 2 and 4, adds their mean, 3, a round.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torchmetrics
from helpers.toys import Quadratic, clients_that_reach, quiet_trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from torch import Tensor

from fl_lightning import FedAvg, FederatedCheckpoint, TensorDataModule

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])
DATA = TensorDataModule(CLIENTS, val=CLIENTS[0], batch_size=None)


class Summing(Quadratic):
    def __init__(self, persistent: bool) -> None:
        super().__init__(1.0, [0.0])
        self.register_buffer("total", torch.zeros(1, dtype=torch.float64), persistent=persistent)
        self.register_buffer("steps", torch.zeros(1), persistent=persistent)
        self.at_start: list[float] = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def on_train_epoch_start(self) -> None:
        self.at_start.append(float(self.total))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.total += batch[1].sum()
        self.steps += 1
        return super().training_step(batch, batch_idx)


def fit(rounds: int, path: Any = None, *callbacks: Any, module: Any = None, **options: Any) -> tuple[Any, L.Trainer]:
    module = Summing(persistent=False) if module is None else module
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[*callbacks, FedAvg(1.0, seed=1)], **options)
    trainer.fit(module, datamodule=DATA, ckpt_path=path)
    return module, trainer


class Saving(L.Callback):
    """Saves at the end of a validation: the module is in eval mode then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_validation_end(self, trainer: L.Trainer, *_: Any) -> None:
        trainer.save_checkpoint(self.folder / f"{trainer.current_epoch}.ckpt")


def test_a_buffer_that_is_not_saved_is_there_when_the_first_resumed_round_begins(tmp_path: Path) -> None:
    fit(2, None, Saving(tmp_path))[1].save_checkpoint(tmp_path / "two.ckpt")
    assert "total" not in torch.load(tmp_path / "two.ckpt", weights_only=True)["state_dict"]
    for name in ("two", "1"):  # after the second round, and in its validation
        resumed, _ = fit(4, tmp_path / f"{name}.ckpt")
        assert resumed.at_start[-1] == 9.0
        assert resumed.at_start in ([6.0, 9.0], [9.0])
        assert (float(resumed.total), float(resumed.steps)) == (12.0, 4.0)


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_start"])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_hook_writes_into_a_buffer_before_the_first_resumed_round_counts(
    hook: str, persistent: bool, tmp_path: Path
) -> None:
    class Writing(L.Callback):
        """Writes into the module at one hook."""

    path = tmp_path / "two.ckpt"
    fit(2, module=Summing(persistent))[1].save_checkpoint(path)
    setattr(Writing, hook, lambda self, trainer, module: module.total.fill_(100.0))
    assert float(fit(4, path, Writing(), module=Summing(persistent))[0].total) == 106.0


class Noting(TorchCheckpointIO):
    """Notes which files the thread of the fit wrote itself."""

    def __init__(self) -> None:
        self.by_fit: dict[str, bool] = {}

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.by_fit[Path(path).name] = threading.current_thread() is threading.main_thread()
        super().save_checkpoint(checkpoint, path, storage_options)


def test_the_newest_round_is_whole_beside_a_thread_that_writes_checkpoints(tmp_path: Path) -> None:
    disk, kept = Noting(), FederatedCheckpoint(tmp_path)
    fit(2, None, kept, module=Summing(True), enable_checkpointing=True, plugins=[AsyncCheckpointIO(disk)])
    # before it is renamed, the file has to be whole; the best model may be written later
    newest = [by_fit for name, by_fit in disk.by_fit.items() if "last.ckpt" in name]
    assert newest == [True, True]
    assert not all(disk.by_fit.values())
    for name in ("last.ckpt", "last.previous.ckpt"):
        assert torch.load(tmp_path / name, weights_only=True)["state_dict"]["total"] in (3.0, 6.0)


# ---- what is saved beside the federated state ----


class Counting(Quadratic):
    """Counts steps in frozen tensors: one with two names, buffers of layers in eval mode, which it writes or replaces.

    Metric objects that are saved count them too: one is logged, which empties it.
    """

    def __init__(self) -> None:
        super().__init__(1.0, [0.0])
        self.a, self.b = (torch.nn.Linear(1, 1, bias=False).requires_grad_(False) for _ in range(2))
        self.b.weight = torch.nn.init.zeros_(self.a.weight)
        self.written, self.replaced = (torch.nn.BatchNorm1d(1).requires_grad_(False).eval() for _ in range(2))
        self.steps, self.unlogged = torchmetrics.SumMetric(), torchmetrics.MeanMetric()
        self.steps.persistent(True)
        self.unlogged.persistent(True)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.a.weight += 1
        self.written.running_mean += 1
        self.replaced.running_mean = self.replaced.running_mean + 1  # type: ignore[operator]
        self.steps.update(1.0)
        self.unlogged.update(1.0)
        self.log("steps", self.steps, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


def counts(state: dict[str, Tensor]) -> list[float]:
    names = ("a.weight", "b.weight", "written.running_mean", "replaced.running_mean", "steps.sum_value")
    return [float(state[name]) for name in (*names, "unlogged.mean_value", "unlogged.weight")]


class InMidRound(L.Callback):
    """Saves a checkpoint after the first step of the second round, and then raises an error, once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        if trainer.current_epoch == 1 and not self.path.exists():
            trainer.save_checkpoint(self.path)
            raise ConnectionError


@pytest.mark.parametrize("goes_on", ["from the checkpoint", "with the same trainer"])
def test_what_is_saved_in_mid_round_is_that_of_the_rounds_start(goes_on: str, tmp_path: Path) -> None:
    path, module = tmp_path / "middle.ckpt", Counting()
    module.steps.update(4.0)
    with pytest.raises(ZeroDivisionError):
        fit(3, None, L.pytorch.callbacks.LambdaCallback(on_train_batch_end=lambda *_: 1 / 0), module=module)
    assert counts(module.state_dict()) == [0.0] * 4 + [4.0, 0.0, 0.0]
    with pytest.raises(ConnectionError):
        fit(3, None, InMidRound(path), module=module)
    # each of two clients took a step in the round that is done
    for state in (module.state_dict(), torch.load(path, weights_only=True)["state_dict"]):
        assert counts(state) == [1.0] * 4 + [0.0, 2.0, 2.0]
    if goes_on == "from the checkpoint":
        module, _ = fit(3, path, module=Counting())
    else:
        module.trainer.fit(module, datamodule=DATA)
    assert counts(module.state_dict())[:4] == [3.0] * 4
    assert float(module.trainer.callback_metrics["steps"]) == 2.0
