from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.tiny_files import set_up
from helpers.toys import quiet_trainer

from fl_lightning import ClientMetrics
from fl_lightning.data import SampleSplit, WithinClientSplit
from fl_lightning.datamodules import TableDataModule
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import IIDPartitioner


def frame(rows: int = 12) -> pd.DataFrame:
    """Row i has age i and height 2i, belongs to one of the sites b, a, c in turn, and is of class low or high."""
    age = np.arange(rows)
    return pd.DataFrame(
        {
            "site": [("b", "a", "c")[i % 3] for i in age],
            "age": age,
            "colour": [("red", "blue")[i % 2] for i in age],
            "height": 2.0 * age,
            "risk": [("low", "low", "high", "high")[i % 4] for i in age],
        }
    )


def write(path: Path, table: pd.DataFrame) -> Path:
    table.to_parquet(path) if path.suffix in (".parquet", ".PQ") else table.to_csv(path, index=False)
    return path


def ready(path: Path, client: str | None = "site", **kwargs) -> TableDataModule:
    options = {"label": "risk", "categorical": ["colour"], "split": WithinClientSplit(0.0, 0.0), **kwargs}
    return set_up(TableDataModule(path, client=client, **options))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "T.PQ"])
def test_rows_by_client(tmp_path, name):
    data = ready(write(tmp_path / name, frame()))
    assert data.client_names == ["a", "b", "c"]
    assert data.class_names == ["high", "low"]
    assert data.feature_names == ["age", "height", "colour=blue", "colour=red"]
    assert [indices.tolist() for indices in data.partition.indices] == [[1, 4, 7, 10], [0, 3, 6, 9], [2, 5, 8, 11]]
    ((x, y),) = data.client_batches(0, generator=torch.Generator(), shuffle=False)
    assert x[x[:, 0].argsort()].tolist() == [[1, 2, 1, 0], [4, 8, 0, 1], [7, 14, 1, 0], [10, 20, 0, 1]]
    assert y[x[:, 0].argsort()].tolist() == [1, 1, 0, 0]
    assert (x.dtype, y.dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize(
    ("written", "clients"),
    [
        (["001", "1", "10", "2"], ["001", "1", "10", "2"]),
        (["1", "10", "2", "3"], ["1", "2", "3", "10"]),
        (["0x1", "1", "10", "2"], ["0x1", "1", "10", "2"]),
        (["18446744073709551617", "18446744073709551616", "1", "2"], None),
        (["1.0", "1", "2", "3"], ["1", "1.0", "2", "3"]),
        ([" 1", "10 ", " 2", "3"], ["1", "2", "3", "10"]),
        ([" 01", "10 ", " 2", "3"], ["01", "10", "2", "3"]),
        ([" a", "a", "b", "c"], [" a", "a", "b", "c"]),
        (["1e1", "10", "2", "3"], ["10", "1e1", "2", "3"]),
        (["True", "true", "1", "0"], ["0", "1", "True", "true"]),
    ],
)
def test_clients_and_classes_are_told_apart_as_they_are_written(tmp_path, written, clients):
    rows = [f"{client},{age},{client}" for age, client in enumerate(2 * written)]
    (tmp_path / "t.csv").write_text("\n".join(["site,age,risk", *rows]))
    data = ready(tmp_path / "t.csv", categorical=["risk"], label="site", client="site")
    assert data.num_clients == 4
    assert data.client_names == (sorted(written) if clients is None else clients)
    assert data.class_names == data.client_names
    assert data.feature_names == ["age", *(f"risk={name}" for name in data.client_names)]


def test_clients_that_are_a_feature_too_are_numbers(tmp_path):
    (tmp_path / "t.csv").write_text("site,risk\n01,a\n2,b\n1,b\n")
    data = ready(tmp_path / "t.csv", features=["site"], categorical=())
    assert (data.client_names, data.source_inputs().flatten().tolist()) == (["1", "2"], [1.0, 2.0, 1.0])


def test_a_partitioner_takes_the_place_of_the_client_column(tmp_path, caplog):
    caplog.set_level("INFO", "lightning.pytorch")
    data = ready(write(tmp_path / "t.csv", frame()), partitioner=IIDPartitioner(4))
    assert data.num_clients == 4
    assert data.client_names is None
    # the client column is no feature
    assert data.feature_names == ["age", "height", "colour=blue", "colour=red"]
    assert (
        "IIDPartitioner(num_clients=4, seed=0) makes the clients. The column 'site', which is `client`" in caplog.text
    )
    table = frame().drop(columns="site")
    assert ready(write(tmp_path / "u.csv", table), client=None, partitioner=IIDPartitioner(4)).num_clients == 4


def test_a_test_file_is_the_official_test_set(tmp_path):
    files = {"path": write(tmp_path / "t.csv", frame()), "test_path": write(tmp_path / "test.csv", frame(15).iloc[12:])}
    data = ready(**files, split=SampleSplit(val=0.0, test="official"))
    ((x, _),) = data.test_dataloader()
    assert x[:, 0].tolist() == [13.0, 12.0, 14.0]  # of the clients a, b, c
    assert data.partition.sizes.tolist() == [5, 5, 5]
    options = {"label": "height", "regression": True, "categorical": ["colour", "risk"]}
    ((x, y),) = ready(**files, **options).test_dataloader()
    # the age, and indicators of two colours and two risks
    assert (x.shape, sorted(y.tolist())) == ((3, 5), [24.0, 26.0, 28.0])
    assert data.client_sizes.tolist() == [4, 4, 4]


def test_rows_of_a_test_file_are_scored_for_their_clients(tmp_path):
    test = frame(18).iloc[12:]
    test.iloc[-2:, test.columns.get_loc("site")] = ["z", "d"]  # two clients that only test come last
    files = {"path": write(tmp_path / "t.csv", frame()), "test_path": write(tmp_path / "test.csv", test)}
    data = ready(**files, split=WithinClientSplit(val=0.25, test=0.25))
    assert data.client_names == ["a", "b", "c", "d", "z"]
    assert data.num_clients == 3
    ids = data.eval_client_ids("test").tolist()
    ((x, _),) = data.test_dataloader()
    sites = {float(row.age): row.site for row in test.itertuples()}
    assert [data.client_names[client] for client in ids] == [sites[age] for age in x[:, 0].tolist()]
    metrics = ClientMetrics()
    module = MLPClassifier(in_features=x.shape[1], hidden=(2,), num_classes=len(data.class_names))
    quiet_trainer(max_epochs=1, callbacks=[metrics]).test(module, datamodule=data)
    assert sorted(metrics.values["test"]) == [0, 1, 2, 3, 4]


def test_numbers_are_classes_or_targets(tmp_path):
    table = frame()
    table["risk"] = [(3.0, 7.0)[i % 2] for i in range(12)]
    data = ready(write(tmp_path / "t.csv", table))
    assert data.class_names == ["3", "7"]
    assert data.labels.tolist() == [0, 1] * 6
    data = ready(tmp_path / "t.csv", regression=True)
    ((_, y),) = data.client_batches(1, generator=torch.Generator(), shuffle=False)
    assert (y.dtype, sorted(y.tolist())) == (torch.float32, [3.0, 3.0, 7.0, 7.0])
    assert data.labels is None
