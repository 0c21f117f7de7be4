"""What it takes to reach a target: rounds and models sent."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fl_lightning.report.experiment import Curve, Experiment
from fl_lightning.report.grid import Grid


def cost_to_target(curve: Curve, monitor: str, target: float, mode: str = "max") -> float | None:
    """Return the models sent until a target is reached, in rounds of FedAvg (Acar et al. 2021).

    A round of FedAvg sends one model to each of its clients and one back; SCAFFOLD's rounds count twice.

    Args:
        curve: The run's curve, with ``fed/models_sent`` and ``fed/clients``.
        monitor: Name of the metric.
        target: Value to be reached.
        mode: ``"max"`` if larger values are better, else ``"min"``.

    Returns:
        The cost, ``None`` if the run has not reached the target.
    """
    values = curve[monitor]
    with np.errstate(invalid="ignore"):
        reached = np.flatnonzero(values >= target if mode == "max" else values <= target)
    if len(reached) == 0:
        return None
    return _cost_until(curve, int(reached[0]))


def _cost_until(curve: Curve, place: int) -> float:
    clients = curve["fed/clients"]
    trained = clients + curve.get("fed/dropped", np.zeros_like(clients))
    clients_a_round = float(trained[: place + 1].sum()) / float(curve["round"][place])
    return float(curve["fed/models_sent"][place]) / (2 * clients_a_round)


def communication_grid(experiment: Experiment) -> Grid | None:
    """Return the cost of each method to each target; ``None`` if there are no targets."""
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    for data in experiment.data:
        settings = experiment.table["data"][data]
        for target in settings.get("targets") or ():
            costs = {method: _costs(experiment, data, method, target) for method in experiment.methods}
            means = {method: float(np.mean(known)) for method, c in costs.items() if (known := _all_known(c))}
            base = means.get(experiment.baseline, math.nan)
            for method, found in costs.items():
                if found:
                    if method in means and means[method] == min(means.values()):
                        strong.add((len(rows), 3))
                    rows.append(_row(experiment, data, method, target, found, base))
    if not rows:
        return None
    caption = (
        "Models sent until validation first reaches a target, in rounds of FedAvg (two for each of SCAFFOLD's): mean "
        f"over runs; n+ where a run has sent n without reaching it. Last column: relative to {experiment.baseline}."
    )
    header = ["data", "target", "method", "rounds of FedAvg", "runs that reached it", f"times {experiment.baseline}'s"]
    return Grid("communication", caption, header, rows, strong, text_columns=(0, 2))


def _costs(experiment: Experiment, data: str, method: str, target: float) -> list[float | None]:
    settings = experiment.table["data"][data]
    curves = experiment.curves(data, method)
    return [
        cost_to_target(curve, settings["monitor"], target, settings["mode"])
        for curve in curves
        if settings["monitor"] in curve
    ]


def _all_known(costs: list[float | None]) -> list[float]:
    """Return the costs if all runs have reached the target, else none."""
    known = [cost for cost in costs if cost is not None]
    return known if len(known) == len(costs) else []


def _row(
    experiment: Experiment, data: str, method: str, target: Any, costs: list[float | None], base: float
) -> list[str]:
    reached = [cost for cost in costs if cost is not None]
    runs = f"{len(reached)} of {len(costs)}"
    if len(reached) < len(costs):
        sent = max(_cost_until(curve, len(curve["round"]) - 1) for curve in experiment.curves(data, method))
        return [data, f"{target:g}", method, f"{_short(sent)}+", runs, ""]
    mean = float(np.mean(reached))
    ratio = f"{mean / base:.2f}" if math.isfinite(base) else ""
    return [data, f"{target:g}", method, _short(mean), runs, ratio]


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
