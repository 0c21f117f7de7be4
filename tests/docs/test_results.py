"""Figures of the pages on results are those of the raw files that they name; those on RADFed have their own file."""

from __future__ import annotations

import re
from statistics import mean

import pytest
from helpers.result_pages import CLAIMS, DOCS, cells, claim, listed, read, rows_of, signed, text_of, with_spread

PUBLISHED, ASYNCHRONOUS, BENCHMARKS = "published.md", "reproduction/asynchronous.md", "benchmarks.md"
THEIRS = {"SCAFFOLD": 99.0, "FedAvg": 98.9}  # Flower's, after 50 rounds
LABEL = {"known": "SCAFFOLD, momentum known", "not known": "SCAFFOLD, momentum not known"}


def test_every_raw_file_is_linked_and_every_link_has_a_file() -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    linked = {name for page in pages for name in re.findall(r"\((?:\.\./)*results/([^)]+)\)", page)}
    assert linked == {path.name for path in (DOCS / "results").iterdir()}


def test_every_claim_has_its_source_verdict_and_command() -> None:
    page = text_of(CLAIMS)
    header, _, *rows = [line for line in page.splitlines() if line.startswith("| ")]
    names = [cell.strip() for cell in header.strip("|").split("|")]
    assert names[:3] == ["claim", "source", "theirs"]
    for row in rows:
        found = dict(zip(names, (cell.strip() for cell in row.strip("|").split("|")), strict=True))
        assert all(found[name] for name in ("claim", "source", "here", "verdict", "command", "time", "seeds")), found
        assert re.match(r"(yes|no|open|not run)\b", found["verdict"]), found


@pytest.mark.parametrize("method", ["SCAFFOLD", "FedAvg"])
def test_accuracies_beside_the_published_ones_are_those_of_the_file(method: str) -> None:
    curve = [100 * value for value in read("published_mnist.csv")[method]]
    rounds, here, *_ = cells(PUBLISHED, method)
    assert rounds.startswith(f"{len(curve)} of 50")
    assert here == f"{curve[-1]:.2f}"
    row = claim(f"MNIST, ten clients by Dir(.5), {method}")
    assert row["here"].startswith(f"{curve[-1]:.2f} % after {len(curve)} rounds")
    assert row["theirs"].startswith(f"{THEIRS[method]:.1f} %")


def test_what_is_said_of_the_published_accuracies_is_true() -> None:
    curves = {name: [100 * v for v in values] for name, values in read("published_mnist.csv").items()}
    scaffold, fedavg = curves["SCAFFOLD"], curves["FedAvg"]
    assert scaffold[0] == fedavg[0]
    below, above = signed(scaffold[-1] - THEIRS["SCAFFOLD"]), signed(scaffold[-1] - 61.99)
    text, row = text_of(PUBLISHED), cells(PUBLISHED, "SCAFFOLD")
    assert f"both methods give the same {fedavg[0]:.2f} %" in text
    assert f"After ten rounds SCAFFOLD is at {scaffold[9]:.2f} and FedAvg at {fedavg[9]:.2f}" in text
    assert f"After {len(scaffold)} rounds SCAFFOLD is {below[1:]} points below" in text
    assert row[2] == f"99.0: {below} points, no spread known"
    assert row[3].endswith(f"not met, {above} points")
    assert f"{below} points" in claim("MNIST, ten clients by Dir(.5), SCAFFOLD")["verdict"]
    [same] = [line for line in text_of(CLAIMS).splitlines() if "| FedBench |" in line]
    verdict = f"no: {above} points after {len(scaffold)} of 50 rounds, 2.80 allowed"
    assert f"| {scaffold[-1]:.2f} % after {len(scaffold)} rounds | {verdict} |" in same


