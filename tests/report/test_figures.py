"""Figures of results that are written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.written_results import GAPS, write_results

from fl_lightning.report.curves import draw_curves
from fl_lightning.report.spread import draw_comparison, draw_spread, representative_fold


def test_curves_have_a_mean_and_a_band(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    drawn = draw_curves(experiment, "easy", "val_acc")
    assert drawn is not None
    assert drawn.text == "line: mean over 6 runs, band: ± one sd"
    [axes] = drawn.figure.axes
    mean, radfed = axes.lines
    assert mean.get_xdata().tolist() == [2, 3]
    assert radfed.get_ydata().tolist() == pytest.approx([0.4, 0.535])
    assert len(axes.collections) == 2
    low, high = (function(axes.collections[1].get_paths()[0].vertices[:, 1]) for function in (min, max))
    # the sample sd of gaps 1 to 6 is sqrt(3.5)
    assert (low, high) == pytest.approx((0.4, 0.535 + 0.01 * 3.5**0.5))
    assert axes.get_ylabel() == "validation accuracy"
    assert axes.get_xlabel() == "round"
    drawn.figure.draw_without_rendering()
    assert [tick.get_text() for tick in axes.get_xticklabels() if 2 <= tick.get_position()[0] <= 3] == ["2", "3"]
    assert all(tick.get_text().endswith(" %") for tick in axes.get_yticklabels())
    assert draw_curves(experiment, "easy", "fed/central_distance", "DC") is None


def test_runs_of_different_lengths_are_aligned_by_their_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAPS, "easy", [1, 3])
    experiment = write_results(tmp_path)
    (tmp_path / "cells" / "easy-RADFed-0" / "curve.csv").write_text("round,val_acc\n1,0.1\n2,\n3,0.3\n4,0.5\n")
    drawn = draw_curves(experiment, "easy", "val_acc")
    assert drawn is not None
    mean = drawn.figure.axes[0].lines[3]
    # the other run was validated in rounds 2 and 3
    assert mean.get_xdata().tolist() == [3]
    assert mean.get_ydata().tolist() == pytest.approx([(0.3 + 0.53) / 2])
    assert drawn.text.endswith(", where all runs of a line have values")


def test_spread_shows_each_run(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    # of two folds none is nearer to their mean
    assert representative_fold(experiment, "easy") is None
    axes = draw_spread(experiment, "easy").axes[0]
    marks = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert len(marks) == 12
    assert all(mark.get_alpha() == 1 for mark in marks)
    assert axes.get_xlabel() == "test accuracy, %"
    # a row for each method, the first one at the top
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["FedAvg", "RADFed"]
    assert axes.yaxis_inverted()


def test_the_representative_fold_stands_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # gaps of the folds: 2, 5 and 5 with mean 4, so that the second one is the first of the nearest
    monkeypatch.setitem(GAPS, "easy", [1, 2, 3, 4, 5, 6, 4, 5, 6])
    experiment = write_results(tmp_path)
    assert representative_fold(experiment, "easy") == 1
    axes = draw_spread(experiment, "easy").axes[0]
    assert sum(line.get_alpha() == 1 for line in axes.lines if line.get_linestyle() == "None") == 6


def test_comparison_of_data_sets(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    figure = draw_comparison(experiment, "Ease", ["easy", "hard"])
    assert figure is not None
    lengths = [bar.get_width() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert lengths == pytest.approx([7, -10 / 3])
    # each pair of runs is a dot: 1/50 to 6/50 and -1/25 and 0
    dots = [line.get_xdata().tolist() for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert dots == [pytest.approx([2, 4, 6, 8, 10, 12]), pytest.approx([-4] * 5 + [0])]
    assert draw_comparison(experiment, "Ease", ["easy", "other"]) is None


# ---- many methods of long names ----
