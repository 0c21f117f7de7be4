"""What holds for every data module of the zoo; a new one is a line in ``CASES`` of ``helpers.tiny_modules``."""

from __future__ import annotations

import copy
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from helpers.tiny_modules import CASES, UNDETECTED, ready
from helpers.toys import quiet_trainer
from torch.utils.data import TensorDataset

from fl_lightning import ClientSplit, FedAvg, datamodules
from fl_lightning.data import FederatedDataModule, Source
from fl_lightning.data.splits import GLOBAL


def samples_of(data: FederatedDataModule) -> dict[str, dict[int, np.ndarray]]:
    """Return the samples of each client by stage."""
    return {stage: data._parts(stage) for stage in ("train", "val", "test")}


def together(part: dict[int, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *part.values()])


@pytest.mark.parametrize("name", CASES)
def test_data_module(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / "one", tmp_path / "another"]
    for folder in folders:
        folder.mkdir()
    data = CASES[name].make(folders[0], monkeypatch)
    assert repr(data).startswith(type(data).__name__)
    ready(ready(data))
    check_sets(data)
    check_batches(data)
    check_another_reading(data, CASES[name].make(folders[1], monkeypatch), monkeypatch)
    L.seed_everything(0, verbose=False)
    check_training(data, CASES[name].model())
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
    ready(other)
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
    for name, case in CASES.items():
        (tmp_path / name).mkdir()
        with pytest.MonkeyPatch.context() as patch:
            made.add(type(case.make(tmp_path / name, patch)).__name__)
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
    data = CASES[name].make(tmp_path, monkeypatch)
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
                ready(copy.copy(data))
            # a file, or the folder that it belongs into
            places = [place for place in (path, *path.parents) if tmp_path in place.parents]
            assert re.search("|".join(re.escape(str(place)) for place in places), str(raised.value)), damage
            path.write_bytes(content)
