"""What holds for every data module: the same federation everywhere, disjoint sets, no leaks, and training."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from helpers import tiny_modules
from helpers.tiny_modules import CASES
from helpers.toys import quiet_trainer
from torch.utils.data import TensorDataset

import datamodules
from fl_lightning import FedAvg
from fl_lightning.data import FederatedDataModule, Source
from fl_lightning.data.splits import GLOBAL

HOLD_OUT_CLIENTS = [
    name for name in CASES if name.startswith(("cov", "eicu", "csv", "parquet", "digits", "mnist")) or "-roles" in name
]
ROOT = Path(__file__).parents[2]
GOLDEN = {
    "cifar10": "692c9c31e1784109",
    "cifar100": "3baf05ca71831c78",
    "mnist": "d06fb2ad95c5f8b2",
    "fashion-mnist": "6c50c9131da62ab7",
    "emnist": "ca5b2d02d1f4e94d",
    "covcls-g": "90dbb6d97a34a07b",
    "covcls-l": "d5fb1d5822f904de",
    "covfeat-g": "3732609f954bbc44",
    "covfeat-l": "f9820e1de48bc7d4",
    # the three formats hold the same plays
    "gutenberg-roles": "6afac9c6490c034c",
    "gutenberg-crop": "e255ad5ac8dedeca",
    "markdown-roles": "6afac9c6490c034c",
    "markdown-crop": "e255ad5ac8dedeca",
    "leaf-roles": "6afac9c6490c034c",
    "leaf-crop": "e255ad5ac8dedeca",
    "eicu": "9f234913d6ff44f2",
    "dmoz": "4a73da51382c546d",
    "feddyn-synthetic": "946efee7eed6aa68",
    "fedprox-synthetic": "e778c41bb0986a1a",
    "digits": "129186333e33de86",
    "hugging-face": "a54e044fde5b1c75",
    "hugging-face-images": "7b668e7be10e2be8",
    "torch-dataset": "7b33e66b194c6624",
    "csv": "d51bed9783413c4c",
    "parquet": "95ffc30b3debb60d",
}


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, FederatedDataModule]]:
    """Each data module, set up, with its files still there."""
    with pytest.MonkeyPatch.context() as patch:
        yield {
            name: tiny_modules.ready(case.make(tmp_path_factory.mktemp(name), patch)) for name, case in CASES.items()
        }


def sets(data: FederatedDataModule) -> dict[str, dict[int, np.ndarray]]:
    return {stage: data._parts(stage) for stage in ("train", "val", "test")}


def test_every_exported_module_is_here(modules: dict[str, FederatedDataModule]) -> None:
    exported = {name for name in datamodules.__all__ if name.endswith("DataModule")}
    assert {type(data).__name__ for data in modules.values()} == exported


@pytest.mark.long
def test_the_same_federations_on_every_machine() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join([str(ROOT), "."])}
    done = subprocess.run(
        [sys.executable, "-m", "helpers.tiny_modules"],
        cwd=ROOT / "tests",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == GOLDEN


@pytest.mark.parametrize("name", CASES)
def test_no_sample_is_used_twice(modules: dict[str, FederatedDataModule], name: str) -> None:
    data = modules[name]
    used = np.concatenate([indices for part in sets(data).values() for indices in part.values()])
    assert len(used) == len(np.unique(used))
    assert used.min() >= 0
    assert used.max() < len(data.source_inputs())
    # what the partition says and what is served agree
    own = np.concatenate([i for part in sets(data).values() for client, i in part.items() if client != GLOBAL])
    assert sorted(np.concatenate(data.partition.indices)) == sorted(own)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith(("cov", "eicu", "csv", "parquet", "digits"))]
)
def test_held_out_clients_are_no_training_clients(modules: dict[str, FederatedDataModule], name: str) -> None:
    train, val, test = (set(part) for part in sets(modules[name]).values())
    assert train
    assert val
    assert test
    assert len(train | val | test) == len(train) + len(val) + len(test) == modules[name].partition.num_clients


@pytest.mark.parametrize("name", CASES)
def test_nothing_leaks_from_held_out_samples(
    modules: dict[str, FederatedDataModule], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = modules[name]
    held_out = np.concatenate([*chain(*(sets(before)[stage].values() for stage in ("val", "test")))])
    training = np.concatenate(list(sets(before)["train"].values()))
    changed = CASES[name].make(tmp_path, monkeypatch)
    read = changed.load

    def load() -> Source:
        source = read()
        x, *rest = source.dataset.tensors
        # a view of a text, in which windows overlap, is changed as a copy
        x = x.clone()
        x[torch.from_numpy(held_out)] = 1e6 if x.is_floating_point() else 1
        return replace(source, dataset=TensorDataset(x, *rest))

    monkeypatch.setattr(changed, "load", load)
    after = tiny_modules.ready(changed)
    assert after.partition == before.partition
    assert torch.equal(after.source_inputs()[training], before.source_inputs()[training])
    assert not torch.equal(after.source_inputs()[held_out], before.source_inputs()[held_out])


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith(("-roles", "-crop"))])
def test_held_out_texts_have_no_character_of_a_training_text(
    modules: dict[str, FederatedDataModule], name: str
) -> None:
    seen = [
        {start + place for starts in part.values() for start in starts.tolist() for place in range(80)}
        for part in sets(modules[name]).values()
    ]
    assert not seen[0] & (seen[1] | seen[2])
    assert not seen[1] & seen[2]


def fit(data: FederatedDataModule, model: L.LightningModule) -> L.Trainer:
    """Train a model for two rounds and test it."""
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(clients_per_round=2)])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data, verbose=False)
    assert trainer.current_epoch == 2
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    return trainer


@pytest.mark.parametrize("name", CASES)
def test_two_rounds(modules: dict[str, FederatedDataModule], name: str) -> None:
    L.seed_everything(0, verbose=False)
    trainer = fit(modules[name], CASES[name].model())
    assert 0 <= float(trainer.callback_metrics["test_acc"]) <= 1
    assert float(trainer.callback_metrics["test_loss"]) < 100
    again = pickle.loads(pickle.dumps(modules[name]))  # after the fit
    assert again.client_sizes.tolist() == modules[name].client_sizes.tolist()
    pickle.dumps(modules[name].test_dataloader())
