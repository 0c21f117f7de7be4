"""Figures of results that are written by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.drawn import drawn
from helpers.written_results import GAPS, write_results

from fl_lightning.report import figures
from fl_lightning.report.drawing import COLORS, shade, style_of_column
from fl_lightning.report.results import Results, read_results

SOFT = {method: ("soft", method) for method in ("FedAvg", "RADFed")}


def test_runs_of_different_lengths_are_aligned_by_their_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAPS, "soft", [1, 3])
    write_results(tmp_path)
    (tmp_path / "cells" / "soft-RADFed-0" / "curve.csv").write_text("round,val_acc\n1,0.1\n2,\n3,0.3\n4,0.5\n")
    figure, text = figures.draw_curves(read_results(tmp_path), SOFT, "val_acc", "soft")
    mean = figure.axes[0].lines[3]
    # the other run was validated in rounds 2 and 3
    assert list(mean.get_xdata()) == [3]
    assert list(mean.get_ydata()) == pytest.approx([(0.3 + 0.53) / 2])
    assert text.endswith(", where all runs of a line have values")


def test_a_method_has_its_colour_in_a_figure_of_this_method_alone(written: Results) -> None:
    alone, _ = figures.draw_curves(written, {"RADFed": SOFT["RADFed"]}, "val_acc", "soft")
    assert alone.axes[0].lines[0].get_color() == COLORS[1]
    # The twelfth method has the colour and the mark of the second one, and no dashes.
    many = replace(written, table={**written.table, "methods": [*range(10), "FedAvg", "RADFed"]})
    twelfth, _ = figures.draw_curves(many, {"RADFed": SOFT["RADFed"]}, "val_acc", "soft")
    assert f"line [2 3] [0.4 0.535] {COLORS[1]} 0.90 (0, None) mark s" in "\n".join(drawn(twelfth))
    assert [shade(number, 3) for number in range(3)] == ["0.00", "0.35", "0.70"]


def test_figures_for_papers_have_the_width_of_a_column_and_fonts_that_publishers_take(written: Results) -> None:
    with style_of_column():
        picture, again = (next(figures.comparisons(written)) for _ in range(2))
    assert again.files == picture.files
    pdf = picture.files["pdf"]
    # Points: 3.25 inches.
    assert re.search(rb"/MediaBox \[ *0 0 234 [\d.]+ *\]", pdf)
    assert b"/Type3" not in pdf
    assert re.search(rb'<svg [^>]*width="234pt"', picture.files["svg"])
    # The pixels of a row are in the head of the file.
    assert int.from_bytes(picture.png[16:20], "big") == 747


def test_names_are_drawn_as_they_are(written: Results) -> None:
    lines = {"_hidden": ("soft", "FedAvg"), "$a_1$ and a long name of many words": ("soft", "RADFed")}
    figure, _ = figures.draw_curves(written, lines, "val_acc", "$x$")
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [" _hidden", "\\$a_1\\$ and a long name\nof many words"]
