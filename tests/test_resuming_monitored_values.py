"""What callbacks monitor in a round without training batches is the last value, in a resumed run too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.comparison import ValidatedClassifier, clients_of, samples, train_federatedly
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint

from fl_lightning import FedAvg, FedBuff
from fl_lightning.parts import Participation

SIZES = (4, 8, 5)


#: In FedBuff one result arrives in each round, and three clients are trained together.
MAKE: dict[str, Any] = {
    # nobody can be reached in rounds 1 and 2
    "FedAvg": lambda: FedAvg(
        1.0, seed=1, participation=Participation(available=lambda t: [] if t in (1, 2) else [t % 3])
    ),
    "FedBuff": lambda: FedBuff(1, 1, speeds=[1.0, 1.1, 1.2], lookahead=3, seed=1),
}


class Logging(ValidatedClassifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        self.log("batch_loss", loss)
        return loss


class Seen(Callback):
    """Notes the monitored training loss at each round's start and end, where there is one."""

    def __init__(self) -> None:
        self.starts: list[float] = []
        self.losses: list[float] = []

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if "train_loss" in trainer.callback_metrics:
            self.starts.append(float(trainer.callback_metrics["train_loss"]))

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["train_loss"]))


def fit(name: str, *callbacks: Callback, **options: Any) -> Seen:
    settings = {"val": samples(6, seed=5), "algorithm": MAKE[name](), "max_epochs": 5, **options}
    train_federatedly(Logging(), clients_of(*SIZES), callbacks=[seen := Seen(), *callbacks], **settings)
    return seen


@pytest.mark.parametrize(("name", "at_train_end"), [("FedAvg", True), ("FedAvg", False), ("FedBuff", True)])
def test_a_run_that_resumes_before_an_empty_round_monitors_the_last_value(
    name: str, at_train_end: bool, tmp_path: Path
) -> None:
    stop = EarlyStopping("train_loss", patience=50)
    saves = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, save_on_train_epoch_end=at_train_end)
    whole = fit(name, stop, saves).losses
    assert whole[0] == whole[1] == whole[2] != whole[3]
    assert fit(name, stop, ckpt_path=str(tmp_path / "epoch=0.ckpt")).losses == whole[1:]


class Interrupting(Callback):
    """Looks at the values in the last round after its first batch, and breaks it off."""

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 3:
            self.before = float(trainer.callback_metrics["batch_loss"])

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.current_epoch == 3:
            self.trainer, self.seen = trainer, float(trainer.callback_metrics["batch_loss"])
            raise ArithmeticError("broken by the test")

    def on_exception(self, trainer: Any, *args: Any) -> None:
        self.after = float(trainer.callback_metrics["batch_loss"])


def test_a_round_that_broke_off_leaves_no_monitored_values(tmp_path: Path) -> None:
    saves = ModelCheckpoint(tmp_path, "broken", save_on_exception=True, every_n_epochs=10)
    with pytest.raises(ArithmeticError):
        fit("FedAvg", interrupting := Interrupting(), saves)
    values = (interrupting.after, float(interrupting.trainer.callback_metrics["batch_loss"]))
    assert values == (interrupting.before, interrupting.before)
    assert interrupting.before != interrupting.seen
    [path] = tmp_path.glob("*.ckpt")
    resumed = fit("FedAvg", ckpt_path=str(path))
    assert resumed.starts[0] == pytest.approx(fit("FedAvg").losses[2], rel=1e-7)
