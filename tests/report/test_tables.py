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
from helpers.written_results import GAPS, write_results

from fl_lightning.experiment import read_table
from fl_lightning.experiment.files import read_json, write_json
from fl_lightning.report import experiment_report, figures, tables
from fl_lightning.report.drawing import style_of_column
from fl_lightning.report.names import Scale
from fl_lightning.report.notes import warnings_of
from fl_lightning.report.page import Table, is_bold, plain
from fl_lightning.report.reference import reference_sentence, reference_table
from fl_lightning.report.results import Results, read_results


def rows(table: Table | None) -> list[list[str]]:
    assert table is not None
    return table.flat.map(plain).to_numpy().tolist()


def bold(table: Table | None) -> list[tuple[int, int]]:
    assert table is not None
    rows = enumerate(table.flat.to_numpy().tolist())
    return [(row, column) for row, cells in rows for column, cell in enumerate(cells) if is_bold(cell)]


def test_a_screen_of_80_columns_has_methods_as_rows_and_a_star_for_the_best(written: Results) -> None:
    caption, _, *lines = tables.score_table(written).to_text(80).splitlines()
    assert caption == "Test scores: mean ± standard deviation over folds and seeds."
    assert [line.split() for line in lines[:4]] == [
        ["data", "easy", "hard"],
        ["metric", "accuracy,", "%", "accuracy,", "%"],
        ["FedAvg", "50.00", "±", "0.00", "25.00", "±", "0.00*"],
        ["RADFed", "53.50", "±", "1.87", "†*", "24.17", "±", "0.41"],
    ]
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


def write_clients(folder: Path, header: str, clients: dict[str, list[str]], **options: Any) -> Results:
    """Return results with the lines of ``clients.csv`` of some cells."""
    write_results(folder, **options)
    for cell, lines in clients.items():
        (folder / "cells" / cell / "clients.csv").write_text("\n".join([header, *lines]))
    return read_results(folder)


def results_beside_local(folder: Path, header: str, clients: dict[str, list[str]], **options: Any) -> Results:
    """Return results in which FedAvg is named Local, with the lines of ``clients.csv`` of one run of each method."""
    cells = {f"easy-{method.replace('Local', 'FedAvg')}-0": lines for method, lines in clients.items()}
    write_clients(folder, header, cells, **options)
    results, table = folder / "results.csv", folder / "table.json"
    results.write_text(results.read_text().replace(",FedAvg,", ",Local,"))
    write_json(table, json.loads(json.dumps(read_json(table)).replace("FedAvg", "Local")))
    return read_results(folder)


def test_what_single_clients_gain_over_training_alone(tmp_path: Path) -> None:
    clients = {"Local": ["0,1,0.5", "1,1,0.6", "2,2,0.1"], "RADFed": ["0,1,0.7", "1,1,0.5", "2,2,0.3"]}
    read = results_beside_local(tmp_path, "client,samples,test_acc", clients)
    # weighted: 1.3 / 4 and 1.8 / 4; gains of 0.2, -0.1 and 0.2
    assert [row[3:] for row in rows(tables.client_table(read))] == [
        ["40.00", "32.50", "10.00", "", ""],
        ["50.00", "45.00", "30.00", "+10.00", "33 %"],
    ]
    [picture] = figures.gains(read)
    assert picture.name == "gains-easy"


def test_the_worst_tenth_of_25_clients_is_two(tmp_path: Path) -> None:
    clients = {"Local": ["0,1,0.5"], "RADFed": [f"{client},1,{client / 100}" for client in range(1, 26)]}
    _, method = rows(tables.client_table(results_beside_local(tmp_path, "client,samples,test_acc", clients)))
    assert method[5] == "1.50"


