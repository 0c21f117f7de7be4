"""Properties of every data module of the zoo; a new one is a line in ``CASES``, with files in miniature."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from helpers import tiny_files
from helpers.toys import quiet_trainer
from PIL import Image
from torch.utils.data import TensorDataset

from fl_lightning import FedAvg, datamodules, models
from fl_lightning.data import ClientSplit, FederatedDataModule, SampleSplit, Source, WithinClientSplit
from fl_lightning.data.federated_split import GLOBAL
from fl_lightning.partitioners import DirichletPartitioner, FeatureQPPartitioner, IIDPartitioner, QPPartitioner

Make = Callable[[Path, pytest.MonkeyPatch], FederatedDataModule]
DIRICHLET = DirichletPartitioner(4, 1.0)


def cifar10(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.CIFAR10DataModule:
    tiny_files.write_cifar10(folder, patch, 8)
    split = SampleSplit(val=0.2, test="official")
    return datamodules.CIFAR10DataModule(folder, DIRICHLET, split=split, augment=True, download=False)


def cifar100(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.CIFAR100DataModule:
    tiny_files.write_cifar100(folder, patch, [7 * i % 100 for i in range(40)], [7 * i % 100 for i in range(12)])
    return datamodules.CIFAR100DataModule(folder, IIDPartitioner(6), download=False)


def domains(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.DomainDataModule:
    for grey in range(60):
        place = folder / ("art", "photo", "sketch")[grey % 3] / ("cat", "dog")[grey // 3 % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.new("L", (12, 10), 4 * grey).save(place / f"{grey}.png")
    return datamodules.DomainDataModule(folder, "photo", IIDPartitioner(3), size=16, augment=True)


def mnist(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.MNISTDataModule:
    tiny_files.write_mnist(folder, patch, datamodules.MNISTDataModule, 48, 12)
    return datamodules.MNISTDataModule(folder, IIDPartitioner(6), standardize="global", download=False)


def fedprox_mnist(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.FedProxMNISTDataModule:
    tiny_files.write_mnist(folder, patch, datamodules.FedProxMNISTDataModule, 48, 12)
    return datamodules.FedProxMNISTDataModule(folder, IIDPartitioner(6), download=False)


def fashion(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.FashionMNISTDataModule:
    tiny_files.write_mnist(folder, patch, datamodules.FashionMNISTDataModule, 48, 12)
    split = SampleSplit(test="official")
    return datamodules.FashionMNISTDataModule(folder, DIRICHLET, split=split, download=False)


def emnist(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.EMNISTDataModule:
    rng = np.random.default_rng(0)
    for part, number in (("train", 60), ("test", 20)):
        images = rng.integers(256, size=(number, 28, 28), dtype=np.uint8)
        labels = (np.arange(number) % 13 + 1).astype(np.uint8)
        tiny_files.write_idx(folder / "EMNIST" / "raw", f"emnist-letters-{part}", images, labels)
    split = WithinClientSplit(0.2, 0.2)
    return datamodules.EMNISTDataModule(folder, IIDPartitioner(4), classes="first10", split=split, download=False)


QUICK: dict[str, Any] = {"seed": 1, "burn_in": 200, "search": 200}


def by_features(features: np.ndarray) -> Any:
    return partial(FeatureQPPartitioner(20, **QUICK), features=features)


def covertype(name: Any, folder: Path, patch: pytest.MonkeyPatch) -> datamodules.CovertypeDataModule:
    rows = [(2000 + 5 * i % 1999, i // 7 % 2, i * i // 11 % 3, (1, 2, 2, 5)[i % 4]) for i in range(4_000)]
    tiny_files.write_covertype(folder, patch, rows)
    options: dict[str, Any] = {"partitioner": QPPartitioner(20, **QUICK)}
    if name == "COVFEAT-G":
        options = {"feature_partitioner": by_features}
    return datamodules.CovertypeDataModule.named(name, folder, class_counts=None, download=False, **options)


def shakespeare(source: Any, crop: bool, folder: Path, patch: pytest.MonkeyPatch) -> datamodules.ShakespeareDataModule:
    if source == "markdown":
        tiny_files.write_markdown_plays(folder)
    elif source == "leaf":
        tiny_files.write_leaf(
            folder, "train/a.json", {role: range(size - 80) for role, size in enumerate(tiny_files.ROLE_SIZES)}
        )
    else:
        (folder / "shakespeare").mkdir()
        (folder / "shakespeare" / "100.txt").write_text(tiny_files.GUTENBERG)
    split = datamodules.CropSplit(2, 60, 4, base=datamodules.OrderedSplit(test=0.25)) if crop else ClientSplit(3)
    return datamodules.ShakespeareDataModule(folder, source=source, split=split, batch_size=256, download=False)


def eicu(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.EICUDataModule:
    hospitals = range(6)
    tables = tiny_files.eicu_tables({k: 8 + k for k in hospitals}, dict.fromkeys(hospitals, 3))
    rng = np.random.default_rng(0)
    for name in ("urine", "glucose", "ph"):
        values = rng.integers(10, size=len(tables["apacheApsVar"])).astype(float)
        tables["apacheApsVar"][name] = np.where(values == 0, -1.0, values)
    tiny_files.write_eicu(folder, tables)
    return datamodules.EICUDataModule(folder, cohort="demo", impute="global", standardize="global")


def brca(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.FedTCGABRCADataModule:
    return datamodules.FedTCGABRCADataModule(tiny_files.write_fed_tcga_brca(folder), standardize="global")


def dmoz(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.DMOZDataModule:
    return datamodules.DMOZDataModule(tiny_files.write_dmoz_topics(folder), min_samples=10, distribution=2)


NORMAL = np.random.default_rng(0).normal(size=(60, 2))
ROWS = pd.DataFrame(NORMAL, columns=["a", "b"]).assign(site=[f"s{i % 6}" for i in range(60)], label=[0, 1] * 30)


def table(suffix: str, folder: Path, patch: pytest.MonkeyPatch) -> datamodules.TableDataModule:
    frame = ROWS.copy()
    frame.loc[::7, "a"] = np.nan
    path = folder / f"t{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    options: dict[str, Any] = {"impute": "global", "standardize": "local" if suffix == ".csv" else "global"}
    return datamodules.TableDataModule(path, "label", "site", split=ClientSplit(3), **options)


def hugging_face(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.HuggingFaceDataModule:
    import datasets

    patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
    ROWS.to_parquet(folder / "t.parquet")
    options: dict[str, Any] = {"standardize": "global", "split": ClientSplit(3)}
    return datamodules.HuggingFaceDataModule(folder / "t.parquet", ["a", "b"], "label", "site", **options)


def hugging_face_images(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.HuggingFaceDataModule:
    import datasets

    pixels = np.random.default_rng(0).integers(0, 256, (60, 4, 4), dtype=np.uint8)
    kinds = {"image": datasets.Image(), "site": datasets.Value("string"), "label": datasets.Value("int64")}
    content = {"image": list(pixels), "site": ROWS["site"].tolist(), "label": ROWS["label"].tolist()}
    datasets.Dataset.from_dict(content, features=datasets.Features(kinds)).save_to_disk(folder / "saved")
    return datamodules.HuggingFaceDataModule(
        folder / "saved", "image", "label", "site", mean=[0.5], std=[0.5], augment=True, split=WithinClientSplit()
    )


def tensors(folder: Path, patch: pytest.MonkeyPatch) -> datamodules.TorchDatasetDataModule:
    content = TensorDataset(torch.tensor(NORMAL, dtype=torch.float32), torch.tensor(ROWS["label"].to_numpy()))
    return datamodules.TorchDatasetDataModule(content, DirichletPartitioner(6, 1.0), standardize="global")


def _mlp(in_features: int, num_classes: int) -> Callable[[], models.Classifier]:
    return lambda: models.MLPClassifier(in_features, [8], num_classes, lr=0.05)


def _cnn(num_classes: int, channels: int = 3, size: int = 32) -> Callable[[], models.Classifier]:
    return lambda: models.ConvNetClassifier(num_classes, 0.05, channels, size, channels=(4, 4))


_lstm = partial(models.CharLSTM, hidden_size=4)
#: How to make a data module and its files, and a model that fits it.
CASES: dict[str, tuple[Make, Callable[[], models.Classifier | models.CoxRegression]]] = {
    "cifar10": (cifar10, _cnn(10)),
    "cifar100": (cifar100, _cnn(100)),
    "domains": (domains, _cnn(2, 3, 16)),
    "mnist": (mnist, _mlp(784, 10)),
    "fashion-mnist": (fashion, _cnn(10, 1, 28)),
    "fedprox-mnist": (fedprox_mnist, _cnn(10, 1, 28)),
    "emnist": (emnist, lambda: models.LogisticRegressionClassifier(784, 10)),
    "covcls-l": (partial(covertype, "COVCLS-L"), _mlp(15, 2)),
    "covfeat-g": (partial(covertype, "COVFEAT-G"), _mlp(15, 2)),
    "gutenberg-roles": (partial(shakespeare, "gutenberg", False), _lstm),
    "gutenberg-crop": (partial(shakespeare, "gutenberg", True), _lstm),
    "markdown-roles": (partial(shakespeare, "markdown", False), _lstm),
    "leaf-roles": (partial(shakespeare, "leaf", False), _lstm),
    "eicu": (eicu, lambda: models.LogisticRegressionClassifier(49, 2, metrics=("acc", "auroc"), l2=0.01)),
    "fed-tcga-brca": (brca, lambda: models.CoxRegression(3)),
    "dmoz": (dmoz, lambda: models.LogisticRegressionClassifier(330, 2, optimizer="adam", lr=1e-3)),
    "feddyn-synthetic": (lambda folder, patch: datamodules.FedDynSyntheticDataModule(), _mlp(30, 5)),
    "fedprox-synthetic": (lambda folder, patch: datamodules.FedProxSyntheticDataModule(), _mlp(60, 10)),
    "digits": (lambda folder, patch: datamodules.DigitsDataModule(IIDPartitioner(10)), _cnn(10)),
    "hugging-face": (hugging_face, _mlp(2, 2)),
    "hugging-face-images": (hugging_face_images, _mlp(16, 2)),
    "torch-dataset": (tensors, _mlp(2, 2)),
    "csv": (partial(table, ".csv"), _mlp(2, 2)),
    "parquet": (partial(table, ".parquet"), _mlp(2, 2)),
}


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


# ---- what each keeps ----


def samples_of(data: FederatedDataModule) -> dict[str, dict[int, np.ndarray]]:
    """Return the samples of each client by stage."""
    return {stage: data.federated_split.of(stage) for stage in ("train", "val", "test")}


def together(part: dict[int, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *part.values()])


@pytest.mark.parametrize("name", CASES)
def test_data_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "one", tmp_path / "another"]
    for folder in folders:
        folder.mkdir()
    make, make_model = CASES[name]
    data = make(folders[0], monkeypatch)
    assert repr(data).startswith(type(data).__name__)
    tiny_files.set_up(tiny_files.set_up(data))
    check_sets(data)
    check_batches(data)
    check_another_reading(data, make(folders[1], monkeypatch), monkeypatch)
    L.seed_everything(0, verbose=False)
    check_training(data, make_model())
    again = pickle.loads(pickle.dumps(data))  # after the fit
    assert again.partition == data.partition
    assert torch.equal(again.source_inputs(), data.source_inputs())


def check_sets(data: FederatedDataModule) -> None:
    """No sample is in two sets, and each client serves what the partition gives it."""
    sets = samples_of(data)
    used = np.concatenate([together(part) for part in sets.values()])
    assert len(used) == len(np.unique(used))
    assert used.min() >= 0
    assert used.max() < len(data.source_inputs())
    shared = np.concatenate([indices for part in sets.values() for client, indices in part.items() if client != GLOBAL])
    assert sorted(together(dict(enumerate(data.partition.indices)))) == sorted(shared)
    assert data.client_sizes.tolist() == [len(indices) for indices in sets["train"].values()]
    if isinstance(data.split, ClientSplit):
        clients = [set(part) for part in sets.values()]
        assert all(clients)
        assert len(set.union(*clients)) == sum(map(len, clients)) == data.partition.num_clients
    if isinstance(data, datamodules.ShakespeareDataModule):  # windows of 80 characters overlap
        train, *others = [{start + place for start in together(part) for place in range(80)} for part in sets.values()]
        assert not train & set.union(*others)
        assert not set.intersection(*others)


def check_batches(data: FederatedDataModule) -> None:
    """Clients' batches are their samples' rows, with worker processes or without; the pooled set is all of them."""
    generator, labels = torch.Generator(), torch.as_tensor(data.labels)
    pooled = []
    for client, indices in enumerate(samples_of(data)["train"].values()):
        batches = [batch[:2] for batch in data.client_batches(client, generator=generator, shuffle=False)]
        x, y = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
        y = y if y.ndim == 1 else y[:, 0].long()  # events, and times
        assert torch.equal(y, labels[indices])
        if not data.augmented and data.train_transform is None and x.is_floating_point():
            assert torch.equal(x, data.source_inputs()[indices].view_as(x))
        assert len(batches) == data.num_client_batches(client)
        pooled += y.tolist()
    central = [batch[1] if batch[1].ndim == 1 else batch[1][:, 0] for batch in data.train_dataloader()]
    assert sorted(torch.cat(central).tolist()) == sorted(pooled)


def check_another_reading(
    data: FederatedDataModule, other: FederatedDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files read anew give the same federation, and nothing of it depends on held-out samples' values."""
    sets = samples_of(data)
    training, held_out = together(sets["train"]), np.concatenate([together(sets["val"]), together(sets["test"])])
    read = other.load

    def load() -> Source:
        source = read()
        x, *rest = source.dataset.tensors
        x = x.clone()  # windows of a text overlap
        x[torch.from_numpy(held_out)] = 1e6 if x.is_floating_point() else 1
        return replace(source, dataset=TensorDataset(x, *rest))

    monkeypatch.setattr(other, "load", load)
    tiny_files.set_up(other)
    assert other.partition == data.partition
    assert torch.equal(other.source_inputs()[training], data.source_inputs()[training])
    assert not torch.equal(other.source_inputs()[held_out], data.source_inputs()[held_out])


