from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def real_data() -> Path:
    """The folder of real data sets; the test is skipped where there is none."""
    folder = Path(os.environ.get("FL_LIGHTNING_REAL_DATA", Path(__file__).parents[1] / ".data"))
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}; set FL_LIGHTNING_REAL_DATA to their folder")
    return folder


@pytest.fixture(autouse=True)
def own_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the seed of ``lightning.seed_everything``, an environment variable, from the tests that come after."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.delenv("PL_GLOBAL_SEED")


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Undo what a script that runs in this process does to Lightning's log."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def auto_chooses_the_reference(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``executor="auto"`` choose the reference: many tests compare a fit with stock Lightning's bit for bit.

    Tests marked ``auto_decides`` let it choose.
    """
    if request.node.get_closest_marker("auto_decides") is None:
        monkeypatch.setattr("fl_lightning.executors.auto._loss_of_a_stack", lambda counts, models: "no gain")
        monkeypatch.setattr("fl_lightning.executors.auto.LayoutTrial.works", lambda trial, task: False)
