"""A plugin for pytest: of the tests that reach a fault the quickest come first, the slowest only if there is time."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

DURATIONS = Path("mutmut-stats.json")  # mutmut writes it, and runs pytest beside it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests by the time that they took, and keep those that fit into the seconds for one fault."""
    if not DURATIONS.exists() or os.environ.get("MUTANT_UNDER_TEST") in (None, "", "stats", "list_all_tests"):
        return
    took: dict[str, float] = json.loads(DURATIONS.read_text())["duration_by_test"]
    items.sort(key=lambda item: took.get(item.nodeid, 0.0))
    seconds = np.cumsum([took.get(item.nodeid, 0.0) for item in items])
    left = float(os.environ.get("MUTATION_SECONDS", "20"))
    del items[max(1, int(np.searchsorted(seconds, left))) :]


def pytest_runtest_setup() -> None:
    """Start every test alike: which others ran before it differs from fault to fault."""
    torch.manual_seed(0)
    np.random.seed(0)
