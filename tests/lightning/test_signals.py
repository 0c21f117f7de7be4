"""A job that is asked to stop ends on all processes, at a round's start, and goes on from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.pausing import Job


def check_resumed(tmp_path: Path, job: Job, checkpoint: str = "saved") -> None:
    """Resume a stopped job from what it saved last or when it stopped; compare it with one that was never stopped."""
    whole = Job(tmp_path / "whole", "nowhere", job.devices, job.algorithm).finish()
    resumed = job.finish(checkpoint)
    assert resumed["step"] == whole["step"]
    for name, value in whole["weights"].items():
        assert torch.equal(value, resumed["weights"][name]), name


POINTS = ("training", "validation", "aggregation", "checkpointing")


def combinations(others: Sequence[Any], usual: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return all points with each of the others; only the usual ones run without ``-m long``."""
    pairs = [(point, other) for point in POINTS for other in others]
    return [pytest.param(*pair, marks=() if pair in usual else pytest.mark.long, id=str(pair)) for pair in pairs]


@pytest.mark.parametrize(
    ("point", "ranks"), combinations(([0], [1], [0, 1]), usual=(("training", [1]), ("validation", [0, 1])))
)
def test_two_processes_end_together(tmp_path: Path, point: str, ranks: list[int]) -> None:
    job = Job(tmp_path / "job", point, 2, "RADFed")
    job.stop(ranks)
    assert (job.folder / "on_exception.ckpt").exists()
    if ranks != [0, 1]:
        check_resumed(tmp_path, job, "last" if ranks == [0] else "saved")


@pytest.mark.parametrize(
    ("point", "algorithm"),
    combinations(("RADFed", "FedAsync"), usual=(("training", "RADFed"), ("aggregation", "FedAsync"))),
)
def test_one_process_ends(tmp_path: Path, point: str, algorithm: str) -> None:
    job = Job(tmp_path / "job", point, 1, algorithm)
    job.stop([0])
    check_resumed(tmp_path, job)
