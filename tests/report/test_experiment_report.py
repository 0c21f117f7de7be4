"""The report of an experiment, from results written by hand and from a run."""

from __future__ import annotations

import csv
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.small_table import small
from rich.console import Console

from fl_lightning.experiment import run_table
from fl_lightning.experiment.statistics import signed_rank_test
from fl_lightning.report.__main__ import main
from fl_lightning.report.communication import communication_grid, cost_to_target
from fl_lightning.report.comparison import paper_grid, rank_grid, relative_grid, score_grid, significance_grid
from fl_lightning.report.curves import draw_comparison, draw_curves, draw_spread, representative_fold
from fl_lightning.report.experiment import Experiment, read_experiment
from fl_lightning.report.experiment_report import experiment_report
from fl_lightning.report.pages import Grid

DATA = {
    "mode": "max",
    "monitor": "val",
    "score": "test",
    "stand_in": None,
    "validate_on_test": False,
    "smoothing": 1,
    "curves": [],
    "targets": [0.5],
    "paper": {"FedAvg": 50.0, "RADFed": 2.0},
    "datamodule": {"class_path": "a.Data"},
    "model": {"class_path": "b.Model"},
}
# two data sets, folds 0 and 1 with three seeds each; RADFed is better by 0.01 to 0.06 on the first, worse on the second
GAPS = {"easy": [1, 2, 3, 4, 5, 6], "hard": [-1, -1, -1, -1, -1, 0]}
BASE = {"easy": 0.5, "hard": 0.25}


