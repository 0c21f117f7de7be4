"""Every algorithm: killed in mid-round and resumed, it ends bit-identical; on two processes, as on one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.algorithms import one_in

Ends = Callable[[str, str], tuple[dict[str, Any], dict[str, Any]]]
TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def ends(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ends:
    """Return how both fits of an algorithm ended; those to be tested train at the first call, in one process tree."""
    tests = {
        "kill": "test_killed_in_mid_round_and_resumed_is_bit_identical",
        "processes": "test_two_processes_equal_one",
    }
    mine: list[Any] = [item for item in request.session.items if item.path == Path(__file__)]
    folders: dict[str, tuple[Path, str]] = {}

    def load(mode: str, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        if mode not in folders:
            folder = tmp_path_factory.mktemp(mode)
            names = [item.callspec.params["name"] for item in mine if item.originalname == tests[mode]]
            command = [sys.executable, "-m", "helpers.fit_algorithms", mode, str(folder), *names]
            paths = os.pathsep.join([str(TESTS), str(TESTS.parent)])
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
            finished = subprocess.run(command, env=environment, capture_output=True, timeout=900, check=False)
            folders[mode] = folder, finished.stderr.decode()
        folder, log = folders[mode]
        assert (folder / name / "b.pt").exists(), log[-4000:]
        a, b = (torch.load(folder / name / f"{way}.pt", weights_only=True) for way in "ab")
        return a, b

    return load


@pytest.mark.parametrize("name", one_in(4))
def test_killed_in_mid_round_and_resumed_is_bit_identical(ends: Ends, name: str) -> None:
    whole, resumed = ends("kill", name)
    for other in ("lr", "step", "sent"):
        assert resumed[other] == whole[other]
    assert torch.equal(resumed["server"], whole["server"])
    for key, value in whole["weights"].items():
        assert torch.equal(resumed["weights"][key], value), key


@pytest.mark.parametrize("name", one_in(8))
def test_two_processes_equal_one(ends: Ends, name: str) -> None:
    one, two = ends("processes", name)
    for other in ("lr", "step", "sent"):
        assert two[other] == one[other]
    assert torch.allclose(two["server"], one["server"], rtol=0, atol=1e-10)
    for key, value in one["weights"].items():
        assert torch.allclose(two["weights"][key].double(), value.double(), rtol=0, atol=1e-10), key
