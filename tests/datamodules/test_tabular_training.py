"""Two rounds with each module of tabular or generic data."""

from __future__ import annotations

from pathlib import Path

import datasets
import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from datamodules import (
    CovertypeDataModule,
    EICUDataModule,
    FedDynSyntheticDataModule,
    FedProxSyntheticDataModule,
    HuggingFaceDataModule,
    TableDataModule,
    TorchDatasetDataModule,
)
from fl_lightning import FedAvg
from fl_lightning.data import ClientSplit, WithinClientSplit
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner


def train(data, in_features: int, num_classes: int) -> tuple[L.Trainer, MLPClassifier]:
    """Train and test a small model; return it with its trainer."""
    L.seed_everything(0)
    model = MLPClassifier(in_features, [8], num_classes, lr=0.05)
    trainer = L.Trainer(
        max_epochs=2,
        callbacks=[FedAvg(clients_per_round=0.5)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    before = [parameter.clone() for parameter in model.parameters()]
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data, verbose=False)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    return trainer, model


def rows(count: int = 60) -> dict[str, list]:
    rng = np.random.default_rng(0)
    return {
        "site": [f"s{i % 6}" for i in range(count)],
        "a": rng.normal(size=count).tolist(),
        "b": rng.normal(size=count).tolist(),
        "label": [i % 2 for i in range(count)],
    }


def table(folder: Path) -> TableDataModule:
    pd.DataFrame(rows()).to_csv(folder / "t.csv", index=False)
    return TableDataModule(folder / "t.csv", "label", "site", standardize="local", split=ClientSplit(3))


def hugging_face(folder: Path) -> HuggingFaceDataModule:
    datasets.Dataset.from_dict(rows()).save_to_disk(folder / "saved")
    return HuggingFaceDataModule(folder / "saved", ["a", "b"], "label", "site", in_memory=True, split=ClientSplit(3))


def images(folder: Path) -> HuggingFaceDataModule:
    pixels = np.random.default_rng(0).integers(0, 256, (60, 4, 4), dtype=np.uint8)
    features = datasets.Features(
        {"image": datasets.Image(), "site": datasets.Value("string"), "label": datasets.Value("int64")}
    )
    content = {"image": list(pixels), "site": rows()["site"], "label": rows()["label"]}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(folder / "saved")
    split = WithinClientSplit()
    return HuggingFaceDataModule(
        folder / "saved", "image", "label", "site", mean=[0.5], std=[0.5], augment=True, in_memory=False, split=split
    )


def tensors(folder: Path) -> TorchDatasetDataModule:
    x = torch.tensor([rows()["a"], rows()["b"]]).T
    return TorchDatasetDataModule(TensorDataset(x, torch.tensor(rows()["label"])), DirichletPartitioner(6, 1.0))


@pytest.mark.parametrize(
    ("make", "in_features", "num_classes"),
    [
        (table, 2, 2),
        (hugging_face, 2, 2),
        (images, 16, 2),
        (tensors, 2, 2),
        (lambda folder: FedDynSyntheticDataModule(batch_size=10), 30, 5),
        (lambda folder: FedProxSyntheticDataModule(batch_size=10), 60, 10),
    ],
)
def test_two_rounds(tmp_path, make, in_features, num_classes):
    trainer, _ = train(make(tmp_path), in_features, num_classes)
    assert trainer.current_epoch == 2
    assert 0 <= float(trainer.callback_metrics["test_acc"]) <= 1


@pytest.mark.realdata
def test_two_rounds_on_the_open_demo_of_eicu(real_data):
    train(EICUDataModule(real_data, cohort="demo", standardize="global", batch_size=256), 49, 2)


@pytest.mark.realdata
def test_two_rounds_on_covertype(real_data):
    data = CovertypeDataModule(
        real_data, DirichletPartitioner(10, 0.5), class_counts=(2000, 2000), standardize="global", download=False
    )
    data.prepare_data = lambda: None  # the folder of real data is read only
    train(data, 49, 2)
