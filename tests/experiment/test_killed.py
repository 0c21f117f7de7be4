"""A runner that is killed at random gives what one gives that is left alone."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import yaml
from faults.forked import Forked
from helpers.nursery import Nursery
from helpers.small_table import small

from fl_lightning.experiment.__main__ import main


def table() -> dict:
    """Six cells of twelve rounds and four to tune, among them a state that clients keep and a random search."""
    content = small(seeds=[0, 1], trainer={"max_epochs": 12, "accelerator": "cpu"})
    content["methods"]["SCAFFOLD"] = {
        "callback": {"class_path": "fl_lightning.Scaffold", "init_args": {"clients_per_round": 2}},
        "tune": {"lr": [0.003, 0.01, 0.02, 0.03]},
    }
    content["tuning"] = {"search": "random", "count": 3}
    return content


def run(path: Path, out: Path) -> None:
    """Run the command, with workers that are forked instead of started."""
    nursery = Nursery()
    nursery.replace_popen()
    os.chdir(out.parent)
    command = [str(path), "--output", str(out), "--workers", "2", "--checkpoint-seconds", "0"]
    if main(command) != 0:
        raise RuntimeError("a cell failed")


def start(path: Path, out: Path) -> Forked:
    return Forked(partial(run, path, out), out.parent / f"{out.name}.log")


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


@pytest.mark.long
def test_killed_five_times_at_random_and_resumed(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump(table()))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    runner = start(path, whole)
    assert runner.wait(300) == 0, runner.output()
    # eight cells: of three points that are tried for seed 0, one is the table's
    goals = sorted(random.Random(7).sample(range(1, 8 * 12), 5))
    for goal in goals:
        runner = start(path, killed)
        until = time.monotonic() + 120
        while rounds_done(killed) < goal and runner.wait(0.0) is None and time.monotonic() < until:
            time.sleep(0.002)
        assert runner.wait(0.0) is None, runner.output()
        os.kill(runner.pid, signal.SIGKILL)
        runner.wait(60.0)
    runner = start(path, killed)
    assert runner.wait(300) == 0, runner.output()
    for name in ("results.csv", "tuning.csv"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()
    curves = {path.relative_to(whole) for path in whole.glob("cells/*/curve.csv")}
    assert len(curves) == 8
    for curve in curves:
        assert (killed / curve).read_bytes() == (whole / curve).read_bytes()
    assert not list(killed.glob("cells/*/*.ckpt"))
