from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.tiny_files import eicu_tables, set_up, write_eicu

from fl_lightning.data import ClientSplit, WithinClientSplit
from fl_lightning.datamodules import EICUDataModule
from fl_lightning.datamodules.eicu import FEATURES


def ready(folder: Path, **kwargs) -> EICUDataModule:
    return set_up(EICUDataModule(folder, **{"cohort": "demo", "split": WithinClientSplit(0.0, 0.0), **kwargs}))


def small() -> dict[str, pd.DataFrame]:
    return eicu_tables({30: 6, 4: 8, 100: 5}, {30: 1, 4: 4, 100: 0})


def test_each_hospital_is_a_client(tmp_path):
    data = ready(write_eicu(tmp_path, small()))
    # hospital 100 has no more than 5 stays
    assert data.client_names == ["4", "30"]
    assert data.client_sizes.tolist() == [8, 6]
    assert data.source_inputs().shape == (14, 49)
    ((x, y),) = data.client_batches(0, generator=torch.Generator(), shuffle=False)
    age = x[:, FEATURES.index("age")]
    assert age.sort().values.tolist() == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0]
    assert y[age.argsort()].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert data.class_names == ["survived", "died"]


def test_the_papers_filter(tmp_path):
    content = eicu_tables({1: 101, 2: 100, 3: 120, 4: 120}, {1: 20, 2: 0, 3: 24, 4: 25})
    data = ready(write_eicu(tmp_path, content), cohort="paper")
    # hospital 2 has too few admissions; 25 of 120 are more than 20 %, 24 are not
    assert data.client_names == ["1", "3"]
    assert data.client_sizes.tolist() == [101, 120]


def test_the_demo_is_named_as_a_stand_in(tmp_path, caplog):
    with caplog.at_level("INFO"):
        ready(write_eicu(tmp_path, small()))
    assert "relaxed filters of `cohort='demo'`, a stand-in: 2 hospitals with more than 5 adm" in caplog.text


@pytest.mark.parametrize("folder", ["eicu", "eicu/csv"])
def test_gzipped_files_of_lower_case_names_in_a_subfolder(tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True)
    for name, table in small().items():
        with gzip.open(tmp_path / folder / f"{name.lower()}.csv.gz", "wt") as file:
            table.rename(columns=str.upper).to_csv(file, index=False)
    assert ready(tmp_path).client_sizes.tolist() == [8, 6]


def test_only_stays_in_all_tables_count_and_once(tmp_path):
    content = small()
    content["apacheApsVar"] = content["apacheApsVar"].iloc[1:]
    content["apachePatientResult"] = content["apachePatientResult"].iloc[:-12]
    data = ready(write_eicu(tmp_path, content))
    # hospital 30 has lost a stay, hospital 4 one, and hospital 100 all
    assert data.client_names == ["4"]
    assert data.client_sizes.tolist() == [7]


def test_minus_one_is_missing_and_becomes_the_hospitals_mean(tmp_path):
    content = small()
    urine, surgery = FEATURES.index("urine"), FEATURES.index("electivesurgery")
    content["apacheApsVar"]["urine"] = [*[3.0, 5.0, -1.0, -1.0, 4.0, 8.0], *[10.0, -1.0] * 4, *[0.0] * 5]
    content["apachePredVar"]["electivesurgery"] = [1.0, np.nan] * 9 + [1.0]
    x = ready(write_eicu(tmp_path, content)).source_inputs()
    assert x[:, urine].tolist() == [3.0, 5.0, 5.0, 5.0, 4.0, 8.0, *[10.0] * 8]
    assert x[:, surgery].tolist() == [1.0, 0.0] * 7
    x = ready(tmp_path, impute="global").source_inputs()
    assert x[2, urine] == x[7, urine] == 7.5  # 60 over 8 stays


def test_a_table_without_a_column_or_damaged_is_named(tmp_path):
    content = small()
    write_eicu(tmp_path, {**content, "apacheApsVar": content["apacheApsVar"].drop(columns="urine")})
    with pytest.raises(RuntimeError, match=r"apacheApsVar\.csv .*urine"):
        ready(tmp_path)
    write_eicu(tmp_path, content)
    whole = (tmp_path / "eicu" / "patient.csv").read_bytes()
    (tmp_path / "eicu" / "patient.csv").write_bytes(whole[:-1])
    with pytest.raises(RuntimeError, match=r"patient\.csv .* cut off"):
        ready(tmp_path)


@pytest.mark.parametrize("unknown", [np.nan, -1.0])
def test_a_stay_without_outcome_is_left_out(tmp_path, unknown):
    content = small()
    content["apachePredVar"] = content["apachePredVar"].astype({"diedinhospital": float})
    content["apachePredVar"].loc[7, "diedinhospital"] = unknown
    data = ready(write_eicu(tmp_path, content))
    # one of the eight stays of hospital 4, a death
    assert data.client_sizes.tolist() == [7, 6]
    assert np.bincount(data.labels).tolist() == [9, 4]


@pytest.mark.realdata
def test_the_open_demo(real_data):
    data = ready(real_data, split=ClientSplit(), standardize="global")
    x = data.source_inputs()
    assert x.shape == (1809, 49)
    assert torch.isfinite(x).all()
    assert len(data.client_names) == 167
    assert int(data.labels.sum()) == 150
    assert (data.statistics().min, data.statistics().max) == (6, 18)
