"""The report of an experiment, from results written by hand and from a run."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from helpers.small_table import small
from helpers.written_results import BASE, GAPS, write_results
from rich.console import Console

from fl_lightning.command import main
from fl_lightning.experiment import run_table
from fl_lightning.report import experiment_report
from fl_lightning.report.notes import missing_columns
from fl_lightning.report.results import Results, read_results

pytestmark = pytest.mark.usefixtures("without_drawing")


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


def change_results(folder: Path) -> None:
    """Let two versions of the code have run, and some runs end after their last aggregation."""
    results = folder / "results.csv"
    with results.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with results.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "code": row["code"] and ("2" if row["method"] == "RADFed" else "1")} for row in rows)
    for number, aggregated in enumerate(([1, 0, 0], [0, 1, 0], [0, 0, 1])):
        curve = folder / "cells" / f"hard-RADFed-{number}" / "curve.csv"
        head, *lines = curve.read_text().splitlines()
        more = [f"{line},{value}" for line, value in zip(lines, aggregated, strict=True)]
        curve.write_text("\n".join([f"{head},fed/aggregated", *more]) + "\n")


def test_the_page_holds_all_it_needs(tmp_path: Path) -> None:
    write_results(tmp_path, stand_in="A & B.")
    change_results(tmp_path)
    path = experiment_report(tmp_path, tmp_path / "out")
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    assert "script" not in page.seen
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    assert "By &lt;hand&gt;" in text
    assert "3 methods, 2 data sets, 2 folds, 3 seeds: " in text
    assert "Stand-in data: easy, hard. A &amp; B." in text
    assert "1 failed, 0 with a score that is NaN or infinite. No number includes these." in text
    assert "RADFed on hard (2 of 6 runs, up to 2 rounds)" in text
    assert "2 versions of the code: 1, 2" in text
    assert re.search(r'<td class="data row\d col\d best" >53\.50 ± 1\.87 †</td>', text) and "\N{MINUS SIGN}3.33" in text
    names = {file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*.*")}
    for name in ("scores", "relative", "significance", "ranks", "paper", "communication", "failed", "runs", "versions"):
        assert {f"tables/{name}.csv", f"tables/{name}.tex"} <= names
    for name in ("curve-easy-val_acc", "across-Ease-val_acc", "spread-easy", "comparison-Ease", "divergence-hard"):
        assert {f"figures/{name}.{ending}" for ending in ("png", "pdf", "svg")} <= names


def test_the_report_of_a_run_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = small(seeds=[0, 1])
    table["methods"]["FedAvg"]["tune"] = {"lr": [0.003, 0.01]}
    table["data"]["digits"]["targets"] = [0.2]
    table["trainer"]["max_epochs"] = 2
    table["callbacks"] = [{"class_path": "fl_lightning.diagnostics.LocalDivergence"}]
    run_table(table, tmp_path, workers=0, console=Console(file=io.StringIO()))
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report" / "report.html")
    with (tmp_path / "report" / "tables" / "tuning.csv").open() as file:
        [row] = csv.DictReader(file)
    assert re.fullmatch(r"lr=0\.0(03|1)", row["chosen"])
    assert row["points"] == "2"
    assert (tmp_path / "report" / "figures" / "divergence-digits.png").exists()
    # Both seeds have the same partition.
    assert sorted(path.suffix for path in (tmp_path / "partitions").iterdir()) == [".pdf", ".png", ".svg"]
    assert len(list((tmp_path / "report" / "figures").glob("partition-digits.*"))) == 3
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "digits: samples of each client by class; fold 0, seed 0." in page
    assert main(["report", str(tmp_path / "nothing")]) == 1
    assert "`results` must hold results.csv and table.json, and " in capsys.readouterr().err


@pytest.mark.parametrize(("old", "new"), [(",0.51,", ",0.5x,"), ("easy,RADFed,0,", "easy,RADFed,?,"), (",0.51,", "\n")])
def test_damaged_results_are_named(tmp_path: Path, old: str, new: str) -> None:
    write_results(tmp_path)
    results = tmp_path / "results.csv"
    results.write_text(results.read_text().replace(old, new, 1))
    with pytest.raises(ValueError, match=r"results\.csv, .* must be whole"):
        experiment_report(tmp_path)


def test_results_without_a_finished_run(tmp_path: Path) -> None:
    write_results(tmp_path)
    lines = (tmp_path / "results.csv").read_text().splitlines()
    (tmp_path / "results.csv").write_text("\n".join([lines[0], lines[-1]]) + "\n")
    with pytest.raises(ValueError, match=r"No run in .* has a finite score"):
        experiment_report(tmp_path)


def test_a_column_without_a_finite_value_is_told(written: Results, tmp_path: Path) -> None:
    assert missing_columns(written) == ""
    write_results(tmp_path)
    for curve in (tmp_path / "cells").glob("easy-*/curve.csv"):
        curve.write_text("round,val_acc\n1,\n2,nan\n")
    assert missing_columns(read_results(tmp_path)) == "No run has logged a finite value of val_acc of easy."


def test_figures_of_names_that_differ_in_case_have_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for of_test in (GAPS, BASE):
        monkeypatch.setitem(of_test, "Easy", of_test["easy"])
    write_results(tmp_path)
    experiment_report(tmp_path)
    names = {file.stem for file in (tmp_path / "report" / "figures").glob("spread-*")}
    assert names == {"spread-easy", "spread-hard", "spread-Easy-2"}
