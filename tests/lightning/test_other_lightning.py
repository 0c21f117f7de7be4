"""Objects of the package ``pytorch_lightning`` are refused with the import that is meant."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning
import torch
from helpers.comparison import CLASSES, FEATURES, Classifier, clients_of, samples, train_federatedly
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FedAvg, TensorDataModule

HINT = "`import lightning.pytorch as pl`"


class OtherModule(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def other_trainer(*callbacks: Any) -> pytorch_lightning.Trainer:
    switches = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pytorch_lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=list(callbacks), **switches)


def test_the_trainer() -> None:
    data, loader = TensorDataModule(clients_of(4, 4), batch_size=2), DataLoader(TensorDataset(*samples(4)))
    for callbacks, given in (([FedAvg(2)], data), ([], data), ([FedAvg(2)], loader)):
        options = {"datamodule": given} if given is data else {"train_dataloaders": given}
        with pytest.raises(TypeError, match=f"The trainer .*{HINT}"):
            other_trainer(*callbacks).fit(OtherModule(), **options)


def test_a_callback() -> None:
    with pytest.raises(TypeError, match=f"A callback .*{HINT}"):
        train_federatedly(Classifier(), clients_of(4, 4), callbacks=[pytorch_lightning.Callback()])
