"""Scores, differences, tests and costs of results that are written by hand."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from helpers.small_table import small
from helpers.written import assert_as_in
from helpers.written_results import BASE, GAPS, write_results

from fl_lightning.experiment import read_table
from fl_lightning.experiment.files import read_json, write_json
from fl_lightning.report import experiment_report, figures, tables
from fl_lightning.report.drawing import style_of_column
from fl_lightning.report.names import Scale
from fl_lightning.report.notes import power_sentences, warnings_of
from fl_lightning.report.page import Table, is_bold, plain
from fl_lightning.report.reference import reference_sentence, reference_table
from fl_lightning.report.results import Results, read_results

HERE = Path(__file__).parent


def rows(table: Table | None) -> list[list[str]]:
    assert table is not None
    return table.flat.map(plain).to_numpy().tolist()


def bold(table: Table | None) -> list[tuple[int, int]]:
    assert table is not None
    rows = enumerate(table.flat.to_numpy().tolist())
    return [(row, column) for row, cells in rows for column, cell in enumerate(cells) if is_bold(cell)]


def test_a_screen_of_80_columns_has_methods_as_rows_and_a_star_for_the_best(written: Results, tmp_path: Path) -> None:
    assert_as_in(HERE / "screen.txt", tables.score_table(written).to_text(80).splitlines(), tmp_path)
    narrow = tables.score_table(written).to_text(36).splitlines()
    assert max(map(len, narrow[2:])) <= 36
    assert [line.split()[:1] for line in narrow].count(["RADFed"]) == 2


def test_a_significant_loss_is_marked_and_not_highlighted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The smallest of nine differences is a gain: no other sign of 512 but the ranks' sum of 0 is as extreme.
    monkeypatch.setitem(GAPS, "hard", [1, -2, -3, -4, -5, -6, -7, -8, -9])
    results = write_results(tmp_path)
    # The mean is -43 / 9, and the squares are 285 together.
    assert rows(tables.score_table(results))[1][3] == "20.22 ± 3.15 ‡"
    assert rows(tables.significance_table(results))[1][-1] == "0.008 ‡"
    assert bold(tables.significance_table(results)) == [(0, 8)]
    assert bold(tables.relative_table(results)) == [(0, 3)]
    # Gaps of the folds are -4 / 3, -5 and -8. The method counts that is the last, if none is RADFed.
    other = replace(results, runs=results.runs.replace("RADFed", "Never"))
    assert figures.representative_fold(other, "hard") == 1


def write_clients(folder: Path, header: str, clients: dict[str, list[str]], **options: Any) -> Results:
    """Return results with the lines of ``clients.csv`` of some cells."""
    write_results(folder, **options)
    for cell, lines in clients.items():
        (folder / "cells" / cell / "clients.csv").write_text("\n".join([header, *lines]))
    return read_results(folder)


def results_beside_local(folder: Path, header: str, clients: dict[str, list[str]], **options: Any) -> Results:
    """Return results in which FedAvg is named Local, with the lines of ``clients.csv`` of some runs."""
    cells = {f"soft-{run.replace('Local', 'FedAvg')}": lines for run, lines in clients.items()}
    write_clients(folder, header, cells, **options)
    results, table = folder / "results.csv", folder / "table.json"
    results.write_text(results.read_text().replace(",FedAvg,", ",Local,"))
    write_json(table, json.loads(json.dumps(read_json(table)).replace("FedAvg", "Local")))
    return read_results(folder)


def test_the_worst_tenth_of_25_clients_is_two(tmp_path: Path) -> None:
    clients = {"Local-0": ["0,1,0.5"], "RADFed-0": [f"{client},1,{client / 100}" for client in range(1, 26)]}
    _, method = rows(tables.client_table(results_beside_local(tmp_path, "client,samples,test_acc", clients)))
    assert method[5] == "1.50"


@pytest.mark.parametrize(
    ("score", "mean", "gain"), [("test_acc_clients", "45.00", "-5.00"), ("test_acc_personal", "80.00", "+30.00")]
)
def test_scores_of_clients_are_of_the_model_that_the_table_s_score_names(
    tmp_path: Path, score: str, mean: str, gain: str
) -> None:
    """The gain is over the own model of Local in any case: its clients' shared model is nobody's who trains alone."""
    clients = {"Local-0": ["0,1,0.2,0.5"], "RADFed-0": ["0,1,0.45,0.8"]}
    read = results_beside_local(tmp_path, "client,samples,test_acc,test_acc_personal", clients, score=score)
    alone, method = rows(tables.client_table(read))
    assert (method[3], method[6]) == (mean, gain)
    assert alone[3] == ("20.00" if score == "test_acc_clients" else "50.00")


@pytest.mark.parametrize(
    ("header", "name", "is_shown"), [("client,samples", "", False), ("client,name,samples", ",bonn", True)]
)
def test_clients_of_other_partitions_are_the_same_by_their_names_alone(
    tmp_path: Path, header: str, name: str, is_shown: bool
) -> None:
    lines = [f"0{name},4,0.5"]
    write_clients(tmp_path, f"{header},test_acc", {"soft-FedAvg-0": lines, "soft-FedAvg-1": lines})
    results = tmp_path / "results.csv"
    results.write_text(results.read_text().replace("abcdef0123", "fedcba3210", 1))
    assert (tables.client_score_table(read_results(tmp_path)) is not None) == is_shown


def test_different_metrics_have_no_common_average(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, base in (("c", 0.4), ("d", 0.8), ("e", 0.5)):
        monkeypatch.setitem(BASE, name, base)
        monkeypatch.setitem(GAPS, name, [2, 6])
    results = write_results(tmp_path, ("FedAvg", "RADFed", "Never"))
    for name, score in (("c", "test_f1_clients"), ("d", "test_f1_clients"), ("e", "test_auroc")):
        results.table["data"][name]["score"] = score
    table, ranks = tables.relative_table(results), tables.rank_table(results)
    # Gains of 3.5 of 50 and of -5 / 6 of 25, and of 4 of 40, 80 and 50.
    assert_as_in(HERE / "averages.txt", map(str, rows(table)), tmp_path)
    # No test of differences without a common scale. RADFed is the first of four data sets, and the last of one.
    assert rows(ranks) == [["RADFed", "1.40"], ["FedAvg", "2.30"], ["Never", "2.30"]]


def test_very_small_and_very_large_numbers_are_powers_of_ten() -> None:
    assert [Scale(False, size).text(size) for size in (0.004, 2e9)] == ["4.000e-03", "2.000e+09"]
    assert Scale(False, 0.004).text(0.0) == "0"
    # A number of six digits and more has no decimals, and one of three has three.
    assert [Scale(False, size).text(size) for size in (100, 1234567.8)] == ["100.000", "1234568"]


def test_a_published_number_is_met_within_two_standard_errors(tmp_path: Path) -> None:
    sources = {
        "a": {"scores": {"FedAvg": 51.0, "RADFed": {"score": 58.0, "sd": 1.5}, "Other": 1.0}},
        "b": {"runs": 3, "scores": {"FedAvg": {"score": 51.0, "sd": 0.4}, "RADFed": {"score": 56.0}}},
    }
    results = write_results(tmp_path, published=sources)
    # RADFed has six runs from 0.51 to 0.56, with a standard deviation of 1.87 points. Beside one run with 1.5 points
    # the error is sqrt(1.87² / 6 + 1.5²) = 1.68, beside three runs without one sqrt(1.87² / 6 + 1.87² / 3) = 1.32.
    assert_as_in(HERE / "published.txt", map(str, rows(tables.published_table(results))[:4]), tmp_path)
    assert tables.published_table(write_results(tmp_path / "none")) is None


def test_a_published_number_is_compared_with_the_score_of_the_same_model(tmp_path: Path) -> None:
    def beside(folder: str, select: str, scores: dict[str, float], **changes: Any) -> list[str]:
        published = {"a": {"select": select, "scores": scores}}
        results = write_results(tmp_path / folder, published=published, **changes)
        return rows(tables.published_table(results))[0][3:]

    # The curves of RADFed on the first data set end with 51 to 56 %, and have 40 % before; the second one with 24 %.
    on_test = {"validate_on_test": True, "monitor": "val_acc", "score": "test_acc"}
    assert beside("last", "last", {"RADFed": 53.0}, **on_test)[2] == "53.50 ± 1.87"
    best = write_results(
        tmp_path / "best", published={"a": {"select": "best on test", "scores": {"RADFed": 41.0}}}, **on_test
    )
    assert [row[5] for row in rows(tables.published_table(best))] == ["53.50 ± 1.87", "40.00 ± 0.00"]
    # No curve says which of its rounds is the best on validation.
    assert replace(best, table={**best.table, "select": "last"}).scores_by("best on validation", "soft") is None
    # Where smaller scores are better, the smallest of a curve is the best.
    assert beside("min", "best on test", {"RADFed": 39.0}, **on_test, mode="min")[2] == "40.00 ± 0.00"
    # Without the test set's curves, or with those of another metric, nothing here is of that model.
    unknown = ["best on test", "53.00", "", "", "", "", ""]
    assert beside("none", "best on test", {"RADFed": 53.0}) == unknown
    other = {**on_test, "score": "test_f1"}
    assert beside("other", "best on test", {"RADFed": 53.0}, **other) == unknown


def test_scores_that_were_selected_on_the_test_set_say_so(tmp_path: Path) -> None:
    write_results(tmp_path, validate_on_test=True)
    table = read_json(tmp_path / "table.json")
    write_json(tmp_path / "table.json", {**table, "select": "best on test"})
    results = read_results(tmp_path)
    assert rows(tables.score_table(results))[0][1] == "accuracy, best on test, %"
    assert "best of all rounds on the test set" in " ".join(warnings_of(results))


def without_rows(folder: Path, *start: str) -> Results:
    """Return results without the rows that begin so."""
    write_results(folder)
    lines = (folder / "results.csv").read_text().splitlines(keepends=True)
    (folder / "results.csv").write_text("".join(line for line in lines if not line.startswith(start)))
    return read_results(folder)


def test_a_data_set_without_runs_is_in_the_table_of_finished_ones(tmp_path: Path) -> None:
    finished = tables.finished_table(without_rows(tmp_path, "hard"))
    assert rows(finished) == [["soft", "6", "6", "0"], ["hard", "0", "0", "0"]]


@pytest.mark.usefixtures("without_drawing")
def test_without_runs_of_the_baseline_nothing_is_compared_with_it(tmp_path: Path) -> None:
    results = without_rows(tmp_path, "soft,FedAvg", "hard,FedAvg")
    assert rows(tables.score_table(results)) == [
        ["soft", "accuracy, %", "53.50 ± 1.87"],
        ["hard", "accuracy, %", "24.17 ± 0.41"],
    ]
    assert tables.relative_table(results) is tables.significance_table(results) is tables.paper_table(results) is None
    assert figures.representative_fold(results, "soft") is None
    assert [*power_sentences(results), *figures.comparisons(results)] == []
    # Nor is there anything to compare it with, where it is the only method.
    alone = write_results(tmp_path / "alone", ["FedAvg"])
    assert [picture.name for picture in figures.comparisons(alone)] == ["across-Ease-val_acc"]


def test_runs_without_a_score_are_listed(tmp_path: Path) -> None:
    write_results(tmp_path)
    results = tmp_path / "results.csv"
    results.write_text(results.read_text().replace(",0.51,", ",nan,", 1).replace(",0.52,", ",inf,", 1))
    assert rows(tables.failed_table(read_results(tmp_path))) == [
        ["hard", "RADFed", "2", "0", "ValueError: x"],
        ["soft", "RADFed", "0", "0", "`test_acc` is nan: the model may have diverged."],
        ["soft", "RADFed", "0", "1", "`test_acc` is inf: the model may have diverged."],
    ]


def test_cost_counts_models_in_rounds_of_fedavg(tmp_path: Path) -> None:
    curve = "round,val_acc,fed/clients,fed/dropped,fed/models_sent\n1,,5,0,20\n2,0.4,3,2,40\n3,0.6,4,1,60\n"
    write_results(tmp_path, targets=[0.5])
    (tmp_path / "cells" / "soft-RADFed-0" / "curve.csv").write_text(curve)
    results = read_results(tmp_path)
    run = ("soft", "RADFed", 0, 0)
    # four vectors for each of five clients a round: three rounds count as six
    for target, cost in ((0.5, 6), (0.4, 4), (0.7, float("nan"))):
        costs = tables.costs_to_target(results, "soft", target)
        assert costs.loc[run].tolist() == pytest.approx([cost, 6], nan_ok=True)
    results.table["data"]["soft"]["mode"] = "min"
    assert tables.costs_to_target(results, "soft", 0.45).loc[run, "cost"] == 4


def test_many_columns_become_rows(written: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    index = pd.MultiIndex.from_tuples([("digits", "loss"), ("plays", "loss")], names=["data", "metric"])
    cells = [["0", "**1**", *"23456"], list("abcdefg")]
    wide = pd.DataFrame(cells, index, [f"m{number}" for number in range(7)])
    turned = Table("g", "c", wide).turned_if_wide("method")
    assert list(turned.flat.columns) == ["method", "digits, loss", "plays, loss"]
    assert rows(turned) == [[f"m{number}", str(number), "abcdefg"[number]] for number in range(7)]
    assert bold(turned) == [(1, 1)]
    of_data = Table("g", "c", wide.droplevel("metric")).turned_if_wide("method")
    assert list(of_data.flat.columns) == ["method", "digits", "plays"]
    six = Table("g", "c", wide.iloc[:, :6])
    assert six.turned_if_wide("method") is six
    # The scores of many methods are turned in a report.
    monkeypatch.setattr(tables, "score_table", lambda results: Table("g", "c", wide))
    section = next(experiment_report.__globals__["_sections"](written))
    assert list(section.tables[0].flat.columns) == ["method", "digits, loss", "plays, loss"]


def test_a_table_as_latex_and_csv() -> None:
    # Stars on one side alone, and three of them, are not those of a text in bold.
    cells = {"score": ["**-1.5 ± 0.2**", "2", "***"]}
    frame = pd.DataFrame(cells, index=pd.Index(["a<b", "c-d", "**options"], name="name_1"))
    table = Table("g", "50 % & more", frame)
    latex = table.to_latex()
    assert "\\begin{tabular}{lr}\n\\toprule\nname\\_1 & score \\\\" in latex
    assert r"a$<$b & \bfseries $-$1.5 $\pm$ 0.2 \\" in latex
    assert r"c-d & 2 \\" in latex
    assert r"\caption{50 \% \& more}" in latex
    assert table.to_csv() == "name_1,score\na<b,-1.5 ± 0.2\nc-d,2\n**options,***\n"


UNUSUAL = "μ=0.1, Δη≤10⁻³, x₂ → ∞, R² of Γ_1 & √~50 % {a|b} #1 ^ \\ … é ß Ω°"


def test_greek_letters_and_signs_are_commands_of_latex() -> None:
    frame = pd.DataFrame({"score": ["1"]}, index=pd.Index([UNUSUAL], name="method"))
    [row] = [line for line in Table("t", "μ", frame).to_latex().splitlines() if line.startswith("$")]
    for command in (
        r"$\mu$=0.1",
        r"$\Delta$$\eta$$\leq$10$^-$$^3$",
        "x$_2$ $\\rightarrow$ $\\infty$",
        r"R$^2$ of $\Gamma$\_1",
    ):
        assert command in row


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_tables_and_figures_are_what_latex_takes(written: Results, tmp_path: Path) -> None:
    significance = tables.significance_table(written)
    assert significance is not None
    made = [tables.score_table(written), significance]
    frame = pd.DataFrame({"score": ["1"]}, index=pd.Index([UNUSUAL], name="method"))
    made.append(Table("unusual", UNUSUAL, frame, UNUSUAL))
    with style_of_column():
        (tmp_path / "curve.pdf").write_bytes(next(figures.curves(written)).files["pdf"])
    content = [table.to_latex() for table in made] + [r"\includegraphics{curve.pdf}"]
    head = r"\documentclass[twocolumn]{article}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "all.tex").write_text("\n".join([head, *content, r"\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-1000:]
    assert (tmp_path / "all.pdf").exists()


def test_all_differences_from_the_table_of_reference_are_told(tmp_path: Path) -> None:
    own = small(trainer={"max_epochs": 6, "accelerator": "cpu"}, seeds=[0, 1], select="last")
    own["data"]["clone"] = own["data"]["digits"]
    own["reference"] = small(data=own["data"])
    methods = own["methods"]
    methods["Ours"] = small()["methods"]["FedAvg"]
    for method in ("FedAvg", "RADFed"):
        methods[method]["callback"]["init_args"]["clients_per_round"] = 3
    # Of a value the first 59 characters are shown, unless it has 60.
    methods["RADFed"]["callback"]["init_args"]["redistributions"] = list(range(24))
    methods["FedAvg"]["callback"]["init_args"]["mu"] = [*range(16), 1000]
    # Where files are kept is no difference.
    own["data"]["digits"]["datamodule"]["init_args"]["partitioner"]["init_args"]["cache_dir"] = "elsewhere"
    results = replace(write_results(tmp_path / "results"), table=asdict(read_table(own)))
    found = reference_table(results)
    assert found is not None
    # Settings are no numbers, whose minus is longer than a hyphen.
    assert found.numbers == []
    assert_as_in(HERE / "differences.txt", map(str, rows(found)), tmp_path)
    six = {f"d{number}": own["data"]["digits"] for number in range(6)}
    own |= {"data": six, "reference": small(data=six), "reproduces": "A & B, Table 2", "select": "best on validation"}
    del methods["Ours"], methods["FedAvg"]["callback"]["init_args"]["mu"]
    methods["RADFed"]["callback"]["init_args"]["redistributions"] = 2
    results = replace(results, table=asdict(read_table(own)))
    assert reference_sentence(results) == (
        "The settings are not those of A & B, Table 2: seeds: 2 of 1; rounds: 6 of 4 (d0, d1, d2, d3 and 2 more); 1 "
        "other setting. No number here is a reproduction of one there. All differences are listed below."
    )
    assert reference_sentence(results) in warnings_of(results)
    found = reference_table(results)
    assert rows(found)[2][0] == "all methods"
    assert found is not None and found.caption == "Settings that are not those of A & B, Table 2."
    only = replace(results, table=asdict(read_table(small(seeds=[0, 1], reference=small()))))
    assert ": seeds: 2 of 1. No number" in reference_sentence(only)
    # A reference of another version may have other entries.
    assert reference_table(replace(results, table={**results.table, "reference": {"name": 1}})) is None
