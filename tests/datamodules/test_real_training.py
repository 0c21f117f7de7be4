"""Two short rounds with each module, on its real files and a fitting model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lightning as L
import pytest
from helpers.toys import quiet_trainer

from fl_lightning import FedAvg, FederatedDataModule
from fl_lightning.datamodules import (
    CIFAR10DataModule,
    CovertypeDataModule,
    EICUDataModule,
    EMNISTDataModule,
    FashionMNISTDataModule,
    MNISTDataModule,
    ShakespeareDataModule,
)
from fl_lightning.models import CharLSTM, Classifier, ConvNetClassifier, LogisticRegressionClassifier, MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner

CASES: dict[
    str, tuple[Callable[[Path, DirichletPartitioner], FederatedDataModule], Callable[[], L.LightningModule]]
] = {
    "cifar10": (lambda folder, p: CIFAR10DataModule(folder, p, download=False), lambda: ConvNetClassifier(10)),
    "mnist": (lambda folder, p: MNISTDataModule(folder, p, standardize="global"), MLPClassifier),
    "fashion-mnist": (
        lambda folder, p: FashionMNISTDataModule(folder, p),
        lambda: LogisticRegressionClassifier(784, 10),
    ),
    "emnist": (
        lambda folder, p: EMNISTDataModule(folder, p, classes="first10"),
        lambda: MLPClassifier(hidden=(100, 100)),
    ),
    "covertype": (
        lambda folder, p: CovertypeDataModule(
            folder, p, class_counts=(2000, 2000), standardize="global", download=False
        ),
        lambda: MLPClassifier(49, hidden=(64, 64), num_classes=2),
    ),
    "eicu": (
        lambda folder, p: EICUDataModule(folder, cohort="demo", standardize="global", batch_size=256),
        lambda: LogisticRegressionClassifier(49, 2),
    ),
    "shakespeare": (
        lambda folder, p: ShakespeareDataModule(folder, source="markdown"),
        lambda: CharLSTM(hidden_size=100, cell="torch", lr=0.5),
    ),
}


@pytest.mark.realdata
@pytest.mark.parametrize("name", CASES)
def test_two_rounds(real_data: Path, name: str) -> None:
    make_data, make_module = CASES[name]
    L.seed_everything(0)
    data, module = make_data(real_data, DirichletPartitioner(20, 1.0)), make_module()
    data.prepare_data = lambda: None  # type: ignore[method-assign]  # the folder of real data is read only
    assert isinstance(module, Classifier)
    trainer = quiet_trainer(
        max_epochs=2, limit_train_batches=2, limit_val_batches=1, limit_test_batches=1, callbacks=[FedAvg(2)]
    )
    trainer.fit(module, datamodule=data)
    [result] = trainer.test(module, datamodule=data, verbose=False)
    assert 4 <= trainer.global_step <= 2 * 2 * 2  # a hospital of the demo has a single batch
    assert 0 <= result["test_acc"] <= 1
    assert 0 < result["test_loss"] < 10
