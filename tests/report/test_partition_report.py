from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.drawn import drawn, read
from helpers.written import assert_as_in
from lightning.pytorch.loggers import Logger, WandbLogger
from torch.utils.data import TensorDataset

from fl_lightning import TensorDataModule, partition_report
from fl_lightning.data import FederatedDataModule, SampleSplit, Source
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.partitioners import IIDPartitioner, Partition

HERE = Path(__file__).parent

pytestmark = pytest.mark.usefixtures("without_drawing")

LABELS = np.array([0, 0, 0, 1, 0, 1, 1, 1])


def halves(labels: np.ndarray) -> Partition:
    """Give samples 0-3 to client 0 and 4-7 to client 1: class counts (3, 1) and (1, 3)."""
    return Partition((np.arange(4), np.arange(4, 8)))


class Eight(FederatedDataModule):
    """Eight samples; all of the two clients train."""

    def __init__(self, partitioner: Any = halves, labels: np.ndarray | None = LABELS) -> None:
        super().__init__(partitioner, split=SampleSplit(val=0, test=0))
        self._labels = labels

    def load(self) -> Source:
        dataset = TensorDataset(torch.zeros(8, 1), torch.from_numpy(LABELS))
        return Source(dataset, self._labels, class_names=["<cat>", "dog & co"] if self._labels is not None else None)


class Listed(FederatedDataModule):
    """Samples of which some are of no client."""

    def __init__(self, source: Source, partition: Partition) -> None:
        super().__init__(lambda labels: partition, split=SampleSplit(val=0.25, test=0.25))
        self._source = source

    def load(self) -> Source:
        return self._source


class WithFeatures(Eight):
    # the second feature belongs to the client alone
    categorical_features = np.stack([LABELS, np.repeat([5, 9], 4)], axis=1)


class WithNames(WithFeatures):
    categorical_names = ("soil", "place")


def ready(datamodule: FederatedDataModule) -> FederatedDataModule:
    datamodule.prepare_data()
    datamodule.setup()
    return datamodule


def test_numbers_of_two_clients() -> None:
    # oracle O14: counts (3, 1), (1, 3) have C-score 0.5; entropy -2 (3/8 ln 3/8 + 1/8 ln 1/8)
    report = partition_report(ready(Eight()))
    assert report.summary.numbers() == {
        "num_clients": 2,
        "num_samples": 8,
        "min": 4,
        "max": 4,
        "mean": 4.0,
        "std": 0.0,
        "c_score": 0.5,
        "entropy": pytest.approx(1.2554823251787537),
    }
    rows = report.summary.rows()
    assert rows["validation"] == rows["test"] == "none"
    assert rows["fingerprint"] == halves(LABELS).fingerprint()[:16]
    assert re.search(r"^C-score +0\.500$", str(report), re.MULTILINE)


def test_sets_by_client_and_of_no_client() -> None:
    rows = partition_report(ready(DigitsDataModule(IIDPartitioner(10, seed=3)))).summary.rows()
    assert rows["partitioner"] == "IIDPartitioner(num_clients=10, seed=3)"
    # 7 clients of 180 samples and 3 of 179
    assert [rows[name].split(",")[0] for name in ("training", "validation", "test")] == [
        "6 clients",
        "2 clients",
        "2 clients",
    ]
    split = SampleSplit(val=0.1, test=0.1)
    rows = partition_report(ready(DigitsDataModule(IIDPartitioner(10), split=split))).summary.rows()
    assert rows["validation"] == rows["test"] == "180 samples that belong to no client"
    assert rows["samples of all clients"] == "1,437"


@pytest.mark.parametrize(
    ("datamodule", "given", "names"),
    [
        (WithFeatures(), None, ("0", "1")),
        (WithNames(), None, ("soil", "place")),
        (Eight(), WithFeatures.categorical_features, ("0", "1")),
        (WithFeatures(), {"mixed": LABELS, "own": np.repeat([True, False], 4)}, ("mixed", "own")),
    ],
    ids=["from the data module", "with their names", "array", "by name"],
)
def test_skew_of_categorical_features(datamodule: Eight, given: Any, names: tuple[str, str]) -> None:
    report = partition_report(ready(datamodule), features=given)
    # as the classes: 0.5; one value a client, two equally frequent values: 2 (1 - 1/2)
    assert report.summary.feature_skew == {names[0]: 0.5, names[1]: 1.0}
    assert report.summary.numbers()[f"feature_skew/{names[1]}"] == 1.0
    assert report.summary.rows()[f"feature skew, {names[1]}"] == "1.000"


