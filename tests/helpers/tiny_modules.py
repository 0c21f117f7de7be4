"""A small federation of every data module, on files that are made where there are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from fl_lightning import datamodules
from fl_lightning.data import ClientSplit, FederatedDataModule, SampleSplit, WithinClientSplit
from fl_lightning.models import (
    CharLSTM,
    Classifier,
    ConvNetClassifier,
    CoxRegression,
    LogisticRegressionClassifier,
    MLPClassifier,
)
from fl_lightning.partitioners import DirichletPartitioner, FeatureQPPartitioner, IIDPartitioner, QPPartitioner
from helpers.tiny_files import (
    GUTENBERG,
    ROLE_SIZES,
    eicu_tables,
    write_cifar10,
    write_cifar100,
    write_covertype,
    write_dmoz_topics,
    write_eicu,
    write_fed_tcga_brca,
    write_idx,
    write_leaf,
    write_markdown_plays,
    write_mnist,
)

Make = Callable[[Path, pytest.MonkeyPatch], FederatedDataModule]


@dataclass(frozen=True)
class Case:
    """How to make a data module and its files, and a model that fits it."""

    make: Make
    model: Callable[[], Classifier | CoxRegression]


def cifar10(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.CIFAR10DataModule:
    split = SampleSplit(val=0.2, test="official")
    return datamodules.CIFAR10DataModule(
        write_cifar10(folder, patch, 8), DirichletPartitioner(4, 1.0), split=split, augment=True, download=False
    )


def cifar100(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.CIFAR100DataModule:
    write_cifar100(folder, patch, [7 * i % 100 for i in range(40)], [7 * i % 100 for i in range(12)])
    return datamodules.CIFAR100DataModule(folder, IIDPartitioner(6), download=False)


def mnist(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.MNISTDataModule:
    write_mnist(folder, patch, datamodules.MNISTDataModule, 48, 12)
    return datamodules.MNISTDataModule(folder, IIDPartitioner(6), standardize="global", download=False)


def fashion(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.FashionMNISTDataModule:
    write_mnist(folder, patch, datamodules.FashionMNISTDataModule, 48, 12)
    partitioner = DirichletPartitioner(4, 1.0)
    return datamodules.FashionMNISTDataModule(folder, partitioner, split=SampleSplit(test="official"), download=False)


def emnist(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.EMNISTDataModule:
    rng = np.random.default_rng(0)
    for part, number in (("train", 60), ("test", 20)):
        images = rng.integers(256, size=(number, 28, 28), dtype=np.uint8)
        labels = (np.arange(number) % 13 + 1).astype(np.uint8)
        write_idx(folder / "EMNIST" / "raw", f"emnist-letters-{part}", images, labels)
    split = WithinClientSplit(0.2, 0.2)
    return datamodules.EMNISTDataModule(folder, IIDPartitioner(4), classes="first10", split=split, download=False)


QUICK: dict[str, Any] = {"seed": 1, "burn_in": 200, "search": 200}


def by_features(features: np.ndarray) -> Any:
    return partial(FeatureQPPartitioner(20, **QUICK), features=features)


def covertype(name: Any, folder: Path, patch: pytest.MonkeyPatch) -> datamodules.CovertypeDataModule:
    rows = [(2000 + 5 * i % 1999, i // 7 % 2, i * i // 11 % 3, (1, 2, 2, 5)[i % 4]) for i in range(4_000)]
    write_covertype(folder, patch, rows)
    options: dict[str, Any] = {"partitioner": QPPartitioner(20, **QUICK)}
    if name == "COVFEAT-G":
        options = {"feature_partitioner": by_features}
    return datamodules.CovertypeDataModule.named(name, folder, class_counts=None, download=False, **options)


def shakespeare(source: Any, crop: bool, folder: Path, patch: pytest.MonkeyPatch) -> datamodules.ShakespeareDataModule:
    if source == "markdown":
        write_markdown_plays(folder)
    elif source == "leaf":
        write_leaf(folder, "train/a.json", {role: range(size - 80) for role, size in enumerate(ROLE_SIZES)})
    else:
        (folder / "shakespeare").mkdir()
        (folder / "shakespeare" / "100.txt").write_text(GUTENBERG)
    split = datamodules.CropSplit(2, 60, 4, base=datamodules.OrderedSplit(test=0.25)) if crop else ClientSplit(3)
    return datamodules.ShakespeareDataModule(folder, source=source, split=split, batch_size=256, download=False)


def eicu(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.EICUDataModule:
    tables = eicu_tables({hospital: 8 + hospital for hospital in range(6)}, {hospital: 3 for hospital in range(6)})
    rng = np.random.default_rng(0)
    for name in ("urine", "glucose", "ph"):
        values = rng.integers(10, size=len(tables["apacheApsVar"])).astype(float)
        tables["apacheApsVar"][name] = np.where(values == 0, -1.0, values)
    return datamodules.EICUDataModule(write_eicu(folder, tables), cohort="demo", impute="global", standardize="global")


def fed_tcga_brca(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.FedTCGABRCADataModule:
    return datamodules.FedTCGABRCADataModule(write_fed_tcga_brca(folder), standardize="global")


def dmoz(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.DMOZDataModule:
    return datamodules.DMOZDataModule(write_dmoz_topics(folder), min_samples=10, distribution=2)


def rows(count: int = 60) -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    return {
        "site": [f"s{i % 6}" for i in range(count)],
        "a": rng.normal(size=count).tolist(),
        "b": rng.normal(size=count).tolist(),
        "label": [i % 2 for i in range(count)],
    }


def table(suffix: str, folder: Path, patch: pytest.MonkeyPatch) -> datamodules.TableDataModule:
    frame = pd.DataFrame(rows())
    frame.loc[::7, "a"] = np.nan
    path = folder / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    standardize: Any = "local" if suffix == ".csv" else "global"
    return datamodules.TableDataModule(
        path, "label", "site", impute="global", standardize=standardize, split=ClientSplit(3)
    )


def hugging_face(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.HuggingFaceDataModule:
    import datasets

    patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    pd.DataFrame(rows()).to_parquet(folder / "t.parquet")
    return datamodules.HuggingFaceDataModule(
        folder / "t.parquet", ["a", "b"], "label", "site", standardize="global", split=ClientSplit(3)
    )


def hugging_face_images(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.HuggingFaceDataModule:
    import datasets

    pixels = np.random.default_rng(0).integers(0, 256, (60, 4, 4), dtype=np.uint8)
    features = datasets.Features(
        {"image": datasets.Image(), "site": datasets.Value("string"), "label": datasets.Value("int64")}
    )
    content = {"image": list(pixels), "site": rows()["site"], "label": rows()["label"]}
    datasets.Dataset.from_dict(content, features=features).save_to_disk(folder / "saved")
    return datamodules.HuggingFaceDataModule(
        folder / "saved", "image", "label", "site", mean=[0.5], std=[0.5], augment=True, split=WithinClientSplit()
    )


def tensors(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.TorchDatasetDataModule:
    content = TensorDataset(torch.tensor([rows()["a"], rows()["b"]]).T, torch.tensor(rows()["label"]))
    return datamodules.TorchDatasetDataModule(content, DirichletPartitioner(6, 1.0), standardize="global")


def _mlp(in_features: int, num_classes: int) -> Callable[[], Classifier]:
    return lambda: MLPClassifier(in_features, [8], num_classes, lr=0.05)


def _cnn(num_classes: int, channels: int = 3, size: int = 32) -> Callable[[], Classifier]:
    return lambda: ConvNetClassifier(num_classes, 0.05, channels, size, channels=(4, 4))


def _lstm() -> Classifier:
    return CharLSTM(hidden_size=4)


SET_UPS = ("COVCLS-L", "COVFEAT-G")
CASES: dict[str, Case] = {
    "cifar10": Case(cifar10, _cnn(10)),
    "cifar100": Case(cifar100, _cnn(100)),
    "mnist": Case(mnist, _mlp(784, 10)),
    "fashion-mnist": Case(fashion, _cnn(10, 1, 28)),
    "emnist": Case(emnist, lambda: LogisticRegressionClassifier(784, 10)),
    **{name.lower(): Case(partial(covertype, name), _mlp(15, 2)) for name in SET_UPS},
    "gutenberg-roles": Case(partial(shakespeare, "gutenberg", False), _lstm),
    "gutenberg-crop": Case(partial(shakespeare, "gutenberg", True), _lstm),
    "markdown-roles": Case(partial(shakespeare, "markdown", False), _lstm),
    "leaf-roles": Case(partial(shakespeare, "leaf", False), _lstm),
    "eicu": Case(eicu, lambda: LogisticRegressionClassifier(49, 2, metrics=("acc", "auroc"), l2=0.01)),
    "fed-tcga-brca": Case(fed_tcga_brca, lambda: CoxRegression(3)),
    "dmoz": Case(dmoz, lambda: LogisticRegressionClassifier(330, 2, optimizer="adam", lr=1e-3)),
    "feddyn-synthetic": Case(lambda folder, patch: datamodules.FedDynSyntheticDataModule(), _mlp(30, 5)),
    "fedprox-synthetic": Case(lambda folder, patch: datamodules.FedProxSyntheticDataModule(), _mlp(60, 10)),
    "digits": Case(lambda folder, patch: datamodules.DigitsDataModule(IIDPartitioner(10)), _cnn(10)),
    "hugging-face": Case(hugging_face, _mlp(2, 2)),
    "hugging-face-images": Case(hugging_face_images, _mlp(16, 2)),
    "torch-dataset": Case(tensors, _mlp(2, 2)),
    "csv": Case(partial(table, ".csv"), _mlp(2, 2)),
    "parquet": Case(partial(table, ".parquet"), _mlp(2, 2)),
}


def ready(data: FederatedDataModule) -> FederatedDataModule:
    """Set a data module up as a Trainer does."""
    data.prepare_data()
    data.setup("fit")
    return data


#: Damages that no reader can tell from other data: module, part of the file's name, damage.
UNDETECTED = {
    ("mnist", "ubyte", "bytes"),  # no checksums of the unpacked files are published
    ("emnist", "ubyte", "bytes"),
    ("gutenberg-roles", "100.txt", "cut"),  # whatever is there is a text
    ("gutenberg-roles", "100.txt", "bytes"),
    ("markdown-roles", ".md", "missing"),  # one play less
    ("markdown-roles", ".md", "cut"),
    ("markdown-roles", ".md", "bytes"),
    ("eicu", "apachePatientResult", "bytes"),  # in a column that is not read
    ("eicu", ".csv", "cut"),  # fewer stays
    ("fed-tcga-brca", "brca.csv", "cut"),  # fewer patients
    ("dmoz", "structure", "bytes"),  # the real dumps have bytes that are no UTF-8
    ("hugging-face", "t.parquet", "bytes"),  # other numbers
    ("hugging-face-images", "state.json", "missing"),  # the folder is then read as one of Arrow files
    ("csv", "t.csv", "cut"),  # a file of a user's own need not end with a line break
    ("parquet", "t.parquet", "bytes"),
}
