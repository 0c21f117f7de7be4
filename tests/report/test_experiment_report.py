"""The report of an experiment, from results written by hand and from a run."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers.drawn import read
from helpers.small_table import small
from helpers.written import assert_as_in, messages
from helpers.written_results import BASE, GAPS, write_results
from rich.console import Console

from fl_lightning.command import main
from fl_lightning.experiment import run_table
from fl_lightning.experiment.files import read_json, write_json
from fl_lightning.report import experiment_report
from fl_lightning.report.page import Picture, Section

HERE = Path(__file__).parent

pytestmark = pytest.mark.usefixtures("without_drawing")


class Nesting(HTMLParser):
    """Each element ends before the one that it is in."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

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
    of_data = {"published": theirs, "paper": {"Local": 50.0, "RADFed": 2.0}, "stand_in": "A & B."}
    write_results(folder, ("FedAvg", "RADFed", "Never"), targets=[0.5, 0.535], **of_data)
    results = folder / "results.csv"
    # The third method has one run of each data set, and is worse than the others.
    lines = results.read_text().replace("FedAvg", "Local").splitlines()
    results.write_text("\n".join(line for line in lines if ",Never," not in line or ",Never,0,0," in line))
    change(results, lambda row: {"score": float(row["score"]) - 0.05} if row["method"] == "Never" else {})
    # Two versions of the code have run, and predicting one class reaches 25 % of the second data set.
    change(
        results,
        lambda row: {
            "code": row["code"] and ("2" if row["method"] == "RADFed" else "1"),
            "constant_score": "0.25" if row["data"] == "hard" else "0.1",
        },
    )
    table = json.loads(json.dumps(read_json(folder / "table.json")).replace("FedAvg", "Local"))
    table["data"]["soft"] |= {"validate_on_test": True, "smoothing": 2, "curves": ["val_acc", "val_loss"]}
    table["data"]["hard"] |= {"targets": [0.3], "stand_in": None}
    write_json(folder / "table.json", table)
    cells = folder / "cells"
    for cell in list(cells.glob("*-FedAvg-*")):
        cell.rename(str(cell).replace("FedAvg", "Local"))
    # Some runs end after their last aggregation, and some give guarantees of privacy.
    for number, aggregated in enumerate(([1, 0, 0], [0, 1, 0], [0, 0, 1])):
        rounds = iter(aggregated)
        curve = cells / f"hard-RADFed-{number}" / "curve.csv"
        change(curve, lambda row, rounds=rounds: {"fed/aggregated": next(rounds)})
    guarantees = {"soft-RADFed": "fed/epsilon", "soft-Local": "fed/example_epsilon", "hard-RADFed": "fed/epsilon"}
    for cell, epsilon in {**guarantees, "hard-Local": "fed/epsilon"}.items():
        for run in range(6):
            spent = {epsilon: 1.5 + 0.125 * run, epsilon.replace("epsilon", "delta"): 1.5e-4}
            change(cells / f"{cell}-{run}" / "curve.csv", lambda row, spent=spent: spent)
    clients = {
        "soft-Local-0": ["0,bonn,1,0.5", "1,lund,3,0.6"],
        "soft-Local-1": ["0,bonn,1,0.7"],
        "soft-RADFed-0": ["0,bonn,1,0.7", "1,lund,3,0.5", "2,pisa,2,0.3"],
        "soft-RADFed-1": ["0,bonn,1,0.9"],
        "soft-Never-0": ["1,lund,3,0.9"],
        "hard-Local-0": ["1,lund,3,0.6"],
        "hard-RADFed-0": ["1,lund,3,0.5"],
    }
    for cell, lines in clients.items():
        (cells / cell / "clients.csv").write_text("\n".join(["client,name,samples,test_acc", *lines]))
    versions = {"python": "3.11", "torch": "2.9", "lightning": "2.6", "numpy": "2.3"}
    for cell, day, seconds in (("soft-Local-0", 28, 60.0), ("soft-RADFed-5", 29, 120.0)):
        times = {"begun": f"2026-11-{day}T08:15:30+00:00", "ended": f"2026-11-{day}T09:20:30+00:00"}
        write_json(cells / cell / "run.json", {**versions, **times, "seconds": seconds, "device": "cpu"})
    tried = [(0.1, "0.5", "yes", ""), (1.0, "", "", "ValueError: x")]
    points = [["soft", "RADFed", json.dumps({"lr": lr}), *rest] for lr, *rest in tried]
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


# On paper: gaps of 1 to 6 have the mean 3.5 and the sd sqrt(3.5) = 1.87; all six pairs of one sign have p = 2 / 64.
# Five of -1 and one of 0 have the mean -5 / 6, and five pairs of one sign p = 2 / 32. The interval is
# 3.5 -+ 2.5706 * 1.8708 / sqrt(6), by t of 0.975 with 5 degrees. The ratio of means is (0.535 + 0.241667) / 0.75 - 1,
# the mean of ratios (7 - 3.3333) / 2. Of two data sets both signs are equal with probability 1 / 2.
# Clients: of two runs the means are 0.55 and 0.7 of Local, weighted 0.575 and 0.7, and 0.5 and 0.9 of RADFed, weighted
# 2.8 / 6 and 0.9; its gains are 0.2, -0.1 and 0.2. Of 0.5 and 0.7 the sd is 0.1414.
def test_the_page_holds_all_it_needs(tmp_path: Path) -> None:
    write_everything(tmp_path)
    path = experiment_report(tmp_path, tmp_path / "out")
    page = path.read_text(encoding="utf-8")
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert "<script" not in page
    inner = {link for link in re.findall(r'\b(?:src|href)="([^"]*)"', page) if not link.startswith("data:")}
    assert inner <= {f"#{name}" for name in re.findall(r'\bid="([^"]*)"', page)}
    assert_as_in(HERE / "everything.txt", shown(tmp_path / "out"), tmp_path)


