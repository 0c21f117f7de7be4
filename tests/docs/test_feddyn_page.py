"""Figures of the page on FedDyn, and its claims, are those of the raw files."""

from __future__ import annotations

from statistics import median

import pytest
from helpers.result_pages import cells, claim, read, rows_of, text_of
from scipy.stats import binomtest

FEDDYN = "reproduction/feddyn.md"
METHODS = ("FedDyn", "FedAvg", "FedProx", "SCAFFOLD")
SENT = rows_of("feddyn_reduced_communication.csv")
Row = dict[str, str]


def sent(row: Row, method: str) -> float | None:
    """Return the models sent until a target, ``None`` if it is not reached."""
    number = row[method].split(" ")[0]
    return None if number.endswith("+") else float(number)


def others(row: Row) -> list[float]:
    return [number for method in METHODS[1:] if (number := sent(row, method)) is not None]


def reached(group: str) -> list[Row]:
    rows = [row for row in SENT if group in row["data"]]
    return [row for row in rows if sent(row, "FedDyn") is not None or others(row)]


def is_fewest(row: Row) -> bool:
    own = sent(row, "FedDyn")
    return own is not None and all(own < other for other in others(row))


def is_draw(row: Row) -> bool:
    return bool(others(row)) and sent(row, "FedDyn") == min(others(row))


def highest(group: str) -> list[Row]:
    """Return each setting's highest target that is reached."""
    return list({row["data"]: row for row in reached(group)}.values())


def factors(rows: list[Row], method: str) -> list[float]:
    pairs = [(sent(row, "FedDyn"), sent(row, method)) for row in rows]
    return [other / own for own, other in pairs if own is not None and other is not None]


@pytest.mark.parametrize("row", SENT, ids=lambda row: f"{row['data']} {row['target']}")
def test_models_sent_are_those_of_the_file(row: Row) -> None:
    fits = {fit["method"]: fit for fit in rows_of("feddyn_reduced.csv") if fit["data"] == row["data"]}
    first = next(other for other in SENT if other["data"] == row["data"]) is row
    target = f"{float(row['target'].split()[2]) / 100:.2f}"
    accuracies = ", ".join(f"{100 * float(fits[method]['test_acc']):.1f}" for method in METHODS)
    numbers = [row[method].replace("x)", " \N{MULTIPLICATION SIGN})") for method in METHODS]
    cells = [row["data"] if first else "", target, *numbers, accuracies if first else ""]
    line = f"| {' | '.join(cells)} |"
    assert line in text_of(FEDDYN).splitlines()


def test_the_fits_are_of_one_version_of_the_code() -> None:
    fits = rows_of("feddyn_reduced.csv")
    assert (len(fits), {fit["status"] for fit in fits}) == (100, {"finished"})
    [code] = {fit["code"].partition("+g")[2] for fit in fits}
    assert f"100 fits of one version of the code ({code})" in text_of(FEDDYN)


def test_what_is_said_of_mnist_and_emnist_is_true() -> None:
    page, rows, best = text_of(FEDDYN), reached("MNIST"), highest("MNIST")
    targets = [row for row in SENT if "MNIST" in row["data"]]
    fewest = sum(map(is_fewest, rows))
    assert f"{len(rows)} of {len(targets)} targets are reached by a method" in page
    assert f"the fewest models to {fewest} of them, and one is a draw" in page
    assert (sum(map(is_draw, rows)), len(rows) - fewest) == (1, 1)
    won = sum(map(is_fewest, best))
    p = binomtest(won, len(best)).pvalue
    assert f"in {won} of {len(best)} settings. By a two-sided sign test over the settings p = {p:.2g}" in page
    for method, verb in (("FedAvg", "FedAvg and FedProx send"), ("SCAFFOLD", "SCAFFOLD")):
        found = factors(rows, method)
        assert f"{verb} {min(found):.2f} to {max(found):.2f} times" in page
        assert f"to the {len(found)} targets" in page or f"times to {len(found)}" in page
    assert f"(median {median(factors(rows, 'FedAvg')):.2f})" in page
    assert all(row["FedAvg"] == row["FedProx"] for row in targets)
    for share, words in (("100%", "with all devices"), ("10%", "with 10 %"), ("1%", "with 1 %")):
        own = factors([r for r in rows if r["data"].removesuffix("-unbalanced").endswith(f"-{share}")], "FedAvg")
        assert f"{min(own):.2f} to {max(own):.2f} {words}" in page
    row = claim("FedDyn sends the fewest models to a target")
    assert f"in {won} of {len(best)} settings" in row["here"]
    assert f"p = {p:.2g}" in row["verdict"]


def test_what_is_said_of_the_synthetic_sets_is_true() -> None:
    page, rows, best = text_of(FEDDYN), reached("synthetic"), highest("synthetic")
    fewest, won = sum(map(is_fewest, rows)), sum(map(is_fewest, best))
    assert f"{len(rows)} of 13 targets are reached. FedDyn sends the fewest models to {fewest} of them" in page
    assert sum(map(is_draw, rows)) == 1
    [lost] = [row for row in rows if not is_fewest(row) and not is_draw(row)]
    assert (lost["data"], sent(lost, "SCAFFOLD"), sent(lost, "FedDyn")) == ("synthetic-both", 72.0, 79.0)
    p = binomtest(won, len(best)).pvalue
    assert f"FedDyn sends the fewest in {won} of {len(best)} sets (sign test: p = {p:.2g})" in page
    before = sum(sent(r, "FedAvg") is None or factors([r], "FedAvg")[0] > 1 for r in best)
    assert f"fewer than FedAvg in {before} of {len(best)} (p = {binomtest(before, len(best)).pvalue:.2g})" in page
    row = claim("the same, convex synthetic data")
    assert f"in {won} of {len(best)} sets" in row["here"]
    assert f"p = {p:.2g}" in row["verdict"]


def test_cifar10_is_that_of_the_file() -> None:
    curves, methods = read("feddyn_cifar_50.csv"), ("FedDyn", "FedAvg", "FedProx", "SCAFFOLD")
    assert curves["round"] == [float(number) for number in range(1, 51)]

    def until(method: str, target: float) -> int | None:
        return next((number for number, value in enumerate(curves[method], 1) if value >= target), None)

    for target in (0.4, 0.5, 0.6, 0.65):
        own, shown = until("FedDyn", target), []
        assert own is not None
        for method in methods[1:]:
            vectors, number = 2 if method == "SCAFFOLD" else 1, until(method, target)
            sent = (
                "" if number is None else f"{vectors * number} ({vectors * number / own:.2f} \N{MULTIPLICATION SIGN})"
            )
            shown.append(sent or f"{vectors * 50}+")
        assert cells(FEDDYN, f"{target:.2f} on CIFAR-10") == [str(own), *shown]
    last = [f"{100 * curves[method][-1]:.2f}" for method in methods]
    assert cells(FEDDYN, "accuracy after 50 rounds, %") == last
    reached = [(method, until(method, 0.6)) for method in methods]
    texts = [f"{method} not in 50" if number is None else f"{method} after {number}" for method, number in reached]
    texts[0] += " rounds"
    end = f"{last[0]}, {last[1]}, {last[2]} and {last[3]} % after 50"
    assert claim("CIFAR-10 by Dirichlet .3, 50 rounds")["here"] == f"60 %: {', '.join(texts)}; {end}"
