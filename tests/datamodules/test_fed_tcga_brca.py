"""FLamby's patients: their regions, and its test part of each."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from helpers.tiny_files import write_fed_tcga_brca

from fl_lightning.datamodules import FedTCGABRCADataModule


def sizes(data: FedTCGABRCADataModule) -> dict[str, list[int]]:
    split = data.federated_split
    return {stage: [len(part) for part in getattr(split, stage).values()] for stage in ("train", "val", "test")}


def test_both_layouts_are_one_federation(tmp_path: Path) -> None:
    path = write_fed_tcga_brca(tmp_path)
    split = pd.read_csv(tmp_path / "dataset_creation_scripts" / "train_test_split.csv")
    patients = pd.read_csv(path)
    joined = patients.assign(region=split["fold2"].str[-1].astype(int), fold=split["fold"])
    joined.drop(columns="pid").to_csv(tmp_path / "joined.csv", index=False)
    two, one = FedTCGABRCADataModule(path), FedTCGABRCADataModule(tmp_path / "joined.csv")
    for data in (two, one):
        data.setup()
        assert data.client_names == list("012345")
        assert data.source_inputs().tolist() == patients[["age", "a", "b"]].to_numpy().tolist()
        assert data.load().dataset.tensors[1].tolist() == patients[["E", "T"]].to_numpy().tolist()
        assert (data.labels.tolist(), data.class_names) == (patients["E"].tolist(), ["censored", "died"])
        assert sizes(data) == {"train": [4] * 6, "val": [], "test": [2] * 6}
    assert one.data_fingerprint() == two.data_fingerprint()
    patients.assign(a=float("nan")).to_csv(path, index=False)
    with pytest.raises(RuntimeError, match="there are gaps"):
        two.load()


@pytest.mark.realdata
def test_real_files(real_data: Path) -> None:
    data = FedTCGABRCADataModule(real_data / "fed_tcga_brca" / "brca.csv")
    data.setup()
    assert data.source_inputs().shape == (1088, 39)
    assert sizes(data) == {"train": [248, 156, 164, 129, 129, 40], "val": [], "test": [63, 40, 42, 33, 33, 11]}