@pytest.mark.parametrize("features", [np.zeros(8), LABELS[:3], ["a"] * 8], ids=["floats", "too few", "texts"])
def test_features_that_are_no_categories(features: Any) -> None:
    with pytest.raises(ValueError, match="`features`"):
        partition_report(ready(Eight()), features=features)


def test_without_labels_there_are_sizes_alone() -> None:
    clients = [(torch.zeros(n, 1), torch.zeros(n)) for n in [1, 3] * 25]
    report = partition_report(ready(TensorDataModule(clients, val=clients[:1])))
    # Each bar takes 0.14 inches.
    assert report.figure.get_figwidth() == pytest.approx(3 + 0.14 * 50)
    rows = report.summary.rows()
    assert rows["largest client"] == "3"
    assert rows["partitioner"] == "the data's own clients"
    assert rows["split"] == "as given"
    assert rows["validation"] == "1 client, 1 sample"
    assert "C-score" not in rows
    assert not {"c_score", "entropy"} & set(report.summary.numbers())
    assert [axes.get_ylabel() for axes in report.figure.axes] == ["samples", "clients"]
    of_one_class = partition_report(ready(Eight(labels=np.zeros(8, dtype=int)))).figure.axes
    assert [axes.get_ylabel() for axes in of_one_class] == ["samples", "clients"]
    assert of_one_class[0].get_legend() is None


TENSORS = [(torch.zeros(n, 1), torch.arange(n) % 2) for n in (5, 5, 10)]
SETS = [TensorDataset(*tensors) for tensors in TENSORS]


def test_the_whole_report(tmp_path: Path) -> None:
    sizes = np.repeat(np.arange(6), [1, 2, 3, 4, 5, 65])
    labels = np.arange(160) % 11
    source = Source(
        TensorDataset(torch.zeros(160, 1), torch.from_numpy(labels)), labels, class_names=list("abcdefghijk")
    )
    data = Listed(source, Partition(tuple(np.flatnonzero(sizes == client) for client in range(6))))
    report = partition_report(ready(data), tmp_path, features={"soil": labels // 2}, max_clients=4)
    # The largest client has 65 samples, so that a bar of the histogram stands for three sizes.
    assert_as_in(HERE / "partition.txt", [*drawn(report.figure), *read(tmp_path / "partition.html")], tmp_path)


def test_the_page_holds_all_it_needs(tmp_path: Path) -> None:
    report = partition_report(ready(WithFeatures()), tmp_path, features={"<soil>": LABELS})
    page = (tmp_path / "partition.html").read_text(encoding="utf-8")
    assert page == report.html
    # All clients are drawn.
    assert report.figure.axes[0].get_xlabel() == "client"
    shown = page.replace("<wbr>", "")
    assert all(html.escape(text) in shown for text in report.summary.rows().values())
    assert "feature skew, &lt;soil&gt;" in shown
    assert "data:image/png;base64," in shown
    assert not any(text in shown for text in ("<script", "<soil>", "http:"))
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_report_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    partition_report(ready(Eight()), folder)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    assert set(before) == {"partition.png", "partition.html"}
    partition_report(ready(Eight()), folder)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before

    other = ready(Eight(IIDPartitioner(2)))
    with pytest.raises(FileExistsError, match=r"partition\.png holds something other than this report.*overwrite=True"):
        partition_report(other, folder)
    assert (folder / "partition.html").read_bytes() == before["partition.html"][0]
    report = partition_report(other, folder, overwrite=True)
    assert (folder / "partition.html").read_text(encoding="utf-8") == report.html


def test_other_loggers_get_numbers() -> None:
    logger = Mock(spec=Logger)
    report = partition_report(ready(WithNames()), logger=logger)
    numbers = {f"partition/{name}": number for name, number in report.summary.numbers().items()}
    assert numbers["partition/feature_skew/place"] == 1.0
    logger.log_metrics.assert_called_once_with(numbers, step=0)


def test_weights_and_biases_gets_numbers_figure_and_page(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(summary={})
    monkeypatch.setattr(WandbLogger, "experiment", run)
    partition_report(ready(Eight()), logger=WandbLogger(offline=True))
    assert run.summary["partition/c_score"] == 0.5
    [logged] = run.log.call_args.args
    assert {name: type(value).__name__ for name, value in logged.items()} == {
        "partition/figure": "Image",
        "partition/report": "Html",
    }
