"""Tables and figure of Gao et al. 2024, Figs. 4 and 5, from the results of two tables.

fl-lightning run gao_devices; fl-lightning run gao_methods
python research/scripts/gao.py runs/gao_devices runs/gao_methods accuracy.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

UPLOADS_A_ROUND = 20
READINGS = {"100 uploads": ("uploads", 100), "100 moves": ("moves", 100), "300 uploads": ("uploads", 300)}


def curves_of(folder: Path) -> pd.DataFrame:
    """Return the test accuracy of each run by uploads, server moves and virtual time."""
    frames = []
    for run in pd.read_csv(folder / "results.csv", dtype={"data": str}).to_dict("records"):
        curve = pd.read_csv(folder / "cells" / run["cell"] / "curve.csv")
        points = {
            "uploads": UPLOADS_A_ROUND * curve["round"],
            "moves": curve["fed/aggregations"],
            "time": curve["fed/virtual_time"],
            "accuracy": 100 * curve["val_acc"],
        }
        of_run = {"method": run["method"], "experiment": run["data"], "seed": run["seed"]}
        frames.append(pd.DataFrame(points).assign(**of_run))
    return pd.concat(frames, ignore_index=True)


def at_readings(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the accuracy of each run when a number of uploads or moves was first reached; NaN if it was not."""
    readings = {}
    for name, (column, number) in READINGS.items():
        reached = curves[curves[column] >= number]
        runs = reached.groupby(["method", "experiment", "seed"], sort=False)
        readings[name] = runs["accuracy"].first()
    return pd.DataFrame(readings)


def draw(axes: Axes, curves: pd.DataFrame, line: str, x: str) -> None:
    """Draw mean and sample standard deviation over seeds, where all runs of a line have values."""
    for name, of_line in curves.groupby(line, sort=False):
        runs = [run for _, run in of_line.groupby("seed")]
        places = np.unique(np.concatenate([run[x] for run in runs]))
        low = max(run[x].min() for run in runs)
        high = min(run[x].max() for run in runs)
        places = places[(places >= low) & (places <= high)]
        values = np.array([np.interp(places, run[x], run["accuracy"]) for run in runs])
        mean = values.mean(0)
        axes.plot(places, mean, label=name)
        if len(runs) > 1:
            sd = values.std(0, ddof=1)
            axes.fill_between(places, mean - sd, mean + sd, alpha=0.15)
    axes.set_xlabel("virtual time" if x == "time" else x)
    axes.legend(frameon=False)


if __name__ == "__main__":
    devices = curves_of(Path(sys.argv[1]))
    methods = curves_of(Path(sys.argv[2]))
    found = at_readings(pd.concat([devices, methods]).drop_duplicates())
    over_seeds = found.groupby(["method", "experiment"], sort=False).agg(["mean", "std", "count"])
    print(over_seeds.round(1).to_string())
    ours = found.loc["dynamic weights"]
    for other in ("PAPAYA", "FedAsync"):
        differences = ours - found.loc[other].reindex(ours.index)
        print(f"\ndynamic weights minus {other}, by seed\n{differences.to_string()}")
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.2), sharey=True, layout="constrained")
    draw(panels[0], devices, "experiment", "uploads")
    draw(panels[1], methods, "method", "uploads")
    draw(panels[2], methods, "method", "time")
    panels[0].set_title("Fig. 4: FedAsync")
    panels[1].set_title("Fig. 5: experiment 1.4")
    panels[2].set_title("Fig. 5 by virtual time")
    panels[0].set_ylabel("test accuracy, %")
    figure.savefig(sys.argv[3], dpi=120)
