"""Draws accuracy against epsilon, bytes and the share of attackers, from the results of three tables.

fl-lightning run privacy; fl-lightning run compression; fl-lightning run robustness
python research/scripts/travels.py runs docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def draw(lines: dict[str, pd.DataFrame], axes: Axes, label: str) -> None:
    """Draw the means over seeds, with bars of one standard deviation, of frames with the columns x and accuracy."""
    for name, frame in lines.items():
        points = 100 * frame.groupby("x")["accuracy"].agg(["mean", "std"])
        axes.errorbar(points.index, points["mean"], points["std"].fillna(0), marker="o", label=name)
    axes.set(xlabel=label, ylabel="test accuracy, %")


def privacy(runs: pd.DataFrame, folder: Path, figure: Figure) -> None:
    """Draw a line for each way to clip over epsilon, at a logarithmic scale, and FedAvg's level."""
    parts = runs["method"].str.split(", epsilon ", expand=True)
    known = runs.assign(line=parts[0], x=parts[1].astype(float), accuracy=runs["score"])
    is_fedavg = known["x"].isna()
    axes = figure.subplots()
    lines = {str(line): of_line for line, of_line in known[~is_fedavg].groupby("line")}
    draw(lines, axes, "epsilon, at delta = 1e-4")
    level = 100 * known.loc[is_fedavg, "score"].mean()
    axes.axhline(level, color="black", linestyle="--", label="FedAvg")
    axes.set_xscale("log")


def compression(runs: pd.DataFrame, folder: Path, figure: Figure) -> None:
    """Draw the curve of each method over the megabytes that its clients have sent."""
    lines: dict[str, list[pd.DataFrame]] = {}
    for method, cell in runs[["method", "cell"]].itertuples(index=False):
        curve = pd.read_csv(folder / "cells" / cell / "curve.csv").dropna(subset="val_acc")
        lines.setdefault(method, []).append(curve)
    frames = {name: pd.concat(curves) for name, curves in lines.items()}
    for frame in frames.values():
        frame["x"] = frame.groupby("round")["fed/bytes_up"].transform("mean") / 1e6
        frame["accuracy"] = frame["val_acc"]
    axes = figure.subplots()
    draw(frames, axes, "megabytes sent up")
    axes.set_xscale("log")


def robustness(runs: pd.DataFrame, folder: Path, figure: Figure) -> None:
    """Draw a panel for each attack, with a line for each rule over the share of attackers."""
    parts = runs["data"].str.extract(r"(.*), (\d+) %")
    known = runs.assign(attack=parts[0], x=parts[1].astype(float).fillna(0), accuracy=runs["score"])
    attacks = known["attack"].dropna().unique()
    # Runs without attackers belong to the line of each attack.
    without = known["attack"].isna()
    panels = figure.subplots(1, len(attacks), sharey=True)
    for axes, attack in zip(panels, attacks, strict=True):
        shown = known[without | (known["attack"] == attack)]
        draw(dict(iter(shown.groupby("method", sort=False))), axes, "attackers, %")
        axes.set_title(attack)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    for function, width in ((privacy, 7.0), (compression, 7.0), (robustness, 12.5)):
        folder = source / function.__name__
        figure = plt.figure(figsize=(width, 4.2), layout="constrained")
        function(pd.read_csv(folder / "results.csv"), folder, figure)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, frameon=False, loc="outside right center")
        figure.savefig(target / f"travels_{function.__name__}.png", dpi=110)
