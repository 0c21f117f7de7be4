"""Images are preprocessed by a hook of the batches' transfer, and their clients are stacked all the same."""

from __future__ import annotations

import pytest
import torch
from helpers.toys import quiet_trainer

from fl_lightning import FedAvg
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner


@pytest.mark.parametrize("augment", [False, True])
def test_images_are_stacked(augment: bool) -> None:
    ends = []
    for executor in ("sequential", "vectorized"):
        torch.manual_seed(0)
        module = MLPClassifier(in_features=3072, hidden=(4,), lr=0.05)
        data = DigitsDataModule(DirichletPartitioner(100, 0.3, seed=1), batch_size=8, augment=augment)
        trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(3, seed=1, executor=executor)], limit_val_batches=0)
        trainer.fit(module, datamodule=data)
        ends.append(torch.nn.utils.parameters_to_vector(module.parameters()))
    assert trainer.fit_loop.executor.cause is None
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)
