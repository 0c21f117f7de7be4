"""Searches by Optuna: which points are tried, which fits are pruned, and that no clock has a say in it."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from experiment.conftest import Run, run_here
from experiment.test_killed import rounds_done, start
from experiment.test_search import Points
from helpers.small_table import small

from fl_lightning.experiment.files import read_csv
from fl_lightning.experiment.search import Tried, space_of

RATES = [float(f"{digit}e{power}") for power in range(-5, 1) for digit in (1, 3)]  # 1e-5 to 3


def tuned(tune: Any, rounds: int = 1, **tuning: Any) -> dict[str, Any]:
    """Return a table of FedAvg alone, with a search of the learning rate."""
    table = small(trainer={"max_epochs": rounds, "accelerator": "cpu"}, tuning=tuning)
    table["methods"] = {"FedAvg": {**table["methods"]["FedAvg"], "tune": {"lr": tune}}}
    return table


def results(run: Run) -> dict[float, dict[str, Any]]:
    """Return the results of the fits of a search by their learning rates; the fit of the table is left out."""
    found = {}
    for folder in run.folder.glob("cells/*"):
        config = json.loads((folder / "config.json").read_text())
        if "pruning" in config or run.table["tuning"].get("pruner") is None:
            found[config["model"]["init_args"]["lr"]] = json.loads((folder / "result.json").read_text())
    return found


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run a search of 12 learning rates with 27 rounds each."""
    return run_here(tuned(RATES, 27), tmp_path_factory.mktemp("search") / "grid")


def test_tpe_looks_where_scores_are_best() -> None:
    kinds = [{"a": 1}, None]
    places = np.linspace(0, 1, 21)
    known = [({"x": float(x), "kind": kinds[place % 2]}, -abs(x - 0.8)) for place, x in enumerate(places)]
    known.append(({"x": 0.1, "kind": None}, None))  # a failure is no score

    def proposed(seed: int, mode: str) -> list[dict[str, Any]]:
        space = space_of({"x": {"min": 0.0, "max": 1.0}, "kind": kinds})
        search = Points(space, "tpe", len(known) + 34, seed, mode)
        search.tried = [Tried(point, (), 1, score, "", 0) for point, score in known]
        # Nor is the score of a fit that was pruned.
        search.tried += 4 * [Tried({"x": 0.1, "kind": None}, (), 1, 1.0, "", 2)]
        return search.next_points()

    best, worst = proposed(0, "max"), proposed(0, "min")
    assert len(best) == 30
    assert np.median([point["x"] for point in best]) == pytest.approx(0.8, abs=0.1)
    assert np.median([point["x"] for point in worst]) < 0.2
    assert all(point["kind"] in kinds for point in best)
    assert best == proposed(0, "max")
    assert best != proposed(1, "max")


def test_a_search_by_tpe_tries_as_many_points_and_chooses_the_best(tmp_path: Path) -> None:
    run = run_here(tuned({"min": 1e-9, "max": 0.1, "log": True}, search="tpe", count=2, at_once=1), tmp_path)
    rows = read_csv(tmp_path / "tuning.csv")
    assert len(rows) == 2
    [chosen] = [row for row in rows if row["chosen"] == "yes"]
    assert float(chosen["val"]) == max(float(row["val"]) for row in rows)
    assert run.rows[0]["values"] == chosen["values"]


@pytest.mark.long
def test_asha_ends_what_successive_halving_would_end(grid: Run, tmp_path: Path) -> None:
    """The rule of the paper on the curves of the whole fits: a look after 3 and 9 of 27 rounds, the best third goes on.

    With one point at a time, each is compared with all before it.
    """
    asha = run_here(tuned(RATES, 27, pruner="asha", at_once=1), tmp_path)
    curves = {}
    for folder in grid.folder.glob("cells/*"):
        rate = json.loads((folder / "config.json").read_text())["model"]["init_args"]["lr"]
        curves[rate] = [float(row["val_acc_clients"]) for row in read_csv(folder / "curve.csv")]
    seen: dict[int, list[float]] = {3: [], 9: []}
    expected = {}
    for row in read_csv(asha.folder / "tuning.csv"):
        rate = json.loads(row["values"])["lr"]
        expected[rate] = 27
        for look, values in seen.items():
            values.append(curves[rate][look - 1])
            if values[-1] < sorted(values, reverse=True)[max(1, len(values) // 3) - 1]:
                expected[rate] = look
                break
    found = results(asha)
    assert {rate: result["rounds"] for rate, result in found.items()} == expected
    assert {rate for rate, result in found.items() if result.get("pruned")} == {
        r for r, n in expected.items() if n < 27
    }


@pytest.mark.long
def test_a_study_of_several_runs_that_are_killed_is_that_of_one(tmp_path: Path) -> None:
    content = tuned({"min": 1e-4, "max": 1.0, "log": True}, 9, search="tpe", count=8, pruner="asha", folds=[0, 1])
    path, out, whole = tmp_path / "table.yaml", tmp_path / "out", tmp_path / "whole"
    path.write_text(yaml.safe_dump(content))
    run_here(content, whole)
    other = start(path, out)
    for goal in (5, 60):
        victim = start(path, out)
        while rounds_done(out) < goal and victim.poll() is None:
            time.sleep(0.01)
        victim.kill()
        victim.wait()
    for run in (other, start(path, out)):
        assert run.wait(300) == 0
    for name in ("results.csv", "tuning.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert {path.name for path in out.glob("cells/*")} == {path.name for path in whole.glob("cells/*")}
    assert any("pruned" in row["error"] for row in read_csv(out / "tuning.csv"))
    assert not any(math.isnan(float(row["val"])) for row in read_csv(out / "tuning.csv"))
