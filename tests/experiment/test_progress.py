"""The live display of a run."""

from __future__ import annotations

import io

import pytest
from helpers.small_table import small
from rich.console import Console

from fl_lightning.experiment import read_table
from fl_lightning.experiment.plan import Cell, table_cells
from fl_lightning.experiment.progress import Progress


def cells() -> list[Cell]:
    """FedAvg and RADFed with seeds 0 and 1, four rounds each."""
    return table_cells(read_table(small(seeds=[0, 1])), {})


def shown(progress: Progress) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(progress.render())
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_table_counts_what_is_finished_failed_and_running() -> None:
    first, second, third, fourth = cells()
    progress = Progress([first, second, third, fourth], 1, Console(file=io.StringIO()))
    progress.end(first, "finished before", 8.0)
    progress.round(second, 3)
    progress.end(fourth, "failed")
    text = shown(progress)
    assert "1/2" in text
    assert "3/4" in text
    assert "cells: 2 of 4, " in text
    [radfed] = [line for line in text.splitlines() if "RADFed" in line]
    assert radfed.split("│")[1:-1][3].strip() == "1"


def test_the_time_left_goes_by_rounds_of_the_same_method_else_of_the_same_data() -> None:
    first, second, third, fourth = cells()
    progress = Progress([first, second, third, fourth], 1, Console(file=io.StringIO()))
    assert progress.seconds_left() is None
    assert progress.left() == "time left unknown"
    # FedAvg took 2 s a round; RADFed is taken to be as fast until one is finished
    progress.end(first, "finished before", 8.0)
    assert progress.seconds_left() == pytest.approx(3 * 8)
    progress.end(second, "finished before", 40.0)
    assert progress.seconds_left() == pytest.approx(8 + 40)
    assert progress.left() == "about 48 s left"
    halved = Progress([first, second, third, fourth], 2, Console(file=io.StringIO()))
    halved.end(first, "finished before", 8.0)
    assert halved.seconds_left() == pytest.approx(12)
