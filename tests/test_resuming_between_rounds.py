"""What hooks do between rounds is as in a fit without an interruption: writes, draws, schedules, early stopping."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import Net
from helpers.poked import MAKE, OPTIONS, Poked, fail, fit, outcome
from lightning.pytorch.callbacks import Callback, EarlyStopping, OnExceptionCheckpoint
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fl_lightning import FedAvg, FedBuff, FedDyn, FederatedCheckpoint, RADFed


class Halve(Callback):
    """Halves a weight, and adds to a statistic of BatchNorm, in a hook of each round."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self._write)

    def _write(self, trainer: Any, module: Any) -> None:
        with torch.no_grad():
            module.layers[0].weight.mul_(0.5)
            module.layers[1].running_mean.add_(1.0)


@cache
def halved(name: str, hook: str) -> dict[str, Any]:
    """Return the outcome of four rounds without an interruption."""
    return outcome(fit(MAKE[name](Poked()), Halve(hook)))


@pytest.mark.parametrize(("name", "hook"), [("FedAvg", "on_train_epoch_end"), ("FedDyn", "on_validation_epoch_end")])
def test_what_a_hook_wrote_before_a_checkpoint_is_resumed(name: str, hook: str, tmp_path: Path) -> None:
    kept = FederatedCheckpoint(tmp_path, save_top_k=0)
    fit(MAKE[name](Poked()), Halve(hook), kept, rounds=3)
    resumed = fit(MAKE[name](Poked()), Halve(hook), ckpt_path=tmp_path / "last.ckpt")
    assert outcome(resumed) == halved(name, hook)


class Interrupt(Callback):
    """Fails once, when a hook is called for the n-th time in the third round."""

    def __init__(self, hook: str, number: int = 1) -> None:
        self.number = number
        setattr(self, hook, self._fail)

    def _fail(self, trainer: Any, *args: Any) -> None:
        if trainer.current_epoch == 2:
            self.number -= 1
            if self.number == 0:
                fail()


@pytest.mark.parametrize(("name", "hook"), [("FedAvg", "on_train_epoch_start"), ("FedDyn", "on_train_epoch_end")])
def test_a_round_that_broke_off_takes_its_hooks_writes_back(name: str, hook: str, tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError):
        interrupt = Interrupt("on_train_batch_start", 4)
        fit(MAKE[name](Poked()), Halve(hook), interrupt, OnExceptionCheckpoint(tmp_path))
    resumed = fit(MAKE[name](Poked()), Halve(hook), ckpt_path=tmp_path / "on_exception.ckpt")
    assert outcome(resumed) == halved(name, hook)


@pytest.mark.parametrize(
    ("kind", "options"),
    [(FedDyn, {"evaluate": "all"}), (RADFed, {"redistributions": 3}), (FedBuff, {"buffer_size": 3})],
)
def test_what_cannot_be_continued_from_is_an_error_after_resuming_too(kind: Any, options: Any, tmp_path: Path) -> None:
    kept, settings = FederatedCheckpoint(tmp_path, save_top_k=0), {"clients_per_round": 4, **OPTIONS, **options}
    fit(kind(**settings), Halve("on_train_epoch_end"), kept, rounds=1)
    with pytest.raises(RuntimeError, match="between two rounds"):
        fit(kind(**settings), ckpt_path=tmp_path / "last.ckpt")


class Plateau(Net):
    """Halves its learning rate after every round that does not improve."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def test_reduce_lr_on_plateau_resumes(tmp_path: Path) -> None:
    whole = fit(MAKE["FedAvg"](Poked()), module=Plateau())
    assert whole.optimizers[0].param_groups[0]["lr"] < 0.5
    for rounds in (1, 3):
        folder = tmp_path / str(rounds)
        kept = FederatedCheckpoint(folder, save_top_k=0)
        fit(MAKE["FedAvg"](Poked()), kept, module=Plateau(), rounds=rounds)
        resumed = fit(MAKE["FedAvg"](Poked()), module=Plateau(), ckpt_path=folder / "last.ckpt")
        assert outcome(resumed) == outcome(whole), rounds


class Draw(Callback):
    """Draws from all global generators in hooks between clients."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, float]] = []
        for hook in ("on_train_epoch_start", "on_round_end", "on_validation_epoch_end", "on_train_epoch_end"):
            setattr(self, hook, lambda trainer, module, hook=hook: self._draw(hook))

    def _draw(self, hook: str) -> None:
        self.drawn.append((hook, torch.rand(()).item()))