@pytest.mark.parametrize(
    ("score", "mean", "gain"), [("test_acc_clients", "45.00", "-5.00"), ("test_acc_personal", "80.00", "+30.00")]
)
def test_scores_of_clients_are_of_the_model_that_the_table_s_score_names(
    tmp_path: Path, score: str, mean: str, gain: str
) -> None:
    """The gain is over the own model of Local in any case: its clients' shared model is nobody's who trains alone."""
    clients = {"Local": ["0,1,0.2,0.5"], "RADFed": ["0,1,0.45,0.8"]}
    read = results_beside_local(tmp_path, "client,samples,test_acc,test_acc_personal", clients, score=score)
    alone, method = rows(tables.client_table(read))
    assert (method[3], method[6]) == (mean, gain)
    assert alone[3] == ("20.00" if score == "test_acc_clients" else "50.00")


def test_each_clients_score_is_the_mean_over_the_runs_that_test_it(tmp_path: Path) -> None:
    clients = {
        "easy-FedAvg-0": ["0,bonn,4,0.5", "1,lund,6,0.8"],
        "easy-FedAvg-1": ["0,bonn,4,0.7", "1,lund,6,0.8"],
        "easy-RADFed-0": ["1,lund,6,0.9", "2,pisa,1,0.25"],
    }
    table = tables.client_score_table(write_clients(tmp_path, "client,name,samples,test_acc", clients))
    # 0.5 and 0.7 have the sample deviation 0.1414.
    assert rows(table) == [
        ["easy", "bonn", "4", "60.00 ± 14.14", ""],
        ["easy", "lund", "6", "80.00 ± 0.00", "90.00"],
        ["easy", "pisa", "1", "", "25.00"],
    ]
    assert bold(table) == [(1, 4)]


@pytest.mark.parametrize(
    ("header", "name", "is_shown"), [("client,samples", "", False), ("client,name,samples", ",bonn", True)]
)
def test_clients_of_other_partitions_are_the_same_by_their_names_alone(
    tmp_path: Path, header: str, name: str, is_shown: bool
) -> None:
    lines = [f"0{name},4,0.5"]
    write_clients(tmp_path, f"{header},test_acc", {"easy-FedAvg-0": lines, "easy-FedAvg-1": lines})
    results = tmp_path / "results.csv"
    results.write_text(results.read_text().replace("abcdef0123", "fedcba3210", 1))
    assert (tables.client_score_table(read_results(tmp_path)) is not None) == is_shown


def test_different_metrics_have_no_common_average(tmp_path: Path) -> None:
    results = write_results(tmp_path)
    results.table["data"]["hard"]["score"] = "test_f1_clients"
    table, ranks = tables.relative_table(results), tables.rank_table(results)
    assert [row[:2] for row in rows(table)] == [["easy", "accuracy, %"], ["hard", "F1 (clients), %"]]
    assert ranks is not None
    assert list(ranks.frame) == ["average rank"]  # no test of differences without a common scale


def test_very_small_and_very_large_numbers_are_powers_of_ten() -> None:
    assert [Scale(False, size).text(size) for size in (0.004, 2e9)] == ["4.000e-03", "2.000e+09"]


def test_a_published_number_is_met_within_two_standard_errors(tmp_path: Path) -> None:
    sources = {
        "a": {"scores": {"FedAvg": 51.0, "RADFed": {"score": 58.0, "sd": 1.5}, "Other": 1.0}},
        "b": {"runs": 3, "scores": {"FedAvg": {"score": 51.0, "sd": 0.4}, "RADFed": {"score": 56.0}}},
    }
    results = write_results(tmp_path, published=sources)
    # RADFed has six runs from 0.51 to 0.56, with a standard deviation of 1.87 points. Beside one run with 1.5 points
    # the error is sqrt(1.87² / 6 + 1.5²) = 1.68, beside three runs without one sqrt(1.87² / 6 + 1.87² / 3) = 1.32.
    assert rows(tables.published_table(results))[:4] == [
        ["easy", "FedAvg", "a", "not said", "51.00", "50.00 ± 0.00", "6", "-1.00", "0.00", "no"],
        ["easy", "RADFed", "a", "not said", "58.00 ± 1.50", "53.50 ± 1.87", "6", "-4.50", "1.68", "no"],
        ["easy", "FedAvg", "b", "not said", "51.00 ± 0.40", "50.00 ± 0.00", "6", "-1.00", "0.23", "no"],
        ["easy", "RADFed", "b", "not said", "56.00", "53.50 ± 1.87", "6", "-2.50", "1.32", "yes"],
    ]
    assert tables.published_table(write_results(tmp_path / "none")) is None