@pytest.mark.parametrize(
    ("method", "theirs", "claimed"),
    [
        ("FedAvg", (63.4, 68.2), "CIFAR-10, ten clients by Dir(.5), FedAvg"),
        ("SCAFFOLD", (68.0, 69.8), "the same, SCAFFOLD"),
        ("FedProx", (65.6, 67.9), "the same, FedProx"),
        ("FedNova", (65.0, 66.8), "the same, FedNova"),
    ],
)
def test_accuracies_on_cifar10_beside_the_published_ones_are_those_of_the_file(
    method: str, theirs: tuple[float, float], claimed: str
) -> None:
    curve = [100 * value for value in read("published_cifar10.csv")[method]]
    apart = [f"{signed(curve[-1] - their)} points" for their in theirs]
    shown = [f"{their}: {points}, no spread known" for their, points in zip(theirs, apart, strict=True)]
    assert cells(PUBLISHED, f"{method}, CIFAR-10") == ["50 of 50", f"{curve[-1]:.2f}", *shown]
    assert len(curve) == 50
    assert f"between {min(curve[-10:]):.2f} and {max(curve[-10:]):.2f} for {method}" in text_of(PUBLISHED)
    row = claim(claimed)
    assert row["here"] == f"{curve[-1]:.2f} % after 50 rounds"
    assert f"{apart[0].removesuffix(' points')} and {apart[1]}" in row["verdict"]


def test_what_is_said_of_the_methods_on_cifar10_is_true() -> None:
    curves = {name: [100 * value for value in values] for name, values in read("published_cifar10.csv").items()}
    fedavg, nova, prox, scaffold = (curves[name] for name in ("FedAvg", "FedNova", "FedProx", "SCAFFOLD"))
    assert scaffold[0] == fedavg[0]
    text = text_of(PUBLISHED)
    assert f"give the same {fedavg[0]:.2f} %, as they must. After 50 rounds" in text
    assert f"SCAFFOLD is {scaffold[-1] - fedavg[-1]:.2f} points above FedAvg here, 4.6 in Flower" in text
    assert f"FedProx is {prox[-1] - fedavg[-1]:.2f} above FedAvg here, 2.2 in Flower" in text
    pairs = [(63.4, fedavg), (65.0, nova), (65.6, prox), (68.0, scaffold)]
    below = [theirs - curve[-1] for theirs, curve in pairs]
    assert f"All four lie {min(below):.1f} to {max(below):.1f} points below Flower's numbers, in the same order" in text
    assert fedavg[-1] < nova[-1] < prox[-1] < scaffold[-1]


def test_figures_of_scaffold_beside_momentum_are_those_of_the_file() -> None:
    columns = read("scaffold_momentum.csv")
    wrong, right, fedavg = (100 * columns[name][-1] for name in (LABEL["not known"], LABEL["known"], "FedAvg"))
    large, small = (columns[f"{LABEL[name]}: norm of c"][-1] for name in ("not known", "known"))
    power = f"{large:.0e}".replace("e+0", "e")
    assert len(columns["round"]) == 10
    text = text_of(PUBLISHED)
    assert f"after ten rounds was {wrong:.0f} %, where FedAvg had {fedavg:.0f} %" in text
    assert f"had a norm of {power}" in text
    assert f"ends at {right:.0f} %, with a norm of {small:.2f}" in text
    row = claim("SCAFFOLD's control variates beside")
    assert row["here"].startswith(f"norm {power} after ten rounds")
    assert f"{small:.2f} if it does" in row["here"]
    assert row["verdict"] == f"yes: {wrong:.0f} and {right:.0f} %"


def asynchronous(method: str, experiment: str, uploads: int | None = None, moves: int | None = None) -> list[float]:
    """Return each seed's accuracy in % after a number of uploads, or as soon as the server has moved so often."""
    runs: dict[str, list[dict[str, str]]] = {}
    for row in rows_of("fashion_async.csv"):
        if (row["method"], row["experiment"]) == (method, experiment):
            runs.setdefault(row["seed"], []).append(row)
    assert len(runs) == 5
    chosen = [
        next(r for r in run if (int(r["uploads"]) == uploads if uploads else int(r["moves"]) >= (moves or 0)))
        for run in runs.values()
    ]
    return [100 * float(row["accuracy"]) for row in chosen]