@pytest.mark.parametrize("name", ["RADFed", "FedBuff"])
def test_what_hooks_draw_between_rounds_depends_on_the_round_alone(name: str, tmp_path: Path) -> None:
    whole, first, second = Draw(), Draw(), Draw()
    torch.manual_seed(1)
    fit(MAKE[name](Poked()), whole)
    torch.manual_seed(2)
    fit(MAKE[name](Poked()), first, FederatedCheckpoint(tmp_path, save_top_k=0), rounds=2)
    torch.manual_seed(3)
    fit(MAKE[name](Poked()), second, ckpt_path=tmp_path / "last.ckpt")
    assert first.drawn + second.drawn == whole.drawn
    assert len({number for _, number in whole.drawn}) == 16


def stopping(patience: int = 0) -> EarlyStopping:
    """Ends a fit after a round that improves the loss by less than 100."""
    return EarlyStopping("val_loss", patience=patience, min_delta=100.0)


def test_a_run_that_early_stopping_has_ended_stays_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outcomes = []
    for patience in (0, 0, 5):  # patience comes from the checkpoint
        kept = FederatedCheckpoint(tmp_path, save_top_k=0)
        with caplog.at_level(logging.INFO, "lightning.pytorch"):
            ended = fit(FedAvg(4, **OPTIONS), stopping(patience), kept, ckpt_path="last")
        # the first round's loss is the best so far; the second does not improve it
        outcomes.append((ended.current_epoch, outcome(ended)["weights"], "EarlyStopping(" in caplog.text))
    assert [(rounds, told) for rounds, _, told in outcomes] == [(2, False), (2, True), (2, True)]
    assert outcomes[0][1] == outcomes[1][1] == outcomes[2][1]
    assert "EarlyStopping(monitor='val_loss') ended this run after round 2, so no further round" in caplog.text
    assert "To train on, leave EarlyStopping out" in caplog.text
    without = fit(FedAvg(4, **OPTIONS), ckpt_path=tmp_path / "last.ckpt")
    assert without.current_epoch == 4


def test_a_run_that_early_stopping_would_end_later_ends_there_when_it_resumes(tmp_path: Path) -> None:
    # stopped after round 2; `min_epochs` gives it a third and a fourth
    callbacks = [stopping(), FederatedCheckpoint(tmp_path, save_top_k=0), Interrupt("on_train_epoch_start")]
    with pytest.raises(ArithmeticError):
        fit(FedAvg(4, **OPTIONS), *callbacks, min_epochs=4)
    resumed = fit(FedAvg(4, **OPTIONS), stopping(), rounds=5, min_epochs=4, ckpt_path=tmp_path / "last.ckpt")
    assert resumed.current_epoch == 4


class Scored(Net):
    """Has a better score in the third round than in the others."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("score", 3.0 if self.current_epoch == 2 else 2.0)


def test_a_run_that_was_trained_on_after_early_stopping_goes_on(tmp_path: Path) -> None:
    # it stops after the second round, but trains a third, and would stop after a fourth
    def scored(**options: Any) -> int:
        callbacks = [EarlyStopping("score", patience=0, mode="max"), FederatedCheckpoint(tmp_path, save_top_k=0)]
        return fit(FedAvg(4, **OPTIONS), *callbacks, module=Scored(), ckpt_path="last", **options).current_epoch

    assert [scored(min_epochs=3), scored(rounds=9), scored(rounds=9)] == [3, 4, 4]


def test_a_validation_that_breaks_off_leaves_the_modules_modes(tmp_path: Path) -> None:
    module, other = Net(), Net()
    for each in (module, other):
        each.layers.append(nn.Dropout(0.0).eval())  # it stays in eval mode
    with pytest.raises(ArithmeticError):
        interrupt = Interrupt("on_validation_batch_end")
        fit(FedAvg(4, **OPTIONS), interrupt, OnExceptionCheckpoint(tmp_path), module=module)
    assert [layer.training for layer in module.layers] == [True] * 5 + [False]
    resumed = fit(FedAvg(4, **OPTIONS), module=module, ckpt_path=tmp_path / "on_exception.ckpt")
    assert outcome(resumed) == outcome(fit(FedAvg(4, **OPTIONS), module=other))
