from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.tiny_files import covertype_line, set_up, write_covertype

from fl_lightning.data import SampleSplit, WithinClientSplit
from fl_lightning.datamodules import CovertypeDataModule
from fl_lightning.datamodules.covertype import URL, covfeat_partitioner
from fl_lightning.partitioners import IIDPartitioner, Partition

# elevation, area, soil type and cover type of each row; the other nine numbers are the row's number
ROWS = [(2000 + row, row % 3, (7 * row) % 5 + 30, (1, 2, 2, 5)[row % 4]) for row in range(24)]
LINE = covertype_line(4, ROWS[4])
KEPT = [row for row in range(24) if row % 4 != 3]


def text() -> str:
    return "".join(covertype_line(number, row) for number, row in enumerate(ROWS))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with 6 rows of class 0, 12 of class 1 and 6 of another cover type."""
    return write_covertype(tmp_path, monkeypatch, ROWS)


def ready(folder: Path, **kwargs) -> CovertypeDataModule:
    options = {"partitioner": IIDPartitioner(5), "class_counts": None, **kwargs}
    return set_up(CovertypeDataModule(folder, **options))


def test_the_two_classes_in_the_order_of_the_file(folder):
    data = ready(folder)
    x = data.source_inputs()
    # areas 0, 1 and 2 and soil types 30 to 34 occur
    assert x.shape == (18, 10 + 3 + 5)
    assert x.dtype == torch.float32
    assert x[:, 0].tolist() == [2000.0 + row for row in KEPT]
    assert x[:, 9].tolist() == KEPT
    assert x[:, 10:].sum(dim=1).tolist() == [2.0] * 18
    assert x[:, 10:13].argmax(dim=1).tolist() == [row % 3 for row in KEPT]
    assert x[:, 13:].argmax(dim=1).tolist() == [7 * row % 5 for row in KEPT]
    assert data.labels.tolist() == [0, 1, 1] * 6
    assert data.class_names == ["spruce/fir", "lodgepole pine"]


def test_the_categorical_features_as_numbers(folder):
    features = ready(folder).categorical_features
    assert features.dtype == np.int64
    assert features.tolist() == [[row % 3, 7 * row % 5 + 30] for row in KEPT]
    with pytest.raises((RuntimeError, ValueError), match=r"setup\(\)"):
        CovertypeDataModule(folder).categorical_features  # noqa: B018


def test_only_the_numeric_features_are_standardised(folder):
    data = ready(folder, standardize="global", split=WithinClientSplit(val=0.0, test=0.0))
    x = data.source_inputs()
    assert x[:, :10].mean(dim=0).tolist() == pytest.approx([0.0] * 10, abs=1e-6)
    assert x[:, :10].std(dim=0, correction=0).tolist() == pytest.approx([1.0] * 10, abs=1e-6)
    assert set(x[:, 10:].unique().tolist()) == {0.0, 1.0}


def test_the_rows_kept_are_the_same_everywhere(folder):
    data = ready(folder, class_counts=(4, 9), sample_seed=3)
    assert (data.source_inputs()[:, 0] - 2000).int().tolist() == [0, 1, 4, 6, 8, 9, 10, 13, 14, 16, 17, 21, 22]
    with pytest.raises(ValueError, match=r"asks for 13 samples of class 1, which has 12.*None for all"):
        ready(folder, class_counts=(6, 13))


def by_area(features: np.ndarray):
    """Clients by wilderness area; samples of class 0 first."""

    def partition(labels: np.ndarray) -> Partition:
        assert len(labels) == len(features)
        order = np.argsort(labels, kind="stable")
        return Partition(tuple(order[features[order, 0] == area] for area in range(3)))

    return partition


@pytest.mark.parametrize("split", [WithinClientSplit(0.0, 0.0), SampleSplit(val=0.0, test=0.25)])
def test_a_partitioner_of_features_sees_the_samples_that_are_partitioned(folder, split):
    data = ready(folder, partitioner=None, feature_partitioner=by_area, split=split)
    assert data.num_clients == 3
    for client in range(3):
        ((x, _),) = data.client_batches(client, generator=torch.Generator(), shuffle=False)
        assert x[:, 10:13].argmax(dim=1).unique().tolist() == [client]


def test_the_named_set_ups():
    data = CovertypeDataModule.named("COVCLS-L")
    assert (data.standardize, data.batch_size, data.class_counts) == ("local", 256, (211_560, 280_440))
    partitioner = data.partitioner
    assert (partitioner.num_clients, partitioner.size_alpha, partitioner.class_alpha) == (100, 1.0, 0.1)
    assert (partitioner.burn_in_stop, partitioner.seed) == (1.1, 1020)
    data = CovertypeDataModule.named("COVFEAT-G", feature_partitioner=by_area, batch_size=64)
    assert (data.standardize, data.batch_size, data.partitioner) == ("global", 64, None)
    assert CovertypeDataModule.named("COVCLS-G", "elsewhere").data_dir == Path("elsewhere")
    partitioner = covfeat_partitioner(np.zeros((4, 2))).func  # type: ignore[attr-defined]
    assert (partitioner.num_clients, partitioner.seed) == (100, 1122)


def test_a_wrong_file_is_named(folder):
    for content in [text().replace("2000", "2500"), text().replace(LINE, LINE.replace(",1,", ",0,")), "1,2,3\n", ""]:
        with gzip.open(folder / "covertype" / "covtype.data.gz", "wt") as file:
            file.write(content)
        with pytest.raises(RuntimeError, match=r"covtype\.data\.gz"):
            ready(folder)


def test_a_missing_file_is_downloaded_once(folder, monkeypatch):
    path = folder / "covertype" / "covtype.data.gz"
    content = path.read_bytes()
    path.unlink()
    calls = []

    def download(url, dst):
        calls.append(url)
        Path(dst).write_bytes(content)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    for _ in range(2):
        assert len(ready(folder).labels) == 18
    path.rename(path.with_suffix(".zip"))
    (folder / "covertype" / "covtype.data").write_text(text())
    assert len(ready(folder).labels) == 18
    assert len(calls) == 1


def test_a_download_that_fails_names_the_address_and_the_place(folder, monkeypatch):
    def fail(url, dst):
        raise OSError("no route")

    (folder / "covertype" / "covtype.data.gz").unlink()
    monkeypatch.setattr(torch.hub, "download_url_to_file", fail)
    with pytest.raises(RuntimeError, match=rf"{URL} could not be downloaded \(no route\).*covtype\.data\.gz"):
        ready(folder)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("COVCLS-G", 0.6, 0.9), ("COVFEAT-L", 0.6, 0.85)],  # the paper's C-scores are 0.794 and 0.682
)
def test_real_data(real_data: Path, name: str, low: float, high: float) -> None:
    data = CovertypeDataModule.named(name, real_data, download=False)
    data.setup("fit")
    assert data.source_inputs().shape == (492_000, 49)
    assert np.bincount(data.labels).tolist() == [211_560, 280_440]
    assert (data.num_clients, data.partition.num_clients, data.statistics().mean) == (60, 100, 4_920)
    assert low < data.statistics().c_score < high