def test_fits_of_fewer_rounds_than_theirs_neither_meet_a_published_number_nor_miss_it(tmp_path: Path) -> None:
    # The fits here have three rounds.
    scores = {"FedAvg": 51.0, "RADFed": {"score": 54.0, "sd": 1.0}}
    sources = {str(rounds): {"rounds": rounds, "scores": scores} for rounds in (3, 4)}
    found = rows(tables.published_table(write_results(tmp_path, published=sources)))[:4]
    assert [(row[1], row[2], row[-1]) for row in found] == [
        ("FedAvg", "3", "no"), ("RADFed", "3", "yes"), ("FedAvg", "4", ""), ("RADFed", "4", ""),
    ]  # fmt: skip


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


def without_rows(folder: Path, start: str) -> Results:
    """Return results without the rows that begin so."""
    write_results(folder)
    lines = (folder / "results.csv").read_text().splitlines(keepends=True)
    (folder / "results.csv").write_text("".join(line for line in lines if not line.startswith(start)))
    return read_results(folder)


def test_a_method_without_runs_on_a_data_set_leaves_its_cells_empty(tmp_path: Path) -> None:
    results = without_rows(tmp_path, "hard,RADFed")
    assert rows(tables.score_table(results))[1] == ["hard", "accuracy, %", "25.00 ± 0.00", ""]
    assert [row[3] for row in rows(tables.relative_table(results))] == ["+7.00", ""]
    assert tables.rank_table(results) is None
    assert rows(tables.finished_table(results)) == [["easy", "6", "6", "0"], ["hard", "6", "0", "0"]]
    none = tables.finished_table(without_rows(tmp_path / "none", "hard"))
    assert rows(none) == [["easy", "6", "6", "0"], ["hard", "0", "0", "0"]]


def test_runs_without_a_score_are_listed(tmp_path: Path) -> None:
    write_results(tmp_path)
    results = tmp_path / "results.csv"
    results.write_text(results.read_text().replace(",0.51,", ",nan,", 1))
    assert rows(tables.failed_table(read_results(tmp_path))) == [
        ["hard", "RADFed", "2", "0", "ValueError: x"],
        ["easy", "RADFed", "0", "0", "`test_acc` is nan: the model may have diverged."],
    ]


def test_results_at_the_level_of_chance_are_told(tmp_path: Path) -> None:
    results = write_results(tmp_path)
    assert not any("level of chance" in sentence for sentence in warnings_of(results))
    results.scored["constant_score"] = 0.25  # the means on the second set are 0.25 and 0.2417
    [sentence] = [sentence for sentence in warnings_of(results) if "level of chance" in sentence]
    assert "FedAvg, RADFed on hard" in sentence and "up to 25.00 %" in sentence


def test_cost_counts_models_in_rounds_of_fedavg(tmp_path: Path) -> None:
    curve = "round,val_acc,fed/clients,fed/dropped,fed/models_sent\n1,,5,0,20\n2,0.4,3,2,40\n3,0.6,4,1,60\n"
    write_results(tmp_path, targets=[0.5])
    (tmp_path / "cells" / "easy-RADFed-0" / "curve.csv").write_text(curve)
    results = read_results(tmp_path)
    run = ("easy", "RADFed", 0, 0)
    # four vectors for each of five clients a round: three rounds count as six
    for target, cost in ((0.5, 6), (0.4, 4), (0.7, float("nan"))):
        costs = tables.costs_to_target(results, "easy", target)
        assert costs.loc[run].tolist() == pytest.approx([cost, 6], nan_ok=True)
    results.table["data"]["easy"]["mode"] = "min"
    assert tables.costs_to_target(results, "easy", 0.45).loc[run, "cost"] == 4


def test_cost_of_methods_to_targets(tmp_path: Path) -> None:
    # RADFed's scores are 0.51 to 0.56
    partly = tables.communication_table(write_results(tmp_path, targets=[0.535]))
    assert rows(partly)[0][2:] == ["3+ (0 of 6 runs)", "6+ (3 of 6 runs)"]


