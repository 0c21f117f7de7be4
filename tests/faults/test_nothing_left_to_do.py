"""A fit that has no round left keeps what it resumed from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import EarlyStopping

from fl_lightning import FedAvg


@pytest.mark.parametrize("name", ["RADFed", "FedDyn", "FedAsync"])
def test_a_checkpoint_after_it_goes_on_as_the_first(tmp_path: Path, name: str) -> None:
    first = quiet_trainer(max_epochs=2, callbacks=[ALGORITHMS[name](seed=1)])
    first.fit(Net(), datamodule=data())
    first.save_checkpoint(tmp_path / "first.ckpt")
    idle = quiet_trainer(max_epochs=2, callbacks=[ALGORITHMS[name](seed=1)])
    idle.fit(Net(), datamodule=data(), ckpt_path=tmp_path / "first.ckpt")
    idle.save_checkpoint(tmp_path / "second.ckpt")
    weights = []
    for path in ("first.ckpt", "second.ckpt"):
        module = Net()
        callback = ALGORITHMS[name](seed=1)
        quiet_trainer(max_epochs=5, callbacks=[callback]).fit(module, datamodule=data(), ckpt_path=tmp_path / path)
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*weights)


def test_callbacks_see_monitored_values_after_it(tmp_path: Path) -> None:
    def fit(rounds: int, name: str, resume: str | None = None) -> float:
        # validated after rounds 2 and 4, looked at after each
        stopping = EarlyStopping("val_loss", patience=9, check_on_train_epoch_end=True, strict=resume is not None)
        options = {"max_epochs": rounds, "check_val_every_n_epoch": 2}
        trainer = quiet_trainer(callbacks=[FedAvg(4, seed=1), stopping], **options)
        trainer.fit(Net(), datamodule=data(), ckpt_path=resume and tmp_path / resume)
        trainer.save_checkpoint(tmp_path / name)
        return float(trainer.callback_metrics.get("val_loss", 0.0))

    after_two = fit(2, "first.ckpt")
    fit(2, "second.ckpt", "first.ckpt")
    assert fit(3, "third.ckpt", "second.ckpt") == after_two > 0
