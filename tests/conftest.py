from __future__ import annotations

import os
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
def auto_chooses_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``executor="auto"`` choose the reference, whatever the clock says: many tests compare runs bit for bit."""
    for other in ("seconds_at_once", "seconds_channels_last"):
        monkeypatch.setattr(f"fl_lightning.executors.stacked.timing.StepTiming.{other}", lambda self: float("inf"))
