"""Figures of the page on RADFed, and its claims, are those of the raw files.

Folds and settings are those of the files: with a further fold in a file, these tests ask for its row on the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from statistics import mean, stdev

import pytest
from helpers.result_pages import cells, claim, listed, read, rows_of, signed, text_of, with_spread
from scipy.stats import wilcoxon

RADFED = "reproduction/radfed.md"
METHODS = ("FedAvg", "FedAvg-uniform", "RADFed")
RERUN = ("FedAvg-uniform", "RADFed", "RADFedi")


def long_scores() -> dict[str, dict[int, float]]:
    """Return the test F1 in % by method and fold, of 20,000 rounds of COVFEAT-L."""
    rows = rows_of("covfeat_l_20000_results.csv")
    return {m: {int(r["fold"]): 100 * float(r["score"]) for r in rows if r["method"] == m} for m in METHODS}


FOLDS = sorted(long_scores()["RADFed"])


def curves(fold: int) -> dict[str, list[float]]:
    found = read("covfeat_l_20000.csv" if fold == 0 else f"covfeat_l_20000_fold{fold}.csv")
    assert found["round"] == [100.0 * number for number in range(1, 201)]
    return found


def tenths(curve: Sequence[float]) -> list[float]:
    return [mean(curve[start : start + 20]) for start in range(0, 200, 20)]


def lead(fold: int, baseline: str) -> list[float]:
    """Return by how many points the tenths of RADFed lie above those of another method."""
    both = zip(tenths(curves(fold)["RADFed"]), tenths(curves(fold)[baseline]), strict=True)
    return [100 * (ours - theirs) for ours, theirs in both]


def spread(fold: int, method: str) -> float:
    return stdev(curves(fold)[method][100:])


SETTINGS = list(dict.fromkeys(row["data"] for row in rows_of("radfed_reduced.csv")))


def short_scores(data: str, method: str) -> list[float]:
    """Return the six test scores in % of the reduced table, in the order of folds and seeds."""
    rows = [row for row in rows_of("radfed_reduced.csv") if (row["data"], row["method"]) == (data, method)]
    assert sorted((row["fold"], row["seed"]) for row in rows) == [(f, s) for f in "01" for s in "012"]
    return [100 * float(row["score"]) for row in sorted(rows, key=lambda row: (row["fold"], row["seed"]))]


def relative(scores: Iterable[float], baselines: Iterable[float]) -> float:
    return 100 * (mean(scores) / mean(baselines) - 1)


def p_value(data: str, method: str) -> float:
    return float(wilcoxon(short_scores(data, method), short_scores(data, RERUN[0])).pvalue)


# ---- COVFEAT-L, 20,000 rounds ----


@pytest.mark.parametrize("method", METHODS)
def test_tenths_of_the_long_runs_are_those_of_the_raw_curves(method: str) -> None:
    assert cells(RADFED, f"{method}, tenths") == [f"{value:.3f}" for value in tenths(curves(0)[method])]


@pytest.mark.parametrize("method", METHODS)
def test_fold_0_is_that_of_the_raw_files(method: str) -> None:
    [row] = [r for r in rows_of("covfeat_l_20000_results.csv") if (r["method"], r["fold"]) == (method, "0")]
    best = max(curves(0)[method])
    assert float(row["val"]) == pytest.approx(best, abs=5e-5)
    assert curves(0)["round"][curves(0)[method].index(best)] == int(row["best_round"])
    own, scores = long_scores()[method][0], long_scores()
    to_size, to_uniform = (
        "" if method == other else f"{signed(relative([own], [scores[other][0]]))} %" for other in METHODS[:2]
    )
    shown = [f"{best:.3f}", f"{int(row['best_round']):,}", f"{own:.2f} %", to_size, to_uniform]
    # the methods share their names with rows of the other tables
    [line] = re.findall(rf"^\| {method} \| (0\.\d+ .*) \|$", text_of(RADFED), re.MULTILINE)
    assert [cell.strip() for cell in line.split("|")] == [*shown, f"{spread(0, method):.3f}"]


@pytest.mark.parametrize("fold", FOLDS)
def test_every_fold_has_its_scores_and_its_curves(fold: int) -> None:
    scores = {method: by_fold[fold] for method, by_fold in long_scores().items()}
    relatives = [f"{signed(relative([scores['RADFed']], [scores[other]]))} %" for other in METHODS[:2]]
    leads = [f"{signed(min(lead(fold, other)), 1)} to {signed(max(lead(fold, other)), 1)}" for other in METHODS[:2]]
    spreads = [f"{100 * spread(fold, method):.1f}" for method in METHODS]
    [of_scores] = re.findall(rf"^\| {fold} \| (\d\d\.\d\d .*) \|$", text_of(RADFED), re.MULTILINE)
    [of_curves] = re.findall(rf"^\| {fold} \| (\S+ to .*) \|$", text_of(RADFED), re.MULTILINE)
    assert of_scores.split(" | ") == [*(f"{score:.2f}" for score in scores.values()), *relatives]
    assert of_curves.split(" | ") == [*leads, *spreads]


def test_the_means_over_folds_are_those_of_the_file() -> None:
    scores = {method: list(by_fold.values()) for method, by_fold in long_scores().items()}
    relatives = [relative(scores["RADFed"], scores[other]) for other in METHODS[:2]]
    shown = [with_spread(scores[method], 2) for method in METHODS]
    assert cells(RADFED, "mean ± sd") == [*shown, *(f"{signed(value)} %" for value in relatives)]


def test_what_is_said_of_the_long_runs_is_true() -> None:
    scores, folds = {method: list(by_fold.values()) for method, by_fold in long_scores().items()}, len(FOLDS)
    gain = relative(scores["FedAvg-uniform"], scores["FedAvg"])
    leads = {other: [value for fold in FOLDS for value in lead(fold, other)] for other in METHODS[:2]}
    below, above = -min(leads["FedAvg-uniform"]), max(leads["FedAvg-uniform"])
    steadier = sum(spread(f, "RADFed") < min(spread(f, other) for other in METHODS[:2]) for f in FOLDS)
    least = 2 / 2**folds  # of Wilcoxon's signed ranks, if all differences have one sign
    text = text_of(RADFED)
    assert f"FedAvg-uniform is {gain:.2f} % above FedAvg by size" in text
    won = sum(value > 0 for value in leads["FedAvg"])
    points = f"by {signed(min(leads['FedAvg']), 1)} to {signed(max(leads['FedAvg']), 1)} points"
    assert f"in {won} of the {10 * folds} tenths, {points}" in text
    p_values = [wilcoxon(scores["RADFed"], scores[other]).pvalue for other in METHODS[:2]]
    assert f"p is {p_values[0]:.2g}, and the smallest possible p is {least:.2g}" in text
    assert f"p = {p_values[1]:.2g})" in text
    assert f"between {below:.1f} points below and {above:.1f} above" in text
    assert f"agrees in {steadier} of {folds} folds" in text


def test_the_seeds_of_fold_0_are_those_of_the_files() -> None:
    rows = [r for r in rows_of("covfeat_l_20000_results.csv") if r["fold"] == "0"] + rows_of(
        "covfeat_l_20000_seeds.csv"
    )
    scores = {(r["method"], r["seed"]): 100 * float(r["score"]) for r in rows}
    assert {r["fold"] for r in rows} == {"0"}
    for seed in "012":
        own = [scores[method, seed] for method in METHODS]
        relatives = [f"{signed(relative(own[2:], [other]))} %" for other in own[:2]]
        assert cells(RADFED, f"{seed}, fold 0") == [*(f"{score:.2f}" for score in own), *relatives]
    fedavg, uniform, radfed = ([scores[method, seed] for seed in "012"] for method in METHODS)
    relatives = [f"{signed(relative(radfed, other))} %" for other in (fedavg, uniform)]
    shown = [with_spread(own, 2) for own in (fedavg, uniform, radfed)]
    assert cells(RADFED, "mean of three seeds") == [*shown, *relatives]
    leads = [[ours - theirs for ours, theirs in zip(radfed, other, strict=True)] for other in (fedavg, uniform)]
    assert [sum(lead > 0 for lead in own) for own in leads] == [3, 2]
    assert "above FedAvg by size with all three seeds, and above uniform FedAvg with two of them" in text_of(RADFED)
    moved = max(radfed) - min(radfed)
    assert f"moves by up to {moved:.2f} points from one seed to another" in text_of(RADFED)
    assert all(abs(lead) < moved for lead in leads[1])
    [best] = [r["best_round"] for r in rows if (r["method"], r["seed"]) == ("RADFed", "1")]
    assert f"that of round {best}." in text_of(RADFED)
    assert all(r["code"].partition("+g")[2] in text_of(RADFED) for r in rows)


@pytest.mark.parametrize("fold", FOLDS)
def test_the_versions_of_the_code_are_named(fold: int) -> None:
    for row in rows_of("covfeat_l_20000_results.csv"):
        [version, *dirty] = row["code"].partition("+g")[2].split("-")
        assert version in text_of(RADFED)
        assert not dirty or "not committed" in text_of(RADFED)


def test_the_claims_on_the_long_runs_are_those_of_the_files() -> None:
    scores, folds = {method: list(by_fold.values()) for method, by_fold in long_scores().items()}, len(FOLDS)
    least = 2 / 2**folds  # of Wilcoxon's signed ranks, if all differences have one sign
    p_values = [wilcoxon(scores["RADFed"], scores[other]).pvalue for other in METHODS[:2]]

    def over(other: str) -> str:
        """Return the gain over a baseline, as a mean and by fold."""
        by_fold = [signed(relative([o], [b]), 1) for o, b in zip(scores["RADFed"], scores[other], strict=True)]
        return f"{signed(relative(scores['RADFed'], scores[other]))} % ({listed(by_fold)} % by fold)"

    by_size, alike = claim("weighing clients by size"), claim("weighing clients alike")
    leads = {other: [value for fold in FOLDS for value in lead(fold, other)] for other in METHODS[:2]}
    means = f"{mean(scores['FedAvg']):.2f} and {mean(scores['RADFed']):.2f} %"
    assert by_size["here"].startswith(f"{means}: {over('FedAvg')}; ")
    assert f"{-min(leads['FedAvg']):.1f} points below to {max(leads['FedAvg']):.1f} above" in by_size["here"]
    won = sum(ours > theirs for ours, theirs in zip(scores["RADFed"], scores["FedAvg"], strict=True))
    assert f"in {won} of {folds} folds" in by_size["verdict"]
    assert f"p = {p_values[0]:.2g} (Wilcoxon; {least:.2g} at least" in by_size["verdict"]
    assert by_size["seeds"].startswith(f"folds {', '.join(map(str, FOLDS))},")
    assert alike["here"].startswith(f"{over('FedAvg-uniform')}; ")
    below, above = -min(leads["FedAvg-uniform"]), max(leads["FedAvg-uniform"])
    assert f"{below:.1f} points below to {above:.1f} above" in alike["here"]
    gain = relative(scores["FedAvg-uniform"], scores["FedAvg"])
    above_in = sum(ours > theirs for ours, theirs in zip(scores["RADFed"], scores["FedAvg-uniform"], strict=True))
    assert f"above in {above_in} of {folds} folds, p = {p_values[1]:.2g}" in alike["verdict"]
    p_uniform = wilcoxon(scores["FedAvg-uniform"], scores["FedAvg"]).pvalue
    assert f"({signed(gain)} %), p = {p_uniform:.2g}" in alike["verdict"]
    sizes, uniform, ours = (listed(f"{spread(fold, method):.3f}" for fold in FOLDS) for method in METHODS)
    assert f"{ours}; FedAvg {sizes} by size, {uniform} alike" in claim("vary less than")["here"]


OTHERS = [name for name in curves(0) if name not in ("round", *METHODS)]


@pytest.mark.parametrize("method", OTHERS)
def test_further_methods_are_those_of_the_raw_files(method: str) -> None:
    [row] = [r for r in rows_of("covfeat_l_20000_results.csv") if (r["method"], r["fold"]) == (method, "0")]
    curve, score, base = curves(0)[method], 100 * float(row["score"]), long_scores()
    assert curves(0)["round"][curve.index(max(curve))] == int(row["best_round"])
    relatives = [f"{signed(relative([score], [base[other][0]]))} %" for other in METHODS[:2]]
    shown = [f"{max(curve):.3f}", f"{int(row['best_round']):,}", f"{score:.2f} %", *relatives]
    assert cells(RADFED, f"{method}, fold 0") == [*shown, f"{mean(curve[100:]):.3f}", f"{spread(0, method):.3f}"]


def test_what_is_said_of_further_methods_is_true() -> None:
    scores = {
        row["method"]: float(row["score"]) for row in rows_of("covfeat_l_20000_results.csv") if row["fold"] == "0"
    }
    assert max(scores, key=lambda method: scores[method]) == "RADFedi"
    halves = {name: mean(curves(0)[name][100:]) for name in curves(0) if name not in ("round", "FedAvg", "FedProx")}
    assert sorted(sorted(halves, key=lambda name: halves[name])[:2]) == ["RADFedi", "RADFedp"]
    falling = tenths(curves(0)["RADFedi"])
    assert max(falling) == falling[1]
    by_size = signed(relative([scores["FedProx"]], [scores["FedAvg"]]))
    alike = signed(relative([scores["FedProx-uniform"]], [scores["FedAvg-uniform"]]))
    assert f"by size {by_size} % and uniform {alike} %" in text_of(RADFED)


# ---- MNIST, 450 rounds ----


def mnist(data: str, fold: str) -> list[float]:
    """Return the test accuracies in % of the three methods."""
    own = [row for row in rows_of("radfed_mnist_450.csv") if (row["data"], row["fold"]) == (data, fold)]
    rows = {row["method"]: row for row in own}
    assert len(own) == 3 and {(row["seed"], row["rounds"]) for row in own} == {("0", "450")}
    assert all(row["code"].partition("+g")[2] in text_of(RADFED) for row in own)
    return [100 * float(rows[method]["score"]) for method in METHODS]


MNIST = ("MNIST-0.1", "MNIST-1")
MNIST_FOLDS = sorted({row["fold"] for row in rows_of("radfed_mnist_450.csv")})


@pytest.mark.parametrize("data", MNIST)
@pytest.mark.parametrize("fold", MNIST_FOLDS)
def test_mnist_is_that_of_the_raw_file(data: str, fold: str) -> None:
    scores = mnist(data, fold)
    gains = [f"{signed(relative([scores[2]], [other]))} %" for other in scores[:2]]
    assert cells(RADFED, f"{data}, fold {fold}") == [*(f"{score:.2f}" for score in scores), *gains]


def test_what_is_said_of_mnist_is_true() -> None:
    folds, page, row = len(MNIST_FOLDS), text_of(RADFED), claim("RADFed above FedAvg on MNIST-0.1 and MNIST-1")
    scores = [list(zip(*(mnist(data, fold) for fold in MNIST_FOLDS), strict=True)) for data in MNIST]
    said = []
    for place in (0, 1):
        pairs = [(methods[2], methods[place]) for methods in scores]
        wins = [sum(a > b for a, b in zip(*pair, strict=True)) for pair in pairs]
        gains = [signed(relative(*pair)) for pair in pairs]
        said.append((wins, gains, " and ".join(f"{wilcoxon(*pair).pvalue:.2g}" for pair in pairs)))
    (wins, gains, p), (wins_alike, gains_alike, p_alike) = said
    places = [
        f"{won[0]} of {folds} folds of MNIST-0.1 and {won[1]} of {folds} of MNIST-1" for won in (wins, wins_alike)
    ]
    number = ("no", "one", "two", "three", "four", "five")[folds]
    assert f"RADFed is above FedAvg by size in {places[0]}, and above uniform FedAvg in {places[1]}." in page
    assert (
        f"In the mean of the {number} folds it is {' and '.join(gains)} % from FedAvg by size (Wilcoxon's p = {p})"
        in page
    )
    assert f"and {' and '.join(gains_alike)} % from uniform FedAvg (p = {p_alike})." in page
    assert f"With {number} pairs p is {0.5 ** (folds - 1):.2g} at least" in page
    by_size, uniform = (" and ".join(f"{gain} %" for gain in each) for each in (gains, gains_alike))
    assert row["here"] == f"{by_size} to FedAvg by size, {uniform} to uniform FedAvg, in the mean of {number} folds"
    assert row["verdict"] == (
        f"open: above FedAvg by size in {places[0]} (p = {p}), above uniform in {' and '.join(map(str, wins_alike))} "
        f"(p = {p_alike})"
    )
    assert row["seeds"] == f"folds {', '.join(MNIST_FOLDS)}, seed 0"


# ---- local steps and S ----

WORK, REDISTRIBUTIONS = ("1 step", "5 steps", "one epoch"), ("1", "5", "10", "20")


def of_steps(work: str, redistributions: str) -> dict[str, str]:
    """Return the fit with the learning rate that was better on validation clients."""
    fits = [row for row in rows_of("covfeat_l_steps.csv") if (row["local_work"], row["S"]) == (work, redistributions)]
    assert [row["lr"] for row in fits] == ["0.06", "0.2"]
    best = max(fits, key=lambda row: float(row["val"]))
    assert [bool(row["test_f1_clients"]) for row in fits] == [row is best for row in fits]
    return best


def gains(column: str) -> list[float]:
    """Return by how many points each cell lies above that of S = 1 with the same local work."""
    return [
        100 * (float(of_steps(work, s)[column]) - float(of_steps(work, "1")[column]))
        for work in WORK
        for s in REDISTRIBUTIONS[1:]
    ]


@pytest.mark.parametrize("work", WORK)
def test_local_steps_are_those_of_the_raw_file(work: str) -> None:
    assert cells(RADFED, work) == [
        f"{float(fit['val']):.3f} ({fit['lr']}); {100 * float(fit['test_f1_clients']):.2f} %"
        for fit in (of_steps(work, s) for s in REDISTRIBUTIONS)
    ]


def test_what_is_said_of_local_steps_is_true() -> None:
    test, val, page = gains("test_f1_clients"), gains("val"), text_of(RADFED)
    above = sum(gain > 0 for gain in test)
    assert f"{signed(min(test))} to {signed(max(test))} points from that of S = 1" in page
    assert f"above in {above} of {len(test)} cells. On validation" in page
    assert (
        f"it is {signed(min(val))} to {signed(max(val))} points, above in {sum(gain > 0 for gain in val)} of 9" in page
    )
    assert max(val[:3]) < 0 < min(val[6:])
    assert [of_steps("1 step", s)["lr"] for s in REDISTRIBUTIONS] == ["0.2", "0.06", "0.06", "0.06"]
    row = claim("with a few local steps")
    few = {s: [100 * float(of_steps(work, s)["test_f1_clients"]) for work in WORK[:2]] for s in REDISTRIBUTIONS}
    with_s, without = [score for s in REDISTRIBUTIONS[1:] for score in few[s]], few["1"]
    spans = [f"{min(scores):.2f} to {max(scores):.2f} %" for scores in (with_s, without)]
    assert row["here"].startswith(f"{spans[0]} and {spans[1]} with one or five steps")
    of_few = test[: len(REDISTRIBUTIONS[1:]) * len(WORK[:2])]
    assert row["here"].endswith(f"{signed(min(of_few))} to {signed(max(of_few))} points at equal work")
    assert f"above in {sum(gain > 0 for gain in of_few)} of {len(of_few)} cells" in row["verdict"]


# ---- the reduced table ----


@pytest.mark.parametrize("data", SETTINGS)
def test_the_rerun_settings_are_those_of_the_file(data: str) -> None:
    base = short_scores(data, RERUN[0])
    shown = [with_spread(short_scores(data, method), 1) for method in RERUN]
    for method in RERUN[1:]:
        gain = relative(short_scores(data, method), base)
        shown.append(f"{signed(gain)} %, p = {p_value(data, method):.2g}")
    assert cells(RADFED, f"{data}, kept")[:-2] == shown


def test_what_is_said_of_the_rerun_settings_is_true() -> None:
    p_values = {(data, method): p_value(data, method) for method in RERUN[1:] for data in SETTINGS}
    least = min(p_values.values())
    assert {key for key, p in p_values.items() if p == least} == {("COVFEAT-G", "RADFedi"), ("eICU", "RADFed")}
    assert f"The smallest p that six pairs can have is {2 / 2**6:.2g}. It occurs twice" in text_of(RADFED)
    # Holm's correction multiplies the smallest of n by n
    of_all, of_radfed = (f"{least * number:.2g}" for number in (len(p_values), len(SETTINGS)))
    assert f"for the {len(p_values)} comparisons the smallest p is {of_all}" in text_of(RADFED)
    assert f"for the seven of RADFed alone {of_radfed}, so no difference is significant" in text_of(RADFED)
    gains = [relative(short_scores(data, "RADFed"), short_scores(data, RERUN[0])) for data in SETTINGS]
    row = claim("RADFed above FedAvg in every setting")
    assert row["here"] == (
        f"{signed(min(gains))} to {signed(max(gains))} %, above in {sum(gain > 0 for gain in gains)} of {len(gains)} "
        f"settings; none is significant after Holm's correction (p = {of_radfed} at least)"
    )


def test_the_values_that_were_chosen_are_those_of_the_file() -> None:
    rows = [row for row in rows_of("radfed_reduced.csv") if row["method"] == "RADFed"]
    chosen = {row["data"]: json.loads(row["values"])["S"] for row in rows}
    assert {data: s for data, s in chosen.items() if data.startswith("COV")} == {
        **dict.fromkeys(("COVFEAT-G", "COVFEAT-L", "COVCLS-L"), 2),
        "COVCLS-G": 5,
    }
    assert "was chosen for COVFEAT and COVCLS-L, and 5 for COVCLS-G" in text_of(RADFED)
    versions = [row["code"].partition("+g")[2] for row in rows_of("radfed_reduced.csv")]
    assert (versions.count("306a7c2ea9"), set(versions)) == (3, {"306a7c2ea9", "1b58596ca3"})


# ---- COVFEAT-G, 20,000 rounds, and further methods on COVFEAT-L ----

ALL = ("0", "1", "2", "3", "4")
FURTHER = ("FedAvg", "FedProx", "FedAvg-uniform", "FedProx-uniform", "RADFed", "RADFedi", "RADFedp")


def scores_of(file: str) -> dict[tuple[str, str], float]:
    return {(row["fold"], row["method"]): 100 * float(row["score"]) for row in rows_of(file)}


@pytest.mark.parametrize("fold", ALL)
def test_covfeat_g_is_that_of_the_raw_files(fold: str) -> None:
    rows = {row["method"]: row for row in rows_of("covfeat_g_20000_results.csv") if row["fold"] == fold}
    found, scores = read(f"covfeat_g_20000_fold{fold}.csv"), [100 * float(rows[method]["score"]) for method in METHODS]
    halves = [found[method][100:] for method in METHODS]
    relatives = [f"{signed(relative([scores[2]], [other]))} %" for other in scores[:2]]
    means, spreads = [f"{mean(half):.3f}" for half in halves], [f"{100 * stdev(half):.1f}" for half in halves]
    expected = [*(f"{score:.2f}" for score in scores), *relatives, *means, *spreads]
    assert cells(RADFED, f"{fold}, COVFEAT-G") == expected
    # the curve varies least in all folds, and lies above both others in the mean in all but fold 2
    assert stdev(halves[2]) < min(map(stdev, halves[:2]))
    above = [mean(halves[2]) > mean(other) for other in halves[:2]]
    assert above == [True, fold != "2"]
    for method, row in rows.items():
        assert float(row["val"]) == pytest.approx(max(found[method]), abs=5e-5)
        assert row["code"].partition("+g")[2] in text_of(RADFED)


def test_covfeat_g_over_all_folds() -> None:
    found = scores_of("covfeat_g_20000_results.csv")
    by_size, uniform, radfed = ([found[fold, method] for fold in ALL] for method in METHODS)
    shown = [f"{mean(own):.2f} ± {stdev(own):.2f}" for own in (by_size, uniform, radfed)]
    relatives = [f"{signed(relative([mean(radfed)], [mean(other)]))} %" for other in (by_size, uniform)]
    assert cells(RADFED, "mean of five folds")[:5] == [*shown, *relatives]
    assert signed(relative([mean(uniform)], [mean(by_size)])) == "+2.25"
    p_values = [wilcoxon(radfed, other).pvalue for other in (by_size, uniform)]
    assert [f"{p:.4g}" for p in p_values] == ["0.3125", "0.625"]
    wins = [sum(a > b for a, b in zip(radfed, other, strict=True)) for other in (by_size, uniform)]
    assert wins == [4, 2]
    by_fold = [
        listed([signed(relative([a], [b]), 1) for a, b in zip(radfed, o, strict=True)]) for o in (by_size, uniform)
    ]
    rows = claim("above FedAvg by size on COVFEAT-G"), claim("above uniform FedAvg on COVFEAT-G")
    for row, relative_gain, gains, won, p in zip(rows, relatives, by_fold, wins, p_values, strict=True):
        assert f"{relative_gain} ({gains} % by fold)" in row["here"]
        assert f"above in {won} of 5 folds, p = {p:.2g}" in row["verdict"]
    higher = sum(a > b for a, b in zip(uniform, by_size, strict=True))
    p_uniform = wilcoxon(uniform, by_size).pvalue
    assert f"FedAvg by size in {higher} of 5 (+2.25 %), p = {p_uniform:.2g}" in rows[1]["verdict"]
    text = text_of(RADFED)
    assert "in 4 of 5 folds, by 1.74 % in the mean (Wilcoxon, p = 0.31, 0.062 at least)" in text
    assert "0.49 % below uniform FedAvg (above in 2 of 5, p = 0.62). Uniform weights alone gain 2.25 %" in text


def test_further_methods_of_covfeat_g_are_those_of_the_raw_files() -> None:
    names = ("FedAvg", "FedProx", "FedAvg-uniform", "RADFed", "RADFedp")
    later = rows_of("covfeat_g_20000_methods.csv")
    before = {row["fold"]: row for row in rows_of("covfeat_g_20000_results.csv")}
    found = {**scores_of("covfeat_g_20000_results.csv"), **scores_of("covfeat_g_20000_methods.csv")}
    folds = sorted({row["fold"] for row in later})
    assert sorted((row["fold"], row["method"]) for row in later) == [
        (f, m) for f in folds for m in (names[1], names[4])
    ]
    for row in later:
        assert all(row[key] == before[row["fold"]][key] for key in ("partition", "initial_weights"))
        assert row["code"].partition("+g")[2] in text_of(RADFED)
    for fold in folds:
        expected = [f"{found[fold, name]:.2f}" for name in names]
        assert cells(RADFED, f"{fold}, COVFEAT-G, further methods") == expected
    points = {(own, other): [found[f, own] - found[f, other] for f in folds] for own in names for other in names}
    shown = {pair: f"{signed(min(each))} to {signed(max(each))} points" for pair, each in points.items()}
    text = text_of(RADFED)
    assert f"FedProx is {shown['FedProx', 'FedAvg']} from FedAvg" in text
    assert f"RADFedp is {shown['RADFedp', 'RADFed']} from RADFed and {shown['RADFedp', 'FedAvg']} from FedAvg" in text
    row, gains, wins = claim("RADFedp above FedAvg on COVFEAT-G"), [], []
    for baseline in ("FedAvg", "FedAvg-uniform"):
        own, other = ([found[fold, name] for fold in folds] for name in ("RADFedp", baseline))
        gains.append(f"{signed(relative(own, other))} %")
        wins.append(sum(a > b for a, b in zip(own, other, strict=True)))
    assert row["here"] == f"{gains[0]} to FedAvg by size, {gains[1]} to uniform FedAvg"
    assert f"above in {wins[0]} and {wins[1]} of {len(folds)} folds" in row["verdict"]


def test_further_methods_of_five_folds_are_those_of_the_raw_files() -> None:
    before, later = scores_of("covfeat_l_20000_results.csv"), scores_of("covfeat_l_20000_methods.csv")
    assert {key for key in later if key in before} == {(fold, "RADFed") for fold in "1234"}
    assert all(before[fold, "RADFed"] == later[fold, "RADFed"] for fold in "1234")
    found = {**before, **later}
    of_method = {method: [found[fold, method] for fold in "01234"] for method in FURTHER}
    for place, fold in enumerate("01234"):
        expected = [f"{of_method[method][place]:.2f}" for method in FURTHER]
        assert cells(RADFED, f"{fold}, further methods") == expected
    shown = [f"{mean(own):.2f} ± {stdev(own):.2f}" for own in of_method.values()]
    assert cells(RADFED, "mean of folds 0 to 4") == shown
    proximal = [
        a - b
        for one, other in (("FedProx", "FedAvg"), ("FedProx-uniform", "FedAvg-uniform"))
        for a, b in zip(of_method[one], of_method[other], strict=True)
    ]
    text = text_of(RADFED)
    assert f"FedProx is {signed(min(proximal))} to {signed(max(proximal))} points" in text
    radfedp = [a - b for a, b in zip(of_method["RADFedp"], of_method["RADFed"], strict=True)]
    p_radfed = wilcoxon(of_method["RADFedp"], of_method["RADFed"]).pvalue
    above = f"above in {sum(difference > 0 for difference in radfedp)} of 5 folds, p = {p_radfed:.2g}"
    assert f"RADFedp is {signed(min(radfedp))} to {signed(max(radfedp))} points from RADFed ({above})" in text
    baselines = [of_method[name] for name in ("FedAvg", "FedAvg-uniform")]
    relatives = [signed(relative(of_method["RADFedp"], other)) for other in baselines]
    wins = [sum(a > b for a, b in zip(of_method["RADFedp"], other, strict=True)) for other in baselines]
    p_values = [wilcoxon(of_method["RADFedp"], other).pvalue for other in baselines]
    assert (wins, p_values) == ([5, 3], [0.0625, 0.625])
    assert f"in 5 of 5 folds, by {relatives[0][1:]} % in the mean" in text
    assert f"p = {p_values[0]:.2g}, the least that five folds can give), and {relatives[1][1:]} % above uniform" in text
    row = claim("RADFedp above FedAvg on COVFEAT-L")
    assert f"{relatives[0]} % to FedAvg by size, {relatives[1]} % to uniform FedAvg" in row["here"]
    assert "above in 5 of 5 and 3 of 5 folds, p = 0.062 (the least that five pairs can give) and 0.62" in row["verdict"]


def test_radfedi_of_five_folds_is_that_of_the_raw_files() -> None:
    found = {**scores_of("covfeat_l_20000_results.csv"), **scores_of("covfeat_l_20000_methods.csv")}
    own, radfed, by_size, uniform = (
        [found[fold, name] for fold in ALL] for name in ("RADFedi", "RADFed", *METHODS[:2])
    )
    p_values = [float(wilcoxon(own, other).pvalue) for other in (radfed, by_size, uniform)]
    wins = [sum(a > b for a, b in zip(own, other, strict=True)) for other in (radfed, by_size, uniform)]
    assert (wins, p_values) == ([3, 4, 4], [0.4375, 0.125, 0.625])
    points = [a - b for a, b in zip(own, radfed, strict=True)]
    to_size, to_uniform = (signed(relative(own, other)) for other in (by_size, uniform))
    text = text_of(RADFED)
    assert f"It is {signed(min(points))} to {signed(max(points))} points from RADFed (above in {wins[0]} of 5" in text
    assert f"above FedAvg by size in {wins[1]} of 5 folds, and {to_size[1:]} % above it in the mean" in text
    assert (
        f"{to_uniform[1:]} % {'above' if to_uniform[0] == '+' else 'below'} uniform FedAvg (above in {wins[2]} of 5"
        in text
    )
    row = claim("RADFedi above FedAvg on COVFEAT-L")
    assert f"{to_size} % to FedAvg by size, {to_uniform} % to uniform FedAvg" in row["here"]
    assert f"above in {wins[1]} of 5 and {wins[2]} of 5 folds" in row["verdict"]
