"""Where there is no GPU, optimizers do not ask the driver's library for one in each step."""

from __future__ import annotations

import os
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.toys import quiet_trainer
from torch import Tensor, nn

from fl_lightning import FedAvg, TensorDataModule

ASKED = "PYTORCH_NVML_BASED_CUDA_CHECK"


class Sees(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.seen: list[str | None] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen.append(os.environ.get(ASKED))
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("fails", [False, True])
def test_what_lightning_asks_is_taken_back_while_clients_train(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, "1")
    module = Sees()
    data = TensorDataModule([(torch.ones(2, 2), torch.zeros(2))] * 2, batch_size=2)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, executor="sequential")])
    if fails:
        module.layer = nn.Linear(3, 1)
        with pytest.raises(RuntimeError):
            trainer.fit(module, datamodule=data)
    else:
        trainer.fit(module, datamodule=data)
    assert set(module.seen) == {None}
    assert os.environ[ASKED] == "1"
