"""Tables of an experiment's settings, runs, versions and times."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from fl_lightning.experiment.search import describe_point
from fl_lightning.report.experiment import Experiment
from fl_lightning.report.metric_names import is_share, metric_name
from fl_lightning.report.pages import Grid
from fl_lightning.report.texts import by_size
from fl_lightning.representation import duration

_PACKAGES = {"python": "Python", "torch": "PyTorch", "lightning": "Lightning", "numpy": "NumPy"}


def tuning_grid(experiment: Experiment) -> Grid | None:
    """Return the values that the searches have chosen; ``None`` if there was no search."""
    points: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in experiment.tuning:
        points.setdefault((row["data"], row["method"]), []).append(row)
    rows = []
    for (data, method), tried in points.items():
        chosen = next((row for row in tried if row["chosen"]), None)
        if chosen is not None:
            monitor = str(experiment.table["data"].get(data, {}).get("monitor", ""))
            score = _score(float(chosen["val"]), monitor) if chosen["val"] else "none"
            failed = sum(not row["val"] for row in tried)
            values = describe_point(json.loads(chosen["values"]))
            rows.append([data, method, values, metric_name(monitor), score, str(len(tried)), str(failed or "")])
    if not rows:
        return None
    caption = "Values chosen on validation, and the number of points that were tried."
    header = ["data", "method", "chosen", "validation metric", "its value", "points", "failed"]
    return Grid("tuning", caption, header, rows, set(), (0, 1, 2, 3), "tuning.csv lists all points.", (0, 1))


def failed_grid(experiment: Experiment) -> Grid | None:
    """Return the runs that failed, and those whose score is not finite; ``None`` if there are none."""
    reasons = [(row, row["error"]) for row in experiment.failed]
    for row in experiment.diverged:
        score = experiment.table["data"][row["data"]]["score"]
        reasons.append((row, f"`{score}` is {row['score']}: the model may have diverged."))
    rows = [[row["data"], row["method"], row["fold"], row["seed"], reason] for row, reason in reasons]
    if not rows:
        return None
    note = "cells/<id>/failed.json has the traceback." if experiment.failed else ""
    header = ["data", "method", "fold", "seed", "error"]
    return Grid("failed", "Runs without a score.", header, rows, set(), (0, 1, 4), note, (0, 1))


def run_grid(experiment: Experiment) -> Grid:
    """Return the runs of each data set."""
    rows = []
    for data in experiment.data:
        runs = experiment.runs_of(data)
        settings = experiment.table["data"][data]
        rows.append(
            [
                data,
                _class_name(settings["datamodule"]),
                _class_name(settings["model"]),
                str(len(runs)),
                ", ".join(f"{number:,}" for number in sorted({int(row["rounds"]) for row in runs})),
                f"{settings['score']}, best by {settings['monitor']}",
                _mean_time(experiment, runs),
                ", ".join(sorted({row["partition"][:8] for row in runs})),
            ]
        )
    header = ["data", "data module", "model", "runs", "rounds", "score", "time of a fit", "partitions"]
    note = "Time of a fit: mean, on one worker. Partitions: the first digits of their fingerprints."
    return Grid("runs", "Runs of each data set.", header, rows, text_columns=(0, 1, 2, 5, 7), note=note)


def version_grid(experiment: Experiment) -> Grid:
    """Return versions, dates and times as facts."""
    rows = [row for data in experiment.data for row in experiment.runs_of(data)]
    about = [experiment.about(row) for row in rows]
    facts = [["code", _several(row.get("code") for row in rows)]]
    facts += [[title, _several(entry.get(name) for entry in about)] for name, title in _PACKAGES.items()]
    facts.append(["device", _several(entry.get("device") for entry in about)])
    facts.append(["dates of the runs", dates_of(experiment)])
    facts.append(["time of all fits", time_of(experiment)])
    return Grid("versions", "", (), [fact for fact in facts if fact[1]], text_columns=(0, 1))


def versions_of(experiment: Experiment) -> list[str]:
    """Return the versions of the code that made the finished runs, sorted."""
    return sorted({row["code"] for data in experiment.data for row in experiment.runs_of(data) if row.get("code")})


def dates_of(experiment: Experiment) -> str:
    """Return when the runs were made; empty if that is not known."""
    about = _about_all(experiment)
    begun = sorted(str(entry["begun"]) for entry in about if "begun" in entry)
    ended = sorted(str(entry["ended"]) for entry in about if "ended" in entry)
    if not begun or not ended:
        return ""
    first, last = (moment[:16].replace("T", " ") for moment in (begun[0], ended[-1]))
    return f"{first} to {last if last[:10] != first[:10] else last[11:]} UTC"


def time_of(experiment: Experiment) -> str:
    """Return the time of all fits together; empty if that is not known."""
    seconds = [float(entry["seconds"]) for entry in _about_all(experiment) if "seconds" in entry]
    return duration(sum(seconds)) if seconds else ""


def _about_all(experiment: Experiment) -> list[dict[str, Any]]:
    return [experiment.about(row) for data in experiment.data for row in experiment.runs_of(data)]


def _score(value: float, monitor: str) -> str:
    return f"{100 * value:.2f} %" if is_share(monitor) else by_size(value, abs(value)).removeprefix("+")


def _class_name(spec: Any) -> str:
    """Return the class of a spec without its package: ``"CovertypeDataModule.named"``."""
    parts = str(spec["class_path"] if isinstance(spec, dict) else spec).split(".")
    classes = [place for place, part in enumerate(parts) if part[:1].isupper()]
    return ".".join(parts[classes[0] if classes else -1 :])


def _mean_time(experiment: Experiment, rows: list[dict[str, str]]) -> str:
    seconds = [float(about["seconds"]) for row in rows if "seconds" in (about := experiment.about(row))]
    return duration(sum(seconds) / len(seconds)) if seconds else ""


def _several(values: Iterable[Any]) -> str:
    return ", ".join(sorted({str(value) for value in values if value}))
