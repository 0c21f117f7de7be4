"""The report of an experiment, from results written by hand and from a run."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers.drawn import read
from helpers.small_table import small
from helpers.written import assert_as_in
from helpers.written_results import write_results
from rich.console import Console

from fl_lightning.command import main
from fl_lightning.experiment import run_table
from fl_lightning.experiment.files import read_json, write_json
from fl_lightning.report import experiment_report
from fl_lightning.report.notes import missing_columns
from fl_lightning.report.page import Picture, Section
from fl_lightning.report.results import Results, read_results

HERE = Path(__file__).parent

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


def change(path: Path, change_row: Callable[[dict[str, str]], dict[str, Any]]) -> None:
    """Change the rows of a CSV file."""
    with path.open(newline="") as file:
        rows = [{**row, **change_row(row)} for row in csv.DictReader(file)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_everything(folder: Path) -> None:
    """Write results of which each section of a report has something to say; FedAvg is named Local."""
    theirs = {"Paper": {"select": "last", "runs": 4, "scores": {"RADFed": {"score": 54.0, "sd": 1.0}, "Local": 40.0}}}
    write_results(folder, stand_in="A & B.", published=theirs, paper={"Local": 50.0, "RADFed": 2.0})
    results = folder / "results.csv"
    results.write_text(results.read_text().replace("FedAvg", "Local"))
    # Two versions of the code have run, and predicting one class reaches 25 % of the second data set.
    change(
        results,
        lambda row: {
            "code": row["code"] and ("2" if row["method"] == "RADFed" else "1"),
            "constant_score": "0.25" if row["data"] == "hard" else "0.1",
        },
    )
    table = json.loads(json.dumps(read_json(folder / "table.json")).replace("FedAvg", "Local"))
    table["data"]["easy"] |= {"validate_on_test": True, "smoothing": 2, "curves": ["val_acc", "val_loss"]}
    table["data"]["hard"] |= {"targets": [0.3], "stand_in": None}
    write_json(folder / "table.json", table)
    cells = folder / "cells"
    for cell in list(cells.glob("*-FedAvg-*")):
        cell.rename(str(cell).replace("FedAvg", "Local"))
    # Some runs end after their last aggregation, and one gives a guarantee of privacy.
    for number, aggregated in enumerate(([1, 0, 0], [0, 1, 0], [0, 0, 1])):
        rounds = iter(aggregated)
        curve = cells / f"hard-RADFed-{number}" / "curve.csv"
        change(curve, lambda row, rounds=rounds: {"fed/aggregated": next(rounds)})
    change(cells / "easy-RADFed-3" / "curve.csv", lambda row: {"fed/epsilon": row["round"], "fed/delta": 1e-3})
    clients = {"Local": ["0,bonn,1,0.5", "1,lund,3,0.6"], "RADFed": ["0,bonn,1,0.7", "1,lund,3,0.5"]}
    for method, lines in clients.items():
        text = "\n".join(["client,name,samples,test_acc", *lines])
        (cells / f"easy-{method}-0" / "clients.csv").write_text(text)
    versions = {"python": "3.11", "torch": "2.9", "lightning": "2.6", "numpy": "2.3"}
    for cell, day, seconds in (("easy-Local-0", 28, 60.0), ("easy-RADFed-5", 29, 120.0)):
        times = {"begun": f"2026-11-{day}T08:15:30+00:00", "ended": f"2026-11-{day}T09:20:30+00:00"}
        write_json(cells / cell / "run.json", {**versions, **times, "seconds": seconds, "device": "cpu"})
    tried = [(0.1, "0.5", "yes", ""), (1.0, "", "", "ValueError: x")]
    points = [["easy", "RADFed", json.dumps({"lr": lr}), *rest] for lr, *rest in tried]
    with (folder / "tuning.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["data", "method", "values", "val", "chosen", "error"], *points])
    (folder / "partitions").mkdir()
    for ending in ("png", "pdf"):
        (folder / "partitions" / f"abcdef0123-fold_1-seed_2.{ending}").write_bytes(b"a picture")


def shown(folder: Path) -> Iterator[str]:
    """Yield what a report shows: the page, and the figures in its files."""
    yield from read(folder / "report.html")
    for path in sorted((folder / "figures").iterdir()):
        yield f"\n{path.name}"
        if path.suffix == ".png":
            yield path.read_bytes().partition(b"IEND")[2][4:].decode(errors="replace")


def test_the_page_holds_all_it_needs(tmp_path: Path) -> None:
    write_everything(tmp_path)
    path = experiment_report(tmp_path, tmp_path / "out")
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    assert "script" not in page.seen
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    assert_as_in(HERE / "everything.txt", shown(tmp_path / "out"), tmp_path)


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
    pictures = [Picture(name, "", {"png": f"{place}".encode()}) for place, name in enumerate(["a", "A", "b", "A"])]
    section = Section("Figures", pictures=pictures)
    monkeypatch.setitem(experiment_report.__globals__, "_sections", lambda results: [section])
    write_results(tmp_path)
    experiment_report(tmp_path)
    files = {file.name: file.read_text() for file in (tmp_path / "report" / "figures").iterdir()}
    assert files == {"a.png": "0", "A-2.png": "1", "b.png": "2", "A-3.png": "3"}
