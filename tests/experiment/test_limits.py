"""Timeouts, retries, limits of memory, and what does not end a run."""

from __future__ import annotations

import csv
import signal
from pathlib import Path
from typing import Any

import pytest
from experiment.conftest import run_here
from helpers.small_table import small, spec


def with_faulty(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a table of FedAvg with a callback of faulty.py, which has the callback's name, and without it."""
    fedavg = small()["methods"]["FedAvg"]
    return small(methods={name: {**fedavg, "callbacks": [spec(f"faulty.{name}", **arguments)]}, "Plain": fedavg})


def run(table: dict[str, Any], folder: Path, workers: int, **limits: Any) -> tuple[dict[str, dict[str, Any]], str]:
    done = run_here(table, folder, workers, **limits)
    return {row["method"]: row for row in done.rows}, done.text


@pytest.mark.long
def test_a_cell_that_hangs_is_stopped(tmp_path: Path, faulty: None) -> None:
    table = with_faulty("Hang")
    del table["methods"]["Plain"]  # it would be stopped, too, on a slow machine
    rows, text = run(table, tmp_path, 1, cell_timeout=0.5, retries=1)
    assert rows["Hang"]["error"] == "TimeoutError: the cell took longer than 0.5 s (`cell_timeout`), so it was stopped."
    [log] = tmp_path.glob("cells/*/log.txt")
    assert log.read_text().count("Timeout (0:00:00.500000)!\nThread") == 2  # each attempt shows where it was
    assert text.count("Tried again (1 of 1): digits, Hang, fold 0, seed 0: TimeoutError: the cell took") == 1


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_a_cell_that_fails_once_is_tried_again_and_goes_on(tmp_path: Path, faulty: None, workers: int) -> None:
    table = with_faulty("FailOnce", marker=str(tmp_path / "marker"))
    rows, text = run(table, tmp_path / "out", workers, retries=2)
    assert {row["status"] for row in rows.values()} == {"finished"}
    lines = [line.partition("; ")[0] for line in text.splitlines()]
    assert lines[:3] == [
        "cells 1/2 finished: digits, Plain, fold 0, seed 0",
        "Tried again (1 of 2): digits, FailOnce, fold 0, seed 0: RuntimeError: broken by the test",
        "cells 2/2 finished: digits, FailOnce, fold 0, seed 0",
    ]
    # the fit is the same as one that was never broken
    assert rows["FailOnce"]["score"] == rows["Plain"]["score"]


@pytest.mark.parametrize("at_round", [5, *(pytest.param(round, marks=pytest.mark.long) for round in (2, 7))])
def test_the_curve_of_a_cell_that_went_on_is_that_of_a_whole_one(tmp_path: Path, faulty: None, at_round: int) -> None:
    table = with_faulty("FailOnce", marker=str(tmp_path / "marker"), at_round=at_round)
    table["trainer"] = {"max_epochs": 8, "check_val_every_n_epoch": 3, "accelerator": "cpu"}
    rows, text = run(table, tmp_path, 0, retries=1)
    assert "Tried again (1 of 1): digits, FailOnce" in text
    once, plain = ((tmp_path / "cells" / row["cell"] / "curve.csv").read_bytes() for row in rows.values())
    assert once == plain
    scores = [row["val_acc_clients"] for row in csv.DictReader(plain.decode().splitlines())]
    assert [bool(score) for score in scores] == [False, False, True, False, False, True, False, False]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_cell_that_leaves_python_is_a_failed_cell(tmp_path: Path, faulty: None, workers: int) -> None:
    rows, _ = run(with_faulty("Raise", kind="SystemExit"), tmp_path, workers)
    assert rows["Raise"]["error"] == "SystemExit: 3"
    assert rows["Plain"]["status"] == "finished"


def test_ctrl_c_inside_of_a_fit_ends_the_run_and_is_no_failure(tmp_path: Path, faulty: None) -> None:
    # Lightning turns it into a SystemExit and ignores further ones
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(with_faulty("Raise", kind="KeyboardInterrupt"), tmp_path, 0, retries=1)
    assert signal.getsignal(signal.SIGINT) is handler
    assert not list(tmp_path.rglob("failed.json"))


@pytest.mark.long
def test_memory_of_a_worker_is_limited(tmp_path: Path, faulty: None) -> None:
    table = with_faulty("Allocate", gigabytes=6.0)
    rows, _ = run(table, tmp_path, 1, memory_limit=5.0)
    assert rows["Allocate"]["error"] == "MemoryError"
    assert rows["Plain"]["status"] == "finished"
