"""The differential privacy that each method spent."""

from __future__ import annotations

import numpy as np

from fl_lightning.report.experiment import CurveColumns, Experiment
from fl_lightning.report.pages import Grid


def privacy_grid(experiment: Experiment) -> Grid | None:
    """Return epsilon at the end of the runs of each method; ``None`` if no method had any."""
    methods = experiment.methods
    rows = [[data, *(_cell(experiment, data, method) for method in methods)] for data in experiment.data]
    if not any(cell for row in rows for cell in row[1:]):
        return None
    caption = "Epsilon at delta of client-level differential privacy: the largest of a method's runs."
    note = (
        "It is that of the rounds that ran. The choice of hyper-parameters looked at the data too, and is not counted. "
        "Empty: none of this kind; privacy against the server and of single samples is not in this table."
    )
    grid = Grid("privacy", caption, ["data", *methods], rows, set(), (0,), note)
    return grid.turned_if_wide("method", 1)


def _cell(experiment: Experiment, data: str, method: str) -> str:
    spent = [_last(curve, "fed/epsilon") for curve in experiment.curves(data, method) if "fed/epsilon" in curve]
    deltas = [_last(curve, "fed/delta") for curve in experiment.curves(data, method) if "fed/delta" in curve]
    return f"{max(spent):.3g} at {max(deltas):.3g}" if spent and deltas else ""


def _last(curve: CurveColumns, column: str) -> float:
    """Return a column's last value; infinite if there is none."""
    known = curve[column][~np.isnan(curve[column])]
    return float(known[-1]) if len(known) else np.inf