def test_the_largest_epsilon_of_a_methods_runs(written: Results, tmp_path: Path) -> None:
    assert tables.privacy_table(written) is None
    write_results(tmp_path)
    kinds = {"RADFed": "fed/epsilon,fed/delta", "FedAvg": "fed/example_epsilon,fed/example_delta"}
    for method, names in kinds.items():
        for run in range(6):
            curve = tmp_path / "cells" / f"easy-{method}-{run}" / "curve.csv"
            header, *lines = curve.read_text().splitlines()
            spent = [f"{line},{0.5 * place + 0.125 * run},0.00015" for place, line in enumerate(lines, start=1)]
            curve.write_text("\n".join([f"{header},{names}", *spent]))
    assert rows(tables.privacy_table(read_results(tmp_path))) == [
        ["easy", "a client, from other clients", "", "2.12 at 0.00015"],
        ["easy", "a sample, from the server too", "2.12 at 0.00015", ""],
    ]


def test_many_columns_become_rows(written: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    index = pd.MultiIndex.from_tuples([("a", "loss")], names=["data", "metric"])
    wide = pd.DataFrame([["0", "**1**", *"23456"]], index, [f"m{number}" for number in range(7)])
    turned = Table("g", "c", wide).turned_if_wide("method")
    assert list(turned.flat.columns) == ["method", "a, loss"]
    assert rows(turned) == [[f"m{number}", str(number)] for number in range(7)]
    assert bold(turned) == [(1, 1)]
    six = Table("g", "c", wide.iloc[:, :6])
    assert six.turned_if_wide("method") is six
    # The scores of many methods are turned in a report.
    monkeypatch.setattr(tables, "score_table", lambda results: Table("g", "c", wide))
    section = next(experiment_report.__globals__["_sections"](written))
    assert list(section.tables[0].flat.columns) == ["method", "a, loss"]


def test_a_table_as_latex_and_csv() -> None:
    frame = pd.DataFrame({"score": ["**-1.5 ± 0.2**", "2"]}, index=pd.Index(["a<b", "c-d"], name="name_1"))
    table = Table("g", "50 % & more", frame)
    latex = table.to_latex()
    assert r"name\_1 & score \\" in latex
    assert r"a$<$b & \bfseries $-$1.5 $\pm$ 0.2 \\" in latex
    assert r"c-d & 2 \\" in latex
    assert r"\caption{50 \% \& more}" in latex
    assert table.to_csv() == "name_1,score\na<b,-1.5 ± 0.2\nc-d,2\n"


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
    own = small(reference=small(), trainer={"max_epochs": 6, "accelerator": "cpu"}, seeds=[0, 1])
    own["methods"]["FedAvg"]["callback"]["init_args"]["clients_per_round"] = 3
    # Where files are kept is no difference.
    own["data"]["digits"]["datamodule"]["init_args"]["partitioner"]["init_args"]["cache_dir"] = "elsewhere"
    results = replace(write_results(tmp_path / "results"), table=asdict(read_table(own)))
    found = reference_table(results)
    assert found is not None
    # Settings are no numbers, whose minus is longer than a hyphen.
    assert found.numbers == []
    assert rows(found) == [
        ["the table", "seeds", "2", "1"],
        ["digits", "rounds", "6", "4"],
        ["FedAvg", "callback.clients_per_round", "3", "2"],
    ]
    six = {f"d{number}": own["data"]["digits"] for number in range(6)}
    own |= {"data": six, "reference": small(data=six), "reproduces": "A & B, Table 2"}
    results = replace(results, table=asdict(read_table(own)))
    assert reference_sentence(results) == (
        "The settings are not those of A & B, Table 2: seeds: 2 of 1; rounds: 6 of 4 (d0, d1, d2, d3 and 2 more); 1 "
        "other setting. No number here is a reproduction of one there. All differences are listed below."
    )
    assert reference_sentence(results) in warnings_of(results)
    found = reference_table(results)
    assert rows(found)[1][0] == "all data sets"
    assert found is not None and found.caption == "Settings that are not those of A & B, Table 2."
