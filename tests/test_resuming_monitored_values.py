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
        return loss


class Seen(Callback):
    """Notes the monitored training loss of each round."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.losses.append(float(trainer.callback_metrics["train_loss"]))


def losses_of(name: str, folder: Path, at_train_end: bool, ckpt_path: str | None = None) -> list[float]:
    seen = Seen()
    saves = ModelCheckpoint(folder, "{epoch}", save_top_k=-1, save_on_train_epoch_end=at_train_end)
    train_federatedly(
        Logging(),
        clients_of(*SIZES),
        val=samples(6, seed=5),
        algorithm=MAKE[name](),
        callbacks=[EarlyStopping("train_loss", patience=50), seen, saves],
        max_epochs=5,
        ckpt_path=ckpt_path,
    )
    return seen.losses


@pytest.mark.parametrize(("name", "at_train_end"), [("FedAvg", True), ("FedAvg", False), ("FedBuff", True)])
def test_a_run_that_resumes_before_an_empty_round_monitors_the_last_value(
    name: str, at_train_end: bool, tmp_path: Path
) -> None:
    whole = losses_of(name, tmp_path / "whole", at_train_end)
    assert whole[0] == whole[1] == whole[2] != whole[3]
    path = str(tmp_path / "whole" / "epoch=0.ckpt")
    assert losses_of(name, tmp_path / "resumed", at_train_end, path) == whole[1:]


class Interrupting(Callback):
    """Breaks off the last round after its first batch, once."""

    fails = True

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        if trainer.current_epoch == 3 and self.fails:
            raise ArithmeticError("broken by the test")


def test_a_round_that_broke_off_leaves_no_monitored_values(tmp_path: Path) -> None:
    saves = ModelCheckpoint(tmp_path, "broken", save_on_exception=True, every_n_epochs=10)
    with pytest.raises(ArithmeticError):
        train_federatedly(
            Logging(),
            clients_of(*SIZES),
            algorithm=MAKE["FedAvg"](),
            callbacks=[Interrupting(), saves],
            max_epochs=5,
        )
    [path] = tmp_path.glob("*.ckpt")
    whole = losses_of("FedAvg", tmp_path / "whole", True)

    class First(Callback):
        """Notes what a resumed run monitors before its first round."""

        value = 0.0

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            self.value = self.value or float(trainer.callback_metrics["train_loss"])

    first = First()
    train_federatedly(
        Logging(),
        clients_of(*SIZES),
        algorithm=MAKE["FedAvg"](),
        callbacks=[first],
        max_epochs=5,
        ckpt_path=str(path),
    )
    assert first.value == pytest.approx(whole[2], rel=1e-7)
