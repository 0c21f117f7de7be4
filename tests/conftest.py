from __future__ import annotations

import functools
import gc
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers.values import check_encodings, check_expected_messages
from lightning.fabric.utilities import registry
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultMetric
from torch._dynamo import guards

torch.set_num_threads(1)
# many tests compare a fit with stock Lightning's, bit for bit
os.environ["FL_LIGHTNING_EXECUTOR"] = "sequential"
# each trainer looks for plugins among all installed packages, nine tenths of the time that it takes to make one
registry.entry_points = functools.lru_cache(registry.entry_points)  # type: ignore[assignment]
# PyTorch measures how long the guards of each captured step take, for which it empties the processor's cache
guards.profile_guard_manager = lambda *arguments: 0.0
# Lightning looks through all that a logged value has for what it may move to a device: a sixth of a short fit's time
if not torch.cuda.is_available():
    _ResultMetric.to = lambda metric, *arguments, **options: metric  # type: ignore[method-assign]
# what the tests write need not outlive a power cut, and a disk takes some milliseconds for each file
os.fsync = lambda handle: None
# pytest listens to each log that does not propagate, and PyTorch writes much of each capture as soon as anybody listens
for logger in logging.root.manager.loggerDict.values():
    if isinstance(logger, logging.Logger) and logger.name.startswith("torch.") and not logger.propagate:
        logger.addHandler = lambda handler: None  # type: ignore[method-assign]


check_expected_messages()
check_encodings()


def pytest_collection_finish() -> None:
    """Let Python look for garbage seldom, and not among all that is imported: it took a tenth of the time of stacks."""
    gc.freeze()
    gc.set_threshold(2000, 20, 40)


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
def executor_by_default(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``executor="auto"`` choose in tests marked ``auto_decides``."""
    if request.node.get_closest_marker("auto_decides") is not None:
        monkeypatch.delenv("FL_LIGHTNING_EXECUTOR")
        monkeypatch.setattr("fl_lightning.executors.auto._WORTH_A_CAPTURE", 0)
