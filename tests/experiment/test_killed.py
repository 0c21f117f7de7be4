"""Runs share a folder: each cell is run once, and those of a run that is killed are taken over."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from experiment.conftest import HERE, run_here
from helpers.small_table import small

CELLS = 8


def table(folder: Path) -> dict[str, Any]:
    """Six cells of twelve rounds and two further ones to tune, with clients' states and a random search."""
    log = {"class_path": "faulty.LogTests", "init_args": {"path": str(folder / "tests.txt")}}
    content = small(seeds=[0, 1], trainer={"max_epochs": 12, "accelerator": "cpu"}, callbacks=[log])
    content["methods"]["SCAFFOLD"] = {
        "callback": {"class_path": "fl_lightning.Scaffold", "init_args": {"clients_per_round": 2}},
        "tune": {"lr": [0.003, 0.01, 0.02, 0.03]},
    }
    content["tuning"] = {"search": "random", "count": 3}
    return content


def start(path: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start a run of two workers by the command."""
    options = [str(path), "--output", str(out), "--workers", "2", "--checkpoint-seconds", "0"]
    folders = os.pathsep.join([str(HERE), *sys.path])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": folders}
    return subprocess.Popen([sys.executable, "-m", "fl_lightning.command", "run", *options], env=environment)


def rounds_done(out: Path) -> int:
    """Return the rounds of all finished cells and of those at work."""
    total = 0
    for folder in (out / "cells").glob("*"):
        try:
            name = "curve.csv" if (folder / "curve.csv").exists() else "curve.jsonl"
            total += (folder / name).read_bytes().count(b"\n") - (name == "curve.csv")
        except FileNotFoundError:  # not begun, or finished just now
            continue
    return total


def assert_same(out: Path, whole: Path) -> None:
    for name in ("results.csv", "tuning.csv"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    curves = {path.relative_to(whole) for path in whole.glob("cells/*/curve.csv")}
    assert len(curves) == CELLS
    for curve in curves:
        assert (out / curve).read_bytes() == (whole / curve).read_bytes()
    assert not [*out.glob("cells/*/*.ckpt")]  # a claim may stay, of a process that was killed with its result written


@pytest.mark.long
@pytest.mark.parametrize(("runs", "kills"), [(1, 3), (3, 2)])
def test_a_run_that_is_killed_at_random_and_started_again(tmp_path: Path, faulty: None, runs: int, kills: int) -> None:
    path, out, tests = tmp_path / "table.yaml", tmp_path / "out", tmp_path / "tests.txt"
    path.write_text(yaml.safe_dump(table(tmp_path)))
    run_here(table(tmp_path), tmp_path / "whole")
    tests.unlink()
    others = [start(path, out) for _ in range(runs - 1)]
    for goal in sorted(random.Random(7).sample(range(1, 6 * 12), kills)):
        victim = start(path, out)
        until = time.monotonic() + 120
        while rounds_done(out) < goal and time.monotonic() < until:
            time.sleep(0.002)
        assert victim.poll() is None
        victim.kill()
        victim.wait()
    for run in (*others, start(path, out)):
        assert run.wait(300) == 0
    assert_same(out, tmp_path / "whole")
    counts = Counter(tests.read_text().splitlines())
    assert len(counts) == CELLS
    assert counts.total() <= CELLS + kills  # one may be killed after the test and before its result is written


@pytest.mark.long
def test_runs_that_share_a_folder_run_each_cell_once(tmp_path: Path, faulty: None) -> None:
    content = small(seeds=[0, 1], callbacks=table(tmp_path)["callbacks"])
    whole = run_here(content, tmp_path / "whole")
    (tmp_path / "tests.txt").unlink()

    def run(number: int) -> list[dict[str, Any]]:
        return run_here(content, tmp_path / "out", workers=1).rows

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(run, range(2))
    assert first == second == whole.rows
    assert (tmp_path / "out" / "results.csv").read_bytes() == (whole.folder / "results.csv").read_bytes()
    assert sorted(Counter((tmp_path / "tests.txt").read_text().splitlines()).values()) == [1] * 4
