"""Scores, differences, tests and costs of results that are written by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.written_results import GAPS, write_results

from fl_lightning.experiment.statistics import signed_rank_test
from fl_lightning.report.communication import communication_grid, cost_to_target
from fl_lightning.report.comparison import paper_grid, rank_grid, relative_grid, score_grid
from fl_lightning.report.significance import power_sentences, significance_grid


def test_scores_are_means_and_sds_with_units_and_the_best_in_bold(tmp_path: Path) -> None:
    grid = score_grid(write_results(tmp_path))
    assert grid.header == ["data", "metric", "FedAvg", "RADFed"]
    # gaps 1 to 6: mean 3.5, sd sqrt(3.5) = 1.87; all six pairs of one sign have p = 2/64, so that they are marked
    assert grid.rows[0] == ["easy", "accuracy, %", "50.00 ± 0.00", "53.50 ± 1.87 †"]
    # five of -1 and one of 0: mean -5/6; five pairs of one sign have p = 2/32
    assert grid.rows[1] == ["hard", "accuracy, %", "25.00 ± 0.00", "24.17 ± 0.41"]
    assert grid.strong == {(0, 3), (1, 2)}
    assert "† better, ‡ worse" in grid.note


def test_a_significant_loss_is_marked_and_not_highlighted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAPS, "hard", [-1, -2, -3, -4, -5, -6])
    experiment = write_results(tmp_path)
    assert score_grid(experiment).rows[1][3] == "21.50 ± 1.87 ‡"
    significance, relative = significance_grid(experiment), relative_grid(experiment)
    assert significance is not None
    assert relative is not None
    assert significance.rows[1][-1] == "0.031 ‡"
    assert significance.strong == {(0, 8)}
    assert relative.strong == {(0, 3)}


def test_a_smaller_loss_is_a_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAPS, "hard", [-1, -2, -3, -4, -5, -6])
    experiment = write_results(tmp_path, score="test_loss", score_mode="min")
    assert score_grid(experiment).rows[1] == ["hard", "loss", "0.2500 ± 0.0000", "0.2150 ± 0.0187 †"]
    assert score_grid(experiment).rows[0][3].endswith("‡")
    relative = relative_grid(experiment)
    assert relative is not None
    assert relative.strong == {(1, 3)}


def test_more_of_a_negative_score_is_a_gain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helpers.written_results.BASE", {"easy": -0.5, "hard": -0.25})
    relative = relative_grid(write_results(tmp_path, score="test_loglik", monitor="val_loglik"))
    assert relative is not None
    # -0.5 + 0.035 is 7 % more than -0.5; the mean of -1, ..., -1, 0 on -0.25 is 3.33 % less
    assert [row[3] for row in relative.rows[:2]] == ["+7.00", "-3.33"]
    assert relative.strong == {(0, 3)}


def test_relative_differences_in_both_forms(tmp_path: Path) -> None:
    grid = relative_grid(write_results(tmp_path))
    assert grid is not None
    assert grid.rows == [
        ["easy", "accuracy, %", "50.00", "+7.00"],
        ["hard", "accuracy, %", "25.00", "-3.33"],
        ["ratio of means, 2 sets", "accuracy, %", "37.50", "+3.56"],  # (0.535 + 0.241667) / 0.75 - 1
        ["mean of ratios, 2 sets", "accuracy, %", "37.50", "+1.83"],  # (7 - 3.3333) / 2
    ]
    assert grid.strong == {(0, 3)}


def test_different_metrics_have_no_common_average(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    experiment.table["data"]["hard"]["score"] = "test_f1_clients"
    grid, ranks = relative_grid(experiment), rank_grid(experiment)
    assert grid is not None
    assert [row[:2] for row in grid.rows] == [["easy", "accuracy, %"], ["hard", "F1 (clients), %"]]
    assert "Data sets of different metrics have no common average" in grid.note
    assert ranks is not None
    assert ranks.header == ["method", "average rank"]  # no test of differences without a common scale


def test_significance_counts_pairs_and_zeros(tmp_path: Path) -> None:
    grid = significance_grid(write_results(tmp_path))
    assert grid is not None
    # t_{0.975, 5} = 2.5706; 3.5 -+ 2.5706 x 1.8708 / sqrt(6)
    first = ["easy", "RADFed", "accuracy, %", "+3.50", "[+1.54, +5.46]", "6", "0", "0.031", "0.031 †"]
    assert grid.rows[0] == first
    assert grid.rows[1][5:] == ["6", "1", "0.062", "0.062"]
    assert grid.strong == {(0, 8)}
    assert signed_rank_test([1, 2, 3, 4, 5, 6], [0] * 6).p_value == 0.03125


def test_ranks_and_the_paper(tmp_path: Path) -> None:
    experiment = write_results(tmp_path)
    ranks = rank_grid(experiment)
    assert ranks is not None
    assert [row[:2] for row in ranks.rows] == [["FedAvg", "1.50"], ["RADFed", "1.50"]]
    # two data sets: both signs equal has probability 1/2
    assert "with 2 data sets the smallest p-value is 0.500" in ranks.note
    paper = paper_grid(experiment)
    assert paper is not None
    assert paper.rows[0] == ["easy", "accuracy, %", "FedAvg", "50.00", "50.00", "", ""]
    assert paper.rows[1] == ["easy", "accuracy, %", "RADFed", "+7.00", "+2.00", "yes", "0.031"]
    assert paper.rows[3][5:] == ["not significant", "0.062"]
    assert paper_grid(write_results(tmp_path / "other", paper={})) is None


def test_data_sets_with_fewer_runs_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAPS, "hard", [1, 2])
    [text] = power_sentences(write_results(tmp_path))
    assert text.startswith("On hard with 2 pairs of runs no difference can be significant")


def test_cost_counts_models_in_rounds_of_fedavg(tmp_path: Path) -> None:
    curve = {
        "round": np.array([1.0, 2, 3]),
        "val_acc": np.array([np.nan, 0.4, 0.6]),
        "fed/clients": np.array([5.0, 3, 4]),
        "fed/dropped": np.array([0.0, 2, 1]),
        "fed/models_sent": np.array([20.0, 40, 60]),
    }
    # four vectors for each of five clients a round: three rounds count as six
    assert cost_to_target(curve, "val_acc", 0.5) == 6
    assert cost_to_target(curve, "val_acc", 0.4) == 4
    assert cost_to_target(curve, "val_acc", 0.7) is None
    assert cost_to_target(curve, "val_acc", 0.45, mode="min") == 4
    grid = communication_grid(write_results(tmp_path))
    assert grid is not None
    assert grid.header == ["data", "target", "FedAvg", "RADFed"]
    assert [row[1] for row in grid.rows] == ["accuracy ≥ 50 %"] * 2
    assert [row[2:] for row in grid.rows] == [["3", "6 (2.00x)"], ["3+ (0 of 6 runs)", "6+ (0 of 6 runs)"]]
    assert grid.strong == {(0, 2)}
    # RADFed's scores are 0.51 to 0.56
    partly = communication_grid(write_results(tmp_path / "partly", targets=[0.535]))
    assert partly is not None
    assert partly.rows[0][2:] == ["3+ (0 of 6 runs)", "6+ (3 of 6 runs)"]
