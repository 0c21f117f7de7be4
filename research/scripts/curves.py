"""Draws accuracy by round, traffic or time, from the files in ``research/results``: run it without arguments."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

RESEARCH = Path(__file__).parents[1]
IMAGES = {"docs": RESEARCH.parent / "docs" / "images", "research": RESEARCH / "images"}
LOOKS = ("-", "--", ":", "-.", (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))


def draw(axes: Axes, runs: pd.DataFrame, x: str, y: str, label: str) -> None:
    """Draw each method's mean over seeds after each round, at the mean of x, and a band of one standard deviation."""
    for number, (method, run) in enumerate(runs.dropna(subset=y).groupby("method", sort=False)):
        by_round = run.groupby("round")
        mean = 100 * by_round[y].mean()
        deviation = 100 * by_round[y].std().fillna(0)
        places = mean.index if x == "round" else by_round[x].mean()
        marker = "o" if len(mean) < 12 else None
        axes.plot(places, mean, linestyle=LOOKS[number % len(LOOKS)], marker=marker, markersize=4, label=method)
        axes.fill_between(places, mean - deviation, mean + deviation, alpha=0.12)
    axes.set_xlabel(label)


def picture(name: str, where: str, y: str, title: str, smoothed: int = 1, scale: str = "linear", **axes: str) -> None:
    """Draw a file's curves, means of the last rounds, over each of some columns, and write ``images/<name>.png``."""
    runs = pd.read_csv(RESEARCH / "results" / f"{name}.csv")
    runs[y] = runs.groupby(["method", "seed"])[y].transform(lambda run: run.rolling(smoothed, min_periods=1).mean())
    figure, panels = plt.subplots(
        1, len(axes), figsize=(2.2 + 3.9 * len(axes), 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, (x, label) in zip(panels[0], axes.items(), strict=True):
        draw(panel, runs, x, y, label)
        panel.set_xscale(scale)
        if x == "round":
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0][0].set_ylabel(title)
    figure.legend(*panels[0][0].get_legend_handles_labels(), frameon=False, loc="outside right center")
    figure.savefig(IMAGES[where] / f"{name}.png", dpi=110)


def gains(source: str, name: str, rounds: int) -> None:
    """Draw by how much each client is better off than alone, a column for each method and a colour for each seed."""
    runs = pd.read_csv(RESEARCH / "results" / f"{source}.csv").query("round == @rounds")
    scores = 100 * runs.pivot_table("test_acc", ["seed", "client"], "method", sort=False)
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    methods = [str(method) for method in scores.columns if method != "Local"]
    for number, (seed, run) in enumerate(scores.sub(scores["Local"], axis=0).groupby("seed")):
        for place, method in enumerate(methods):
            shown = run[method].dropna()
            label = f"seed {seed}" if place == 0 else None
            axes.plot([place + 0.2 * (number - 1)] * len(shown), shown, ".", color=f"C{number}", alpha=0.6, label=label)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(methods)), methods, rotation=15)
    axes.set_ylabel("accuracy minus Local's, points")
    figure.legend(frameon=False, loc="outside right center")
    figure.savefig(IMAGES["research"] / f"{name}.png", dpi=110)


if __name__ == "__main__":
    sent = {"megabytes": "megabytes down and up", "time": "virtual time"}
    picture(
        "fashion_selection", "docs", "test_acc", "test accuracy, %, mean of 5 rounds", smoothed=5, round="round", **sent
    )
    picture("moon", "research", "test_acc", "test accuracy, %", round="round")
    gains("personal_fashion_clients", "personal_fashion_gains", rounds=2)
    picture("lora_plays", "docs", "val_acc", "validation accuracy, %", scale="log", megabytes="megabytes up")
    picture("personal_fashion_rounds", "research", "test", "test accuracy, %", round="round")
