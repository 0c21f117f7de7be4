"""What was done to inputs at set-up, as a module for inputs that come later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.tiny_files import set_up
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import FedAvg, TensorDataModule, client_model, load_preprocessing
from fl_lightning.data import WithinClientSplit
from fl_lightning.datamodules import TableDataModule
from fl_lightning.models import MLPClassifier

#: Ages of two hospitals' patients, one of them missing.
AGES = [20.0, 40.0, np.nan, 30.0, 70.0, 50.0]


def table(folder: Path, **options: Any) -> TableDataModule:
    frame = pd.DataFrame({"age": AGES, "sex": list("fmfmfm"), "died": [0, 1, 0, 1, 0, 1], "hospital": list("aaabbb")})
    path = folder / "stays.csv"
    frame.to_csv(path, index=False)
    split = WithinClientSplit(0.0, 0.0)
    options |= {"label": "died", "client": "hospital", "categorical": ["sex"], "split": split}
    return set_up(TableDataModule(path, **options))


NEW = torch.tensor([[60.0, 0.0, 1.0], [float("nan"), 1.0, 0.0]])


def test_a_new_row_becomes_what_all_hospitals_statistics_make_of_it(tmp_path: Path) -> None:
    # ages 20, 40, 30, 70, 50 and their mean 42 in the hole: the squares of the deviations add up to 1480
    made = table(tmp_path, standardize="global", impute="global").preprocessing()(NEW)
    assert made[0, 0].item() == pytest.approx((60 - 42) / (1480 / 6) ** 0.5, rel=1e-6)
    assert made[1].tolist() == [0.0, 1.0, 0.0]
    assert made[0, 1:].tolist() == [0.0, 1.0]


def test_each_hospital_has_its_own(tmp_path: Path) -> None:
    data = table(tmp_path, standardize="local", impute="local")
    # 20, 40 and their mean 30 in the hole; 30, 70, 50
    first = data.preprocessing(0)(NEW)
    assert first[:, 0].tolist() == pytest.approx([30 / (200 / 3) ** 0.5, 0.0], rel=1e-6)
    second = data.preprocessing(1)(NEW)
    assert second[:, 0].tolist() == pytest.approx([10 / (800 / 3) ** 0.5, 0.0], rel=1e-6)


def test_means_of_all_and_deviations_of_each(tmp_path: Path) -> None:
    # the hole of the first hospital has 42, the mean of all; its own mean is then 34
    made = table(tmp_path, standardize="local", impute="global").preprocessing(0)(NEW)
    assert made[1, 0].item() == pytest.approx((42 - 34) / ((14**2 + 6**2 + 8**2) / 3) ** 0.5, rel=1e-6)


@pytest.mark.parametrize("impute", ["global", "local"])
@pytest.mark.parametrize("standardize", ["global", "local"])
def test_rows_of_training_become_the_same_numbers(tmp_path: Path, standardize: Any, impute: Any) -> None:
    raw = torch.from_numpy(np.array(AGES, dtype=np.float32))
    data = table(tmp_path, standardize=standardize, impute=impute)
    for client in (0, 1):
        [(x, _)] = data.client_batches(client, generator=torch.Generator())
        rows = raw[3 * client : 3 * client + 3, None].expand(-1, 3)
        made = data.preprocessing(client)(rows)[:, 0]
        assert sorted(made.tolist()) == sorted(x[:, 0].tolist())


def test_a_data_module_that_changes_nothing_has_an_identity() -> None:
    data = set_up(TensorDataModule([(torch.zeros(2, 1), torch.zeros(2))]))
    assert isinstance(data.preprocessing(), nn.Identity)


def test_a_checkpoint_and_an_exported_file_score_a_new_patient_as_the_fit_does(tmp_path: Path) -> None:
    data = table(tmp_path, standardize="global", impute="global", batch_size=3)
    module = MLPClassifier(in_features=3, hidden=(4,), num_classes=2, lr=0.1)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0)], default_root_dir=tmp_path)
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    expected = module(data.preprocessing()(NEW))
    plain = MLPClassifier(in_features=3, hidden=(4,), num_classes=2, lr=0.1)
    plain.load_state_dict(client_model(trainer, 1))
    deployed = nn.Sequential(load_preprocessing(tmp_path / "last.ckpt"), plain.layers).eval()
    assert torch.equal(deployed(NEW), expected)
    exported = torch.export.export(deployed, (NEW,))
    torch.export.save(exported, tmp_path / "model.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "model.pt2").module()(NEW), expected)
    torch.testing.assert_close(torch.jit.trace(deployed, NEW)(NEW), expected)