def write_results(folder: Path, **data: Any) -> Experiment:
    """Write results by hand; the curve of a run has three rounds, validated in the second and third."""
    rows = []
    for name, gaps in GAPS.items():
        for method in ("FedAvg", "RADFed"):
            for run, gap in enumerate(gaps):
                cell = f"{name}-{method}-{run}"
                score = BASE[name] + (0.01 * gap if method == "RADFed" else 0)
                common = {"data": name, "method": method, "fold": run // 3, "seed": run % 3, "status": "finished"}
                rows.append(
                    {**common, "score": score, "rounds": 3, "partition": "abcdef0123", "code": "1", "cell": cell}
                )
                (folder / "cells" / cell).mkdir(parents=True)
                sent = 2 if method == "FedAvg" else 4
                (folder / "cells" / cell / "curve.csv").write_text(
                    "round,val,fed/clients,fed/models_sent,fed/divergence\n"
                    f"1,,5,{5 * sent},0.1\n2,0.4,5,{10 * sent},0.2\n3,{score},5,{15 * sent},0.1\n"
                )
    rows.append(
        {"data": "hard", "method": "RADFed", "fold": 2, "seed": 0, "status": "failed", "error": "ValueError: x"}
    )
    columns = ["data", "method", "fold", "seed", "status", "score", "rounds", "partition", "code", "cell", "error"]
    with (folder / "results.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    table = {
        "name": "By <hand>",
        "code": "1",
        "data": {name: {**DATA, **data} for name in GAPS},
        "methods": {"FedAvg": {}, "RADFed": {}, "Never": {}},
        "baseline": "FedAvg",
        "folds": [0, 1],
        "seeds": [0, 1, 2],
        "select": "aggregated",
        "comparisons": {"Ease": ["easy", "hard"]},
    }
    (folder / "table.json").write_text(json.dumps(table))
    return read_experiment(folder)


def test_scores_are_means_and_sds_in_per_cent_with_the_best_in_bold(tmp_path: Path) -> None:
    grid = score_grid(write_results(tmp_path))
    assert grid.header == ["data", "FedAvg", "RADFed"]
    # gaps 1 to 6: mean 3.5, sd sqrt(3.5) = 1.87; all six pairs of one sign have p = 2/64, so that they are marked
    assert grid.rows[0] == ["easy", "50.00 ± 0.00", "53.50 ± 1.87 †"]
    # five of -1 and one of 0: mean -5/6; five pairs of one sign have p = 2/32
    assert grid.rows[1] == ["hard", "25.00 ± 0.00", "24.17 ± 0.41"]
    assert grid.strong == {(0, 2), (1, 1)}


def test_relative_differences_in_both_forms(tmp_path: Path) -> None:
    grid = relative_grid(write_results(tmp_path))
    assert grid is not None
    assert grid.rows == [
        ["easy", "50.00", "+7.00"],
        ["hard", "25.00", "-3.33"],
        ["ratio of means", "37.50", "+3.56"],  # (0.535 + 0.241667) / 0.75 - 1
        ["mean of ratios", "37.50", "+1.83"],  # (7 - 3.3333) / 2
    ]
    assert grid.strong == {(0, 2), (1, 2)}


def test_significance_counts_pairs_and_zeros(tmp_path: Path) -> None:
    grid = significance_grid(write_results(tmp_path))
    assert grid is not None
    # t_{0.975, 5} = 2.5706; 3.5 -+ 2.5706 x 1.8708 / sqrt(6)
    assert grid.rows[0] == ["easy", "RADFed", "+3.50", "+1.54 to +5.46", "6", "0", "0.031", "0.031"]
    assert grid.rows[1][4:] == ["6", "1", "0.062", "0.062"]
    assert grid.strong == {(0, 7)}
    assert signed_rank_test([1, 2, 3, 4, 5, 6], [0] * 6).p_value == 0.03125


def test_ranks_and_the_paper(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    ranks = rank_grid(experiment)
    assert ranks is not None
    assert [row[:2] for row in ranks.rows] == [["FedAvg", "1.50"], ["RADFed", "1.50"]]
    paper = paper_grid(experiment)
    assert paper is not None
    assert paper.rows[0] == ["easy", "FedAvg", "50.00", "50.00", "", ""]
    assert paper.rows[1] == ["easy", "RADFed", "+7.00", "+2.00", "yes", "0.031"]
    assert paper.rows[3][4] == "no"
    assert paper_grid(write_results(tmp_path / "other", paper={})) is None


def test_cost_counts_models_in_rounds_of_fedavg(tmp_path: Path) -> None:
    curve = {
        "round": np.array([1.0, 2, 3]),
        "val": np.array([np.nan, 0.4, 0.6]),
        "fed/clients": np.array([5.0, 3, 4]),
        "fed/dropped": np.array([0.0, 2, 1]),
        "fed/models_sent": np.array([20.0, 40, 60]),
    }
    # four vectors for each of five clients a round: three rounds count as six
    assert cost_to_target(curve, "val", 0.5) == 6
    assert cost_to_target(curve, "val", 0.4) == 4
    assert cost_to_target(curve, "val", 0.7) is None
    assert cost_to_target(curve, "val", 0.45, mode="min") == 4
    grid = communication_grid(write_results(tmp_path))
    assert grid is not None
    assert grid.header == ["data", "target", "FedAvg", "RADFed"]
    assert [row[2:] for row in grid.rows] == [["3", "6 (2.00x)"], ["3+ (0 of 6 runs)", "6+ (0 of 6 runs)"]]
    assert grid.strong == {(0, 2)}
    # RADFed's scores are 0.51 to 0.56
    partly = communication_grid(write_results(tmp_path / "partly", targets=[0.535]))
    assert partly is not None
    assert partly.rows[0][2:] == ["3+ (0 of 6 runs)", "6+ (3 of 6 runs)"]


def test_one_run_has_no_significance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAPS, "easy", [1])
    monkeypatch.setitem(GAPS, "hard", [-1])
    experiment = write_results(tmp_path)
    assert significance_grid(experiment) is None
    assert score_grid(experiment).rows[0] == ["easy", "50.00", "51.00"]
    grid = communication_grid(experiment)
    assert grid is not None
    assert [row[2:] for row in grid.rows] == [["3", "6 (2.00x)"], ["3+", "6+"]]


def test_curves_have_a_mean_and_a_band(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    figure = draw_curves(experiment, "easy", "val", "val")
    assert figure is not None
    [axes] = figure.axes
    mean, radfed = axes.lines
    assert mean.get_xdata().tolist() == [2, 3]
    assert radfed.get_ydata().tolist() == pytest.approx([0.4, 0.535])
    assert len(axes.collections) == 2
    assert draw_curves(experiment, "easy", "fed/central_distance", "DC") is None


def test_spread_shows_each_run_and_the_representative_fold(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    # gaps of the folds: 2 and 5 with mean 3.5, the first of equal ones; -1 and -2/3
    assert representative_fold(experiment, "easy") == 0
    axes = draw_spread(experiment, "easy").axes[0]
    marks = [line for line in axes.lines if line.get_linestyle() == "None"]
    assert len(marks) == 12
    assert sum(mark.get_alpha() == 1 for mark in marks) == 6


def test_comparison_of_data_sets(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    figure = draw_comparison(experiment, "Ease", ["easy", "hard"])
    assert figure is not None
    heights = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[attr-defined]
    assert heights == pytest.approx([7, -10 / 3])
    assert draw_comparison(experiment, "Ease", ["easy", "other"]) is None


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and value is not None:
                self.links.append(value)
            if name == "id" and value is not None:
                self.ids.add(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_holds_all_it_needs(tmp_path: Path) -> None:
    write_results(tmp_path, stand_in="A & B.")
    path = experiment_report(tmp_path, tmp_path / "out")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "script" not in page.seen
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} == page.ids
    assert "By &lt;hand&gt;" in text
    assert "Stand-in data: easy, hard. A &amp; B." in text
    assert "Runs that failed: 1" in text
    assert "url(" not in text
    assert "@import" not in text
    names = {file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*.*")}
    for name in ("scores", "relative", "significance", "ranks", "paper", "communication", "failed", "runs"):
        assert {f"tables/{name}.csv", f"tables/{name}.tex"} <= names
    for name in ("curve-easy-val", "across-Ease-val", "spread-easy", "comparison-Ease", "divergence-hard"):
        assert f"figures/{name}.png" in names
    before = path.read_bytes()
    assert experiment_report(tmp_path, tmp_path / "out").read_bytes() == before


def test_grids_as_html_latex_and_csv() -> None:
    grid = Grid("g", "50 % & more", ["name_1", "score"], [["a<b", "-1.5 ± 0.2"], ["c-d", "2"]], {(0, 1)})
    html = grid.to_html()
    assert '<th scope="row">a&lt;b</th><td><strong>\N{MINUS SIGN}1.5 ± 0.2</strong></td>' in html
    assert '<th scope="row">c-d</th>' in html
    latex = grid.to_latex()
    assert r"name\_1 & score \\" in latex
    assert r"a$<$b & \textbf{$-$1.5 $\pm$ 0.2} \\" in latex
    assert r"\caption{50 \% \& more}" in latex
    assert grid.to_csv() == "name_1,score\na<b,'-1.5 ± 0.2\nc-d,2\n"


def test_the_report_of_a_run_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = small(seeds=[0, 1])
    table["methods"]["FedAvg"]["tune"] = {"lr": [0.003, 0.01]}
    table["data"]["digits"]["targets"] = [0.2]
    table["callbacks"] = [{"class_path": "fl_lightning.diagnostics.LocalDivergence"}]
    run_table(table, tmp_path, workers=0, console=Console(file=io.StringIO()))
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report" / "report.html")
    with (tmp_path / "report" / "tables" / "tuning.csv").open() as file:
        [row] = csv.DictReader(file)
    assert re.fullmatch(r"lr=0\.0(03|1)", row["chosen"])
    assert row["points"] == "2"
    assert (tmp_path / "report" / "figures" / "divergence-digits.png").exists()
    assert main([str(tmp_path / "nothing")]) == 1
    assert "There are no results in" in capsys.readouterr().err


def test_results_without_a_finished_run(tmp_path: Path) -> None:
    write_results(tmp_path)
    lines = (tmp_path / "results.csv").read_text().splitlines()
    (tmp_path / "results.csv").write_text("\n".join([lines[0], lines[-1]]) + "\n")
    with pytest.raises(ValueError, match=r"No run in .* is finished with a score"):
        read_experiment(tmp_path)
