"""The model that is tested: which rounds compete, and what is said when none can."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from experiment.conftest import run_here
from helpers.small_table import alone, small, spec, with_data

from fl_lightning import ClientMetrics, FedAvg, FedPer, RADFed, TensorDataModule
from fl_lightning.callbacks import FederatedCheckpoint
from fl_lightning.experiment.cell import best_checkpoint, constant_scores
from fl_lightning.experiment.files import read_csv
from fl_lightning.parts.samplers.participation import Participation


def run_radfed(folder: Path, trainer: dict[str, Any], **arguments: Any) -> dict[str, Any]:
    """Run RADFed with S = 2, where nobody can be reached in the second round."""
    away = spec("fl_lightning.parts.Participation", available={"object": "faulty.away_in_round_2"})
    method = {"redistributions": 2, "clients_per_round": 2, "unequal": "park", "participation": away, **arguments}
    methods = {"RADFed": {"callback": spec("fl_lightning.RADFed", **method)}}
    return run_here(small(trainer={"accelerator": "cpu", **trainer}, methods=methods), folder).rows[0]


def test_an_empty_round_moves_the_rounds_that_compete(tmp_path: Path, faulty: None) -> None:
    row = run_radfed(tmp_path, {"max_epochs": 5})
    curve = read_csv(tmp_path / "cells" / row["cell"] / "curve.csv")
    assert [line["fed/aggregated"] for line in curve] == ["0.0", "0.0", "1.0", "0.0", "1.0"]
    scores = {number: float(curve[number - 1]["val_acc_clients"]) for number in (3, 5)}
    assert row["best_round"] == max(scores, key=lambda number: scores[number])
    assert row["val"] == max(scores.values())


@pytest.mark.long
def test_with_empty_rounds_an_aggregation_may_meet_a_validation(tmp_path: Path, faulty: None) -> None:
    # every second round would not; the second one is empty, so that the server acts in the third
    row = run_radfed(tmp_path, {"max_epochs": 4, "check_val_every_n_epoch": 3})
    assert (row["status"], row["best_round"]) == ("finished", 3)


def test_if_all_clients_diverge_the_error_says_so(tmp_path: Path) -> None:
    model = spec("fl_lightning.models.MLPClassifier", in_features=3072, hidden=[16], lr="$lr")
    data = with_data(model=model, values={"lr": 1e30})["data"]
    [row] = run_here(alone(data=data, trainer={"accelerator": "cpu", "max_epochs": 3}), tmp_path).rows
    assert "NaN, and `fed/left_out` counts them: lower the learning rate" in row["error"]


def test_if_there_is_no_validation_the_error_says_so(tmp_path: Path) -> None:
    table = alone(data=with_data(monitor="val_acc", score="test_acc")["data"])
    table["data"]["digits"]["datamodule"]["init_args"]["split"] = spec("fl_lightning.SampleSplit", val=0.0, test=0.2)
    [row] = run_here(table, tmp_path).rows
    told = "ValueError: `monitor` val_acc was never logged; metrics were fed/aggregated, .*. Maybe the split has no val"
    assert re.match(told, row["error"])
    # The last model needs none. Here no client owns a sample of the test set.
    last = run_here({**table, "select": "last"}, tmp_path)
    assert (last.rows[0]["status"], last.rows[0]["val"]) == ("finished", None)
    assert last.rows[0]["constant_score"] == pytest.approx(0.1, abs=0.05)
    assert not (last.cell() / "clients.csv").exists()


def config(every: int, rounds: int, **changes: str) -> dict[str, Any]:
    trainer = {"check_val_every_n_epoch": every, "max_epochs": rounds}
    reading = {"select": "best on validation", "among": "aggregated", **changes}
    return {**reading, "monitor": "val_acc", "mode": "max", "trainer": trainer}


#: What decides which models are kept, and where.
SETTINGS = {
    **{"monitor": "val_acc", "mode": "max", "save_weights_only": True, "save_last": False, "filename": "best-1"},
    **{"_every_n_epochs": 1, "_enable_version_counter": False, "save_top_k": 1},
}


def settings_of(best: Any) -> dict[str, Any]:
    return {name: getattr(best, name) for name in (*SETTINGS, "dirpath")}


SOMETIMES_AWAY = Participation(available=0.5)


@pytest.mark.parametrize(
    ("method", "every", "rounds", "possible"),
    [
        (FedAvg(), 3, 3, True),
        (FedAvg(), 4, 3, False),
        (RADFed(2), 3, 6, True),
        (RADFed(2), 3, 5, False),
        (RADFed(6), 1, 5, False),
        (RADFed(2, evaluate="aggregate"), 3, 5, True),  # the aggregate of round 2 is validated in round 3
        (RADFed(2, unequal="park", participation=SOMETIMES_AWAY), 3, 5, True),
        (RADFed(4, unequal="park", participation=SOMETIMES_AWAY), 3, 5, False),
        (RADFed(2, unequal="count", extend_cycle=True, participation=Participation(dropout=0.5)), 3, 5, True),
    ],
)
def test_whether_a_model_can_compete(method: Any, every: int, rounds: int, possible: bool, tmp_path: Path) -> None:
    if possible:
        best = best_checkpoint(tmp_path / "best-1.ckpt", config(every, rounds), method.algorithm)
        assert isinstance(best, FederatedCheckpoint)
        assert settings_of(best) == {**SETTINGS, "dirpath": str(tmp_path)}
    else:
        with pytest.raises(ValueError, match=rf"validated: validation comes every {every} (rounds )?of {rounds}\W"):
            best_checkpoint(tmp_path, config(every, rounds), method.algorithm)


def test_scores_of_the_best_model_that_predicts_one_class() -> None:
    x, first, second = torch.zeros(5, 2), torch.tensor([0, 0, 1]), torch.tensor([1, 1, 1, 1, 1])
    data = TensorDataModule([(x, second)], test=[(x[:3], first), (x, second)])
    data.setup()
    # class 1 is right for 6 of 8 samples, and for 1/3 and all of the clients' own; class 0 for 2 of 8, and 2/3 and none
    scores = constant_scores(ClientMetrics(), data)
    assert scores == pytest.approx({"test_acc": 0.75, "test_acc_clients": 2 / 3})
    # a metric that takes no scores of classes
    assert constant_scores(ClientMetrics(lambda preds, target: preds.nothing, "own"), data) == {"test_acc": 0.75}
    numbers = TensorDataModule([(x, x[:, 0])], test=[(x, x[:, 0])])
    numbers.setup()
    assert constant_scores(ClientMetrics(), numbers) == {}


def test_virtual_models_compete_and_the_last_one_needs_no_checkpoint(tmp_path: Path) -> None:
    algorithm = RADFed(4).algorithm
    changes = {"mode": "min", "monitor": "val_loss"}
    best = best_checkpoint(tmp_path / "best-1.ckpt", {**config(3, 5, among="virtual"), **changes}, algorithm)
    assert best is not None
    assert not isinstance(best, FederatedCheckpoint)
    every = {"_every_n_epochs": 3, "save_last": None}
    assert settings_of(best) == {**SETTINGS, **changes, **every, "dirpath": str(tmp_path)}
    personal = best_checkpoint(tmp_path / "best-1.ckpt", config(1, 5), FedPer("head").algorithm)
    assert personal is not None and not personal.save_weights_only
    assert best_checkpoint(tmp_path, config(9, 5, select="last"), algorithm) is None
    with pytest.raises(ValueError, match="No model would be validated: validation comes every 6 rounds of 5"):
        best_checkpoint(tmp_path, config(6, 5, among="virtual"), algorithm)
