"""A LightningModule in the manner of Lightning's documentation runs federatedly as it is, and centrally without."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Accuracy
from torchmetrics.classification import MulticlassF1Score

from fl_lightning import RADFed, TensorDataModule


class LitDigits(L.LightningModule):
    """Nothing in here knows of clients."""

    def __init__(self, hidden_size: int = 16, learning_rate: float = 5e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(8 * 8, hidden_size),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(hidden_size, 10),
        )
        self.train_acc = Accuracy(task="multiclass", num_classes=10)
        self.val_acc = Accuracy(task="multiclass", num_classes=10)
        self.test_f1 = MulticlassF1Score(num_classes=10)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.model(x), dim=1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.nll_loss(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss, prog_bar=True)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self(x)
        self.val_acc.update(logits, y)
        self.log("val_loss", F.nll_loss(logits, y), prog_bar=True)
        self.log("val_acc", self.val_acc, prog_bar=True)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.test_f1(self(x), y)
        self.log("test_f1", self.test_f1)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.hparams.learning_rate)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "val_loss"}}


def digits(number: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return images whose class shows in one bright pixel."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 10, (number,), generator=generator)
    x = 0.1 * torch.randn(number, 1, 8, 8, generator=generator)
    x.view(number, 64)[torch.arange(number), y * 6] += 2.0
    return x, y


@pytest.mark.parametrize(
    "algorithm",
    [lambda: [RADFed(2, 1.0)], list],
    ids=["RADFed", "central"],
)
def test_the_same_script_trains_federatedly_and_centrally(tmp_path: Any, algorithm: Any) -> None:
    L.seed_everything(1)
    clients = [digits(number, seed) for seed, number in enumerate((40, 90, 65))]
    data = TensorDataModule(clients=clients, val=digits(50, 7), test=digits(50, 8), batch_size=10)
    best = ModelCheckpoint(tmp_path, monitor="val_acc", mode="max", save_last=True)
    trainer = L.Trainer(
        max_epochs=12,
        accelerator="cpu",
        callbacks=[*algorithm(), best, EarlyStopping("val_loss", patience=3), LearningRateMonitor("epoch")],
        logger=CSVLogger(tmp_path),
        log_every_n_steps=5,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = LitDigits()
    untrained = trainer.validate(module, datamodule=data, verbose=False)[0]["val_acc"]
    trainer.fit(module, datamodule=data)
    assert trainer.callback_metrics["val_acc"] > 0.8 > untrained
    assert trainer.callback_metrics["train_acc"] > 0.8
    tested = trainer.test(datamodule=data, ckpt_path="best", verbose=False)[0]["test_f1"]
    assert tested > 0.7
    again = LitDigits.load_from_checkpoint(best.best_model_path)
    assert again.hparams == {"hidden_size": 16, "learning_rate": 5e-3}
    rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()
    assert {"train_loss", "train_acc", "val_loss", "lr-Adam"} <= set(rows.splitlines()[0].split(","))