LONG_NAME = "Never with a name of two lines"


def write_errors(folder: Path) -> None:
    """Write results of errors that are minimised, in three folds, with large ones, a single run and many clients."""
    # The fits have three rounds, or eight.
    sources = {"Paper": 3, "Report of the other group": 4}
    scores = {"RADFed": {"score": 0.4, "sd": 0.1}}
    theirs = {name: {"runs": 3, "rounds": rounds, "scores": scores} for name, rounds in sources.items()}
    paper = {LONG_NAME: 1.0, "RADFed": -2.0}
    write_results(folder, mode="min", published=theirs, paper=paper, targets=[0.42, 0.01], stand_in="Drawn.")
    path, results = folder / "table.json", folder / "results.csv"
    table = json.loads(json.dumps(read_json(path)).replace("_acc", "_mse").replace("Never", LONG_NAME))
    table |= {"folds": [0, 1, 2, 3], "among": "virtual"}
    # Of the last comparison only one data set has runs.
    table["comparisons"] |= {"One of/two" + " and more" * 9: ["gone", "odd", "soft"], "None": ["gone", "odd"]}
    table["data"]["hard"] |= {"stand_in": "Approximated.", "model": "$net"}
    write_json(path, table)
    # The errors of the second data set are large, and differ by little; the third method has one run of the first.
    change(results, lambda row: {"score": 1000 + 1e-6 * int(row["seed"])} if row["data"] == "hard" else {})
    other = {"rounds": 8, "partition": "9876543210"}
    change(results, lambda row: other if row["data"] == "odd" and row["method"] == "RADFed" else {})
    [*lines, _] = results.read_text().splitlines()
    lines += [line.replace(",RADFed,", f",{LONG_NAME},") for line in lines if line.startswith("soft,RADFed,1,1")]
    results.write_text("\n".join(line for line in lines if not line.startswith(("hard,FedAvg,1", "hard,RADFed,1"))))
    many = [f"{client},1,0.5" for client in range(101)]
    for cell, clients in (("soft-RADFed-0", many), ("hard-FedAvg-0", many[:2]), ("hard-RADFed-0", many[1:3])):
        (folder / "cells" / cell / "clients.csv").write_text("\n".join(["client,samples,test_mse", *clients]))
    curve = "\n".join(f"{number},{1 / number},5,{20 * number},0.1" for number in range(1, 31))
    for path in folder.glob("cells/soft-*/curve.csv"):
        path.write_text(f"round,val_mse,fed/clients,fed/models_sent,fed/divergence\n{curve}")
    # Nothing is known of what the runs of the last data set have sent.
    for path in folder.glob("cells/odd-*/curve.csv"):
        path.write_text("round,val_mse\n1,0.5")
    tried = ['soft,RADFed,"{""mu"": 1}",0.25,yes,', "hard,Never,{},,no score,E: x", "gone,RADFed,{},0.5,yes,"]
    (folder / "tuning.csv").write_text("\n".join(["data,method,values,val,chosen,error", *tried]))


def test_the_page_of_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Gaps of twelve runs in four folds: 2, 5, 5 and 5 with mean 4.25: the second fold is the first of the nearest.
    monkeypatch.setitem(GAPS, "soft", [1, 2, 3, 4, 5, 6, 4, 5, 6, 4, 5, 6])
    # One run of each method, of which the baseline's has no error and the other's is as large as the published one.
    monkeypatch.setitem(GAPS, "odd", [40])
    monkeypatch.setitem(BASE, "odd", 0.0)
    write_errors(tmp_path)
    experiment_report(tmp_path)
    assert_as_in(HERE / "errors.txt", shown(tmp_path / "report"), tmp_path)


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


DAMAGED = {
    "a score": ("results.csv", ",0.51,", ",0.5x,"),
    "a fold": ("results.csv", "soft,RADFed,0,", "soft,RADFed,?,"),
    "half a row": ("results.csv", ",0.51,", "\n"),
    "no score": ("results.csv", r"finished,[\d.-]+", "finished,"),
    "a table": ("table.json", '"among"', '"amid"'),
    "empty results": ("results.csv", "(?s).+", ""),
    "an empty curve": ("cells/soft-RADFed-0/curve.csv", "(?s).+", ""),
    "half a curve": ("cells/soft-RADFed-0/curve.csv", ",60,", ","),
    "a curve": ("cells/soft-RADFed-0/curve.csv", ",60,", ",x,"),
    "no results": ("results.csv", None, ""),
}


def test_damaged_results_are_named(tmp_path: Path) -> None:
    def damage(file: str, old: str | None, new: str, folder: Path) -> None:
        write_results(folder)
        text = (folder / file).read_text()
        (folder / file).rename(folder / "kept")
        if old is not None:
            (folder / file).write_text(re.sub(old, new, text))
        experiment_report(folder)

    lines = messages({name: partial(damage, *how) for name, how in DAMAGED.items()}, tmp_path)
    assert_as_in(HERE / "damaged.txt", lines, tmp_path)


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
