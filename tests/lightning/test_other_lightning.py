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

WAY_OUT = "Write `import lightning.pytorch as pl` instead of `import pytorch_lightning as pl`"


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


@pytest.mark.parametrize("callbacks", [[FedAvg(2)], []], ids=["federated", "central"])
def test_the_trainer_with_a_data_module(callbacks: list[Any]) -> None:
    data = TensorDataModule(clients_of(4, 4), batch_size=2)
    with pytest.raises(TypeError, match=f"The trainer is a Trainer of `pytorch_lightning`.*{WAY_OUT}"):
        other_trainer(*callbacks).fit(OtherModule(), datamodule=data)


def test_the_trainer_with_an_aggregation_callback() -> None:
    loader = DataLoader(TensorDataset(*samples(4)))
    with pytest.raises(TypeError, match=f"The trainer is a Trainer of `pytorch_lightning`.*{WAY_OUT}"):
        other_trainer(FedAvg(2)).fit(OtherModule(), loader)


def test_a_callback() -> None:
    class Counts(pytorch_lightning.Callback):
        pass

    with pytest.raises(TypeError, match=f"A callback is a Counts of `pytorch_lightning`.*{WAY_OUT}"):
        train_federatedly(Classifier(), clients_of(4, 4), callbacks=[Counts()])
