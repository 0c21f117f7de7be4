"""Runs a Weights & Biases sweep on this machine. It needs no account and no network."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock
from rich.console import Console
from rich.table import Table

from fl_lightning.checks import Count, Natural, PathLike, check, duration, joined
from fl_lightning.experiment.files import read_json_if_there, write_csv, write_json
from fl_lightning.experiment.progress import say
from fl_lightning.experiment.search import (
    Choice,
    Point,
    Tried,
    describe_point,
    import_optuna,
    note_of_equals,
    points,
    propose,
)
from fl_lightning.experiment.specs import identity
from fl_lightning.experiment.sweep_file import Sweep, read_sweep
from fl_lightning.experiment.wandb_file import read_history
from fl_lightning.files import make_folder

Row = dict[str, Any]
_COLUMNS = ("run", "status", "score", "values", "id", "folder", "error")
_NOT_LOGGED = ("there is no folder of its Weights & Biases run", "the metric of the sweep was never logged")
_SHOWN = 12  # runs in the table at the end; all are in the file


def run_sweep(
    path: str | os.PathLike[str],
    *,
    count: int | None = None,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    further: Sequence[str] = (),
    console: Console | None = None,
) -> list[Row]:
    """Run the sweep of a file and return its runs, in the order in which they were tried.

    A run calls the command that ``wandb agent`` would call, in the current folder. Weights & Biases logs it offline, in
    a group with the name of the sweep. The score of a run is the best value of the metric in the file of the run. A run
    that has a score is not repeated, unless the file now has another program or command. At the end, the console shows
    the folders for ``wandb sync``.

    Args:
        path: The file.
        count: Largest number of runs; random and Bayesian searches need it.
        seed: Seed of the search.
        output: Folder of ``sweep.csv``; ``runs/sweeps/<name>`` if ``None``.
        further: Arguments that are added to the command of each run.
        console: Console for the progress.

    Raises:
        TypeError: If an argument is of another kind.
        FileNotFoundError: If the file does not exist.
        OSError: If no file can be written into the folder.
        ValueError: If the file is wrong, an argument is out of its range, or a random or Bayesian search has no
            ``count``.
        TimeoutError: If another sweep is at work in the folder.
        RuntimeError: If a Bayesian search needs optuna and optuna is not installed, or the first run that ends without
            an error has not logged the metric; no other run is started then.
    """
    check("`path`", path, PathLike)
    if not Path(path).is_file():
        raise FileNotFoundError(f"`path` must be the YAML file of a sweep; there is no {path}.")
    check("`further`", further, Sequence[str])
    if output is not None:
        check("`output`", output, PathLike)
    if console is not None:
        check("`console`", console, Console)
    check("`seed`", seed, Natural)
    check("`count`", count, Count | None)
    sweep = read_sweep(path)
    if count is None and sweep.method != "grid":
        raise ValueError(f"`method: {sweep.method}` needs `count`, the number of runs, such as `--count 20`; got None.")
    if sweep.method == "bayes":
        import_optuna("`method: bayes`")
    total = count or 0 if sweep.method == "bayes" else len(points(sweep.space, sweep.method, count, seed))
    console = console or Console()
    folder = Path(output) if output is not None else Path("runs") / "sweeps" / sweep.name
    if sweep.only_in_service:
        unused = joined([f"`{name}`" for name in sweep.only_in_service])
        say(console, f"Only the service of Weights & Biases uses {unused}: no effect here.")
    make_folder("output", folder, "Give another `output`.")
    rows: list[Row] = []
    spent: list[float] = []  # seconds of the runs that this call has executed
    with FileLock(folder / ".lock", timeout=10.0):
        while len(rows) < total:
            begun = time.monotonic()
            row, executed = _run(sweep, len(rows), _next_point(sweep, rows, count, seed), further, folder)
            spent += [time.monotonic() - begun] if executed else []
            rows.append(row)
            write_csv(folder / "sweep.csv", _COLUMNS, [{**row, "values": json.dumps(row["values"])} for row in rows])
            score = row["error"] if row["score"] is None else f"{sweep.metric} {row['score']:.4f}"
            text = f"{len(rows)}/{total} {row['status']}: {_text(sweep, row['values'])}: {score}"
            if spent and len(rows) < total:
                text += f"; about {duration(statistics.mean(spent) * (total - len(rows)))} left"
            say(console, text)
            if row["error"] in _NOT_LOGGED and all(each["score"] is None for each in rows):
                raise RuntimeError(
                    f"The first run of {sweep.program} ended without an error, but {row['error']}. Its Trainer must "
                    f"log `{sweep.metric}`, the `metric` of the sweep: give it `logger=WandbLogger()` of "
                    f'lightning.pytorch.loggers, and let the module or a callback log "{sweep.metric}". No other run '
                    "was started."
                )
    _report(sweep, rows, folder, further, console)
    return rows


def _next_point(sweep: Sweep, rows: Sequence[Row], count: int | None, seed: int) -> Point:
    if sweep.method != "bayes":
        return points(sweep.space, sweep.method, count, seed)[len(rows)]
    tried = [Tried(row["values"], (), 1, row["score"], "", 0) for row in rows]
    [point] = propose(sweep.space, tried, 1, seed, sweep.goal.removesuffix("imize"))
    return point


def _run(sweep: Sweep, number: int, point: Point, further: Sequence[str], folder: Path) -> tuple[Row, bool]:
    """Run one point, unless an earlier run has logged the metric; return its row and whether it was executed."""
    run_id = identity([sweep.name, sweep.program_given, sweep.command, point, list(further)])
    row: Row = {"run": number + 1, "values": point, "id": run_id, "status": "failed", "score": None, "error": ""}
    # what is kept of a run counts also without its folder, which `wandb sync` may remove
    path = folder / "finished" / f"{run_id}.json"
    known = read_json_if_there(path)
    executed = known is None or sweep.metric not in known["metrics"]
    if executed:
        # without this service a run starts its own one, which has written the file when the run ends
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"} | {
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_RUN_ID": run_id,
            "WANDB_RUN_GROUP": sweep.name,
        }
        if error := _call(sweep.command_of(point, further), environment):
            return {**row, "folder": "", "error": error}, True
        found = _folder_of(run_id, point, further)
        known = {"folder": str(found or ""), "metrics": {} if found is None else _best_values(found)}
        write_json(path, known)
    row["folder"] = known["folder"]
    if sweep.metric not in known["metrics"]:
        return {**row, "error": _NOT_LOGGED[known["folder"] != ""]}, executed
    score = known["metrics"][sweep.metric][sweep.goal]
    if score is None:
        return {**row, "error": f"{sweep.metric} was never finite"}, executed
    return {**row, "status": "finished", "score": score}, executed


def _best_values(folder: Path) -> dict[str, dict[str, float | None]]:
    """Return the largest and the smallest finite value of each metric of a run, ``None`` if none is finite."""
    values: dict[str, list[float]] = {}
    for step in (step for file in folder.glob("*.wandb") for step in read_history(file)):
        for name, value in step.items():
            if isinstance(value, (int, float)):
                values.setdefault(name, []).extend([float(value)] if math.isfinite(value) else [])
    return {
        name: {"maximize": max(finite, default=None), "minimize": min(finite, default=None)}
        for name, finite in values.items()
    }


def _call(command: list[str], environment: dict[str, str]) -> str:
    """Run a command; return its error, or the empty string if it succeeds."""
    with tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process:
            try:
                code = process.wait()
            except BaseException:  # mostly Ctrl-C
                process.kill()
                raise
        log.seek(0)
        lines = log.read().strip().splitlines()
    return "" if code == 0 else f"exit code {code}: {lines[-1] if lines else 'no output'}"


def _folder_of(run_id: str, point: Point, further: Sequence[str]) -> Path | None:
    """Return the newest folder of a run.

    It lies below the ``--output`` of the program, or below ``wandb`` or ``runs`` if the command has no ``--output``.
    """
    given = [argument.partition("=")[2] for argument in further if argument.startswith("--output=")]
    places = given[-1:] or ([point["output"]] if "output" in point else ["wandb", "runs"])
    found = [folder for place in places for folder in Path(place).rglob(f"offline-run-*-{run_id}")]
    return max(found, key=lambda folder: folder.name, default=None)


def _report(sweep: Sweep, rows: list[Row], folder: Path, further: Sequence[str], console: Console) -> None:
    known = [row for row in rows if row["score"] is not None]
    if not known:
        text = f"{sweep.name}: no run has a score. All runs: {folder / 'sweep.csv'}"
        console.print(text, highlight=False, soft_wrap=True)
        return
    title = f"{sweep.name}: {len(known)} of {len(rows)} runs, best first"
    table = Table("run", "configuration", sweep.metric, title=title)
    known.sort(key=lambda row: row["score"], reverse=sweep.goal == "maximize")
    for row in known[:_SHOWN]:
        table.add_row(str(row["run"]), _text(sweep, row["values"]), f"{row['score']:.4f}")
    console.print(table)
    best = known[0]
    equals = note_of_equals([row["score"] for row in known], best["score"])
    dot = "." if equals else ""
    say(
        console, f"Best configuration: {_text(sweep, best['values'])} ({sweep.metric} {best['score']:.4f}){dot}{equals}"
    )
    command = " ".join(["python", *sweep.command_of(best["values"], further)[1:]])
    console.print(f"  {command}", highlight=False, soft_wrap=True)
    folders = sorted({row["folder"] for row in known})
    text = f"{len(folders)} offline run folders; to send them: wandb sync {pattern_of(folders)}."
    say(console, f"{text} All runs: {folder / 'sweep.csv'}")


def pattern_of(folders: Sequence[str]) -> str:
    """Return a pattern of the shell that is true of all folders of runs, such as ``runs/a/*/wandb/offline-run-*``."""
    parts = [Path(folder).parent.parts for folder in folders]
    if len({len(each) for each in parts}) > 1:
        return " ".join(folders)
    shown = [names[0] if len(set(names)) == 1 else "*" for names in zip(*parts, strict=True)]
    return str(Path(*shown, "offline-run-*"))


def _text(sweep: Sweep, point: Point) -> str:
    """Return a point as a text, without the parameters that have a single value unless all have."""
    fixed = [name for name, entry in sweep.space.items() if isinstance(entry, Choice) and len(entry.values) == 1]
    varied = {name: value for name, value in point.items() if name not in fixed}
    return describe_point(varied or point) or sweep.name
