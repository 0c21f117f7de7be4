"""The cost of reaching a target: the number of models sent."""

from __future__ import annotations

import math

import numpy as np

from fl_lightning.report.experiment import CurveColumns, Experiment
from fl_lightning.report.metric_names import is_share, metric_name
from fl_lightning.report.pages import Grid


def cost_to_target(curve: CurveColumns, monitor: str, target: float, mode: str = "max") -> float | None:
    """Return the models sent until a run reaches a target, counted in rounds of FedAvg (Acar et al. 2021).

    A round of FedAvg sends one model to each of its clients and one back; SCAFFOLD's rounds count twice.

    Args:
        curve: The run's curve, with the columns ``fed/models_sent`` and ``fed/clients``.
        monitor: Column of the metric.
        target: Value that the metric must reach.
        mode: ``"max"`` if larger values are better, else ``"min"``.

    Returns:
        The cost; ``None`` if the run has not reached the target.
    """
    values = curve[monitor]
    with np.errstate(invalid="ignore"):
        reached = np.flatnonzero(values >= target if mode == "max" else values <= target)
    if len(reached) == 0:
        return None
    return _cost_until(curve, int(reached[0]))


def _cost_until(curve: CurveColumns, place: int) -> float:
    clients = curve["fed/clients"]
    trained = clients + curve.get("fed/dropped", np.zeros_like(clients))
    clients_a_round = float(trained[: place + 1].sum()) / float(curve["round"][place])
    return float(curve["fed/models_sent"][place]) / (2 * clients_a_round) if clients_a_round else 0.0


def communication_grid(experiment: Experiment) -> Grid | None:
    """Return each method's cost to reach each target; ``None`` if there are no targets."""
    methods, baseline = experiment.methods, experiment.baseline
    rows: list[list[str]] = []
    strong: set[tuple[int, int]] = set()
    for data in experiment.data:
        for target in experiment.table["data"][data].get("targets") or ():
            costs = {method: _costs(experiment, data, method, target) for method in methods}
            if not any(costs.values()):
                continue
            means = {method: mean for method, found in costs.items() if (mean := _mean(found)) is not None}
            least = min(means.values(), default=math.nan)
            if len(set(means.values())) > 1 or len(means) < sum(map(bool, costs.values())):
                strong |= {(len(rows), methods.index(method) + 2) for method, mean in means.items() if mean == least}
            cells = [_cell(experiment, data, method, costs[method], means) for method in methods]
            rows.append([data, _target_text(experiment, data, target), *cells])
    if not rows:
        return None
    caption = "Models sent until validation first reaches a target, in rounds of FedAvg: mean over runs."
    note = (
        f"In brackets: relative to {baseline}. A round of SCAFFOLD counts as two rounds of FedAvg. n+: a run has sent "
        "n and not reached the target; the number of runs that have is in brackets. Bold: least. Rounds without "
        "validation cannot be seen to reach a target."
    )
    grid = Grid("communication", caption, ["data", "target", *methods], rows, strong, (0, 1), note)
    return grid.turned_if_wide("method", 2)


def _target_text(experiment: Experiment, data: str, target: float) -> str:
    settings = experiment.table["data"][data]
    monitor = str(settings["monitor"])
    relation = "≥" if settings["mode"] == "max" else "≤"
    return f"{metric_name(monitor)} {relation} " + (f"{100 * target:g} %" if is_share(monitor) else f"{target:g}")


def _costs(experiment: Experiment, data: str, method: str, target: float) -> list[float | None]:
    """Return the cost of each run; ``None`` for a run that has not reached the target."""
    settings = experiment.table["data"][data]
    return [
        cost_to_target(curve, settings["monitor"], target, settings["mode"])
        for curve in _usable_curves(experiment, data, method)
    ]


def _usable_curves(experiment: Experiment, data: str, method: str) -> list[CurveColumns]:
    columns = {experiment.table["data"][data]["monitor"], "round", "fed/clients", "fed/models_sent"}
    return [curve for curve in experiment.curves(data, method) if columns <= curve.keys() and len(curve["round"])]


def _mean(costs: list[float | None]) -> float | None:
    """Return the mean; ``None`` unless all runs have reached the target."""
    known = [cost for cost in costs if cost is not None]
    return float(np.mean(known)) if known and len(known) == len(costs) else None


def _cell(experiment: Experiment, data: str, method: str, costs: list[float | None], means: dict[str, float]) -> str:
    if not costs:
        return ""
    if method not in means:
        curves = _usable_curves(experiment, data, method)
        unreached = [curve for curve, cost in zip(curves, costs, strict=True) if cost is None]
        sent = max(_cost_until(curve, len(curve["round"]) - 1) for curve in unreached)
        reached = sum(cost is not None for cost in costs)
        return f"{_short(sent)}+" + (f" ({reached} of {len(costs)} runs)" if len(costs) > 1 else "")
    base = means.get(experiment.baseline)
    relative = "" if method == experiment.baseline or base is None else f" ({means[method] / base:.2f}x)"
    return _short(means[method]) + relative


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
