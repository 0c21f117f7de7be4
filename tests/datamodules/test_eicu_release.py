from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from helpers.eicu_release import APS_VAR, PRED_VAR, write_eicu_release
from helpers.tiny_files import eicu_tables, write_eicu

from datamodules import EICUDataModule
from datamodules.eicu import PHYSIOLOGY, PREDICTORS
from fl_lightning.data import ClientSplit, WithinClientSplit


def ready(folder: Path, **options: object) -> EICUDataModule:
    data = EICUDataModule(folder, **options)  # type: ignore[arg-type]
    data.prepare_data()
    data.setup("fit")
    return data


def test_the_papers_filters_keep_the_hospitals_that_meet_them(tmp_path: Path) -> None:
    kept = write_eicu_release(tmp_path, 10, 6, max_admissions=150)
    data = ready(tmp_path, standardize="global")
    assert data.client_names == [str(hospital) for hospital in sorted(kept)]
    counts = [np.bincount(data.labels[indices], minlength=2) for indices in data.partition.indices]
    assert [(int(own.sum()), int(own[1])) for own in counts] == [kept[hospital] for hospital in sorted(kept)]
    assert (data.num_clients, len(set(data.eval_client_ids("val")))) == (6, 2)
    assert torch.isfinite(data.source_inputs()).all()


def test_the_same_seed_gives_the_same_release(tmp_path: Path) -> None:
    inputs = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_eicu_release(tmp_path / name, 3, 0, max_admissions=120, seed=seed)
        inputs.append(ready(tmp_path / name, split=ClientSplit(3)).source_inputs())
    assert torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs[0][:100], inputs[2][:100])


def test_admissions_and_deaths_are_those_with_an_apache_result(tmp_path: Path) -> None:
    # 120 stays with 10 deaths, 102 with 20, 103 with 20, and two hospitals that are large enough in any case
    content = eicu_tables({1: 120, 2: 102, 3: 103, 4: 110, 5: 110}, {1: 10, 2: 20, 3: 20, 4: 0, 5: 0})
    stays = content["patient"]
    without_result = [
        *stays[stays.hospitalid == 1].patientunitstayid[100:],  # 100 admissions are left, which is not more than 100
        *stays[stays.hospitalid == 2].patientunitstayid[101:],  # 101, 20 deaths: 19.8 %
        *stays[stays.hospitalid == 3].patientunitstayid[[320, 321]],  # 101, 20 deaths
        *stays[stays.hospitalid == 4].patientunitstayid[:5],
    ]
    results = content["apachePatientResult"]
    content["apachePatientResult"] = results[~results.patientunitstayid.isin(without_result)]
    data = ready(write_eicu(tmp_path, content), split=WithinClientSplit())
    assert data.client_names == ["2", "3", "4", "5"]
    assert data.partition.sizes.tolist() == [101, 101, 105, 110]
    # one more death in hospital 3 makes 21 of 101, 20.8 %
    died = content["apachePredVar"]
    died.loc[died.patientunitstayid == stays[stays.hospitalid == 3].patientunitstayid.iloc[30], "diedinhospital"] = 1
    assert ready(write_eicu(tmp_path, content), split=WithinClientSplit()).client_names == ["2", "4", "5"]


def test_the_invented_tables_have_the_columns_of_the_real_ones() -> None:
    assert set(PHYSIOLOGY) <= set(APS_VAR)
    assert set(PREDICTORS) <= set(PRED_VAR)
    assert len(pd.unique(pd.Series(PRED_VAR))) == len(PRED_VAR) == 51
