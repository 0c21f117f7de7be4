from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers.small_table import alone, small, spec
from helpers.values import assert_values
from rich.console import Console

from fl_lightning.experiment import run_table

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cells in this process draw no pictures of partitions, half of their time; reports' tests have them."""
    monkeypatch.setattr("fl_lightning.experiment.cell.draw_partition", lambda *arguments: None)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and its workers import `faulty`."""
    monkeypatch.syspath_prepend(HERE)


@dataclass
class Run:
    """A table, the folder of its results, its rows, and what was told."""

    table: dict[str, Any]
    folder: Path
    rows: list[dict[str, Any]]
    text: str

    def again(self, **changes: Any) -> Run:
        """Run the table once more in the same folder, with other entries at its top."""
        return run_here({**self.table, **changes}, self.folder)

    def cell(self, place: int = 0) -> Path:
        """Return the folder of a row's cell."""
        return self.folder / "cells" / self.rows[place]["cell"]


def run_here(table: dict[str, Any], folder: Path, workers: int = 0, **options: Any) -> Run:
    console = Console(file=io.StringIO(), width=1000)
    rows = run_table(table, folder, workers=workers, checkpoint_seconds=0, console=console, **options)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert_values(text)
    return Run(table, folder, rows, text)


@pytest.fixture(scope="session")
def finished_table(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run the small table once; tests read it, and write to copies alone."""
    return run_here(small(), tmp_path_factory.mktemp("finished") / "small")


@pytest.fixture
def finished(finished_table: Run, tmp_path: Path) -> Run:
    """Return a copy of the finished table."""
    folder = tmp_path / "runs" / "small"
    shutil.copytree(finished_table.folder, folder)
    return Run(small(), folder, finished_table.rows, finished_table.text)


@pytest.fixture(scope="session")
def broken_off(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run, Path]]:
    """Make a cell that failed at the end of round 4 of 6, the same cell run to its end, and a copy of the first."""
    folder = tmp_path_factory.mktemp("broken")
    callbacks = [spec("faulty.FailOnce", marker=str(folder / "marker"), at_round=4)]
    table = alone(callbacks=callbacks, trainer={"max_epochs": 6, "accelerator": "cpu"})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(HERE)
        broken, whole = (run_here(table, folder / name) for name in ("broken", "whole"))
    assert [run.rows[0]["status"] for run in (broken, whole)] == ["failed", "finished"]
    yield broken, whole, Path(shutil.copytree(broken.folder, folder / "kept"))


@pytest.fixture
def unfinished(broken_off: tuple[Run, Run, Path], faulty: None) -> tuple[Run, Run]:
    """Return the broken cell as it was left, in its own folder, whose path checkpoints hold, and the whole one."""
    broken, whole, kept = broken_off
    shutil.rmtree(broken.folder, ignore_errors=True)
    shutil.copytree(kept, broken.folder)
    return broken, whole
