"""The report says what each method spent of differential privacy."""

from __future__ import annotations

from pathlib import Path

from helpers.written_results import write_results

from fl_lightning.report.experiment import read_experiment
from fl_lightning.report.privacy import privacy_grid


def test_the_largest_epsilon_of_a_methods_runs(tmp_path: Path) -> None:
    assert privacy_grid(write_results(tmp_path)) is None
    for run in range(6):
        curve = tmp_path / "cells" / f"easy-RADFed-{run}" / "curve.csv"
        header, *lines = curve.read_text().splitlines()
        spent = [f"{line},{0.5 * place + 0.125 * run},0.00015" for place, line in enumerate(lines, start=1)]
        curve.write_text("\n".join([f"{header},fed/epsilon,fed/delta", *spent]))
    grid = privacy_grid(read_experiment(tmp_path))
    assert grid is not None
    assert [list(row) for row in grid.rows] == [["easy", "", "2.12 at 0.00015"], ["hard", "", ""]]