def test_figures_of_asynchronous_methods_are_those_of_the_file() -> None:
    fourth = {e: mean(asynchronous("FedAsync", e, 300)) for e in ("1.1", "1.2", "1.3", "1.4")}
    order = f"{fourth['1.1']:.1f}, {fourth['1.2']:.1f} and {fourth['1.3']:.1f} %"
    assert claim("1.3 worst under FedAsync")["here"] == order
    page = text_of(ASYNCHRONOUS)
    assert f"{order} at 300 uploads: in part" in page and f"1.4 is lower still ({fourth['1.4']:.1f} %)" in page
    assert fourth["1.2"] > fourth["1.1"] > fourth["1.3"] > fourth["1.4"]
    first, second = (asynchronous("FedAsync", experiment, 300) for experiment in ("1.1", "1.2"))
    above = [b - a for a, b in zip(first, second, strict=True)]
    assert f"5 of 5 seeds, by {min(above):.1f} to {max(above):.1f} points (sign test: p = {2 / 2**5:.2g})" in page
    assert f"in 5 of 5 seeds, by {min(above):.1f} to {max(above):.1f} points" in text_of(BENCHMARKS)
    assert f"is lowest here ({fourth['1.4']:.1f} %)" in claim("1.3 worst under FedAsync")["verdict"]
    at = {m: asynchronous(m, "1.4", 300) for m in ("FedAsync", "PAPAYA", "dynamic weights")}
    earlier = {m: asynchronous(m, "1.4", 100) for m in at}
    to_papaya = [mean(x["dynamic weights"]) - mean(x["PAPAYA"]) for x in (at, earlier)]
    to_fedasync = [mean(x["dynamic weights"]) - mean(x["FedAsync"]) for x in (at, earlier)]
    assert claim("above PAPAYA")["here"] == f"{signed(to_papaya[0], 0)} to {signed(to_papaya[1], 0)} points"
    assert all(ours < theirs for ours, theirs in zip(at["dynamic weights"], at["PAPAYA"], strict=True))
    equal = f"{signed(to_fedasync[0], 0)} to {signed(to_fedasync[1], 0)} points at equal uploads"
    assert equal in claim("above FedAsync")["here"]


def test_figures_of_dmoz_are_those_of_the_file() -> None:
    rows = {row["data"]: row for row in rows_of("dmoz_small.csv")}
    scores = [100 * float(row["score"]) for row in rows.values()]
    assert cells("reproduction/dmoz.md", "accuracy, %") == [f"{score:.1f}" for score in scores]
    assert claim("Scores grow with diffusion")["here"] == f"{scores[0]:.1f} to {scores[2]:.1f} %; {scores[3]:.1f} %"


def test_distance_and_divergence_of_radfed_are_those_of_the_file() -> None:
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in rows_of("mnist_divergence.csv"):
        curves.setdefault((row["method"], row["seed"]), []).append((float(row["DL"]), float(row["DC"])))
    assert all(len(curve) == 20 for curve in curves.values())
    for seed in "012":
        divergence = [dl for dl, _ in curves["RADFed", seed]]
        for start in (0, 5, 10, 15):
            assert divergence[start] < divergence[start + 4]
            assert start == 0 or divergence[start] < 0.5 * divergence[start - 1]
    ours, theirs = (listed(f"{curves[m, seed][-1][1]:.3f}" for seed in "012") for m in ("RADFed", "FedAvg"))
    assert claim("DC of RADFed is below")["here"] == f"{ours} against {theirs} after 20 rounds"
    assert f"it is {ours}, and FedAvg's {theirs})" in text_of("reproduction/radfed.md")
    assert f"({ours} against {theirs})" in text_of(BENCHMARKS)


def test_the_methods_on_mnist_are_those_of_the_file() -> None:
    scores: dict[str, list[float]] = {}
    for row in rows_of("mnist_methods.csv"):
        scores.setdefault(row["method"], []).append(float(row["score"]))
    page = text_of(BENCHMARKS).partition("## Every synchronous method on MNIST-0.1")[2].partition("## ")[0]
    assert len(scores) == 13
    for method, values in scores.items():
        seeds = ", ".join(f"{value:.3f}" for value in values)
        assert re.search(rf"^\| {method}(, [^|]*)? \| {seeds} \| {with_spread(values, 3)} \|", page, re.MULTILINE), (
            method
        )