def check_training(data: FederatedDataModule, model: L.LightningModule) -> None:
    """Two rounds move a model, and leave it finite."""
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(clients_per_round=2)])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data, verbose=False)
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    [score] = (score for name, score in trainer.callback_metrics.items() if name in ("test_acc", "test_cindex"))
    assert 0 <= float(score) <= 1


def test_every_exported_module_is_here(tmp_path: Path) -> None:
    made = set()
    for name, (make, _) in CASES.items():
        (tmp_path / name).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            made.add(type(make(tmp_path / name, patch)).__name__)
    assert made == {name for name in datamodules.__all__ if name.endswith("DataModule")}


# ---- files ----

DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "missing": None,
    "cut": lambda content: content[: len(content) // 2],
    "bytes": lambda content: content[: len(content) // 2] + b"\xff" * 20 + content[len(content) // 2 + 20 :],
    "page": lambda content: b"<html>Not found</html>",
    "empty": lambda content: b"",
}
WITH_FILES = [
    "cifar10", "cifar100", "mnist", "emnist", "covcls-l", "gutenberg-roles", "markdown-roles",
    "leaf-roles", "eicu", "fed-tcga-brca", "dmoz", "hugging-face", "hugging-face-images", "csv", "parquet",
]  # fmt: skip


@pytest.mark.parametrize("name", WITH_FILES)
def test_missing_and_damaged_files_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = CASES[name][0](tmp_path, monkeypatch)
    files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    for damage, change in DAMAGES.items():
        for path in files:
            shutil.rmtree(tmp_path / "cache", ignore_errors=True)
            if any(name == case and part in path.name and damage == how for case, part, how in UNDETECTED):
                continue
            content = path.read_bytes()
            path.unlink()
            if change is not None:
                path.write_bytes(change(content))
            with warnings.catch_warnings(), pytest.raises((FileNotFoundError, RuntimeError, ValueError)) as raised:
                warnings.simplefilter("ignore")  # of pages that are cut
                tiny_files.set_up(copy.copy(data))
            # a file, or the folder that it belongs into
            places = [place for place in (path, *path.parents) if tmp_path in place.parents]
            assert re.search("|".join(re.escape(str(place)) for place in places), str(raised.value)), damage
            path.write_bytes(content)
