"""Runs a sweep over the options of a program on this machine. It needs no account and no network.

The file is that of a sweep of Weights & Biases. Each point of the search is one call of the program, such as
``python program.py --lr=0.1 --mu=0.02``. The program logs by a ``CSVLogger`` into the folder that the environment
variable ``FL_LIGHTNING_LOGS`` names, and its score is read from the ``metrics.csv`` there.
"""

from __future__ import annotations

import csv
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from fl_lightning.experiment.build import refuse_unknown
from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.files import read_json_if_there, write_csv, write_json
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.processes import RunOptions
from fl_lightning.experiment.progress import say
from fl_lightning.experiment.runner import Runner
from fl_lightning.experiment.search import Point, Search, SearchKind, choice_of, describe_point
from fl_lightning.experiment.store import Store
from fl_lightning.experiment.table_file import read_yaml
from fl_lightning.files import make_folder
from fl_lightning.settings import Finite, PathLike, Positive, check
from fl_lightning.shipped import find_file
from fl_lightning.words import duration, enumeration, quantity

Row = dict[str, Any]
LOGS = "FL_LIGHTNING_LOGS"
"""Environment variable with the folder in which the program of a sweep logs."""
_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
#: Entries of the format of Weights & Biases that only its service uses.
_OF_SERVICE = ("early_terminate", "run_cap", "project", "entity", "controller", "scheduler", "job", "image_uri")
_KNOWN = ("program", "method", "metric", "parameters", "name", "command", "description", "kind", "apiVersion")
_METRIC = ("name", "goal")
_METRIC_OF_SERVICE = ("target", "impute", "impute_while_running")
_METHODS: dict[str, SearchKind] = {"grid": "grid", "random": "random", "bayes": "tpe"}
_RANGES = ("uniform", "int_uniform", "q_uniform", "log_uniform_values")
_NOT_LOGGED = "the metric of the sweep was never logged"


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

    A sweep is a search, as in a table, whose cells are calls of a program: each run calls the command that
    ``wandb agent`` would call, in the current folder. The score of a run is the best value of the metric in the
    ``metrics.csv`` that its ``CSVLogger`` has written into the folder of the environment variable
    ``FL_LIGHTNING_LOGS``. A run that has a score is not repeated, unless the file now has another program or command.
    A program that logs with Weights & Biases too does so offline, in a group with the name of the sweep. At the end,
    the console shows the folders for ``wandb sync``.

    Args:
        path: The file, or the name of a sweep that comes with the package.
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
        RuntimeError: If the first run that ends without an error has not logged the metric; no other run is started
            then.
    """
    check("`output`", output, PathLike | None)
    sweep = Sweep(find_file("sweep", check("`path`", path, PathLike)), count, seed, further)
    folder = Path(output or Path("runs", "sweeps", sweep.name)).absolute()
    console = check("`console`", console or Console(), Console)
    if sweep.only_in_service:
        unused = enumeration([f"`{name}`" for name in sweep.only_in_service])
        say(console, f"Only the service of Weights & Biases uses {unused}: no effect here.")
    make_folder("output", folder, "Give another `output`.")

    def job(cell: Cell) -> CellJob:
        return _ProgramJob(cell, folder, command=sweep.command(cell.values), mode=sweep.mode)

    runner = Runner(folder, RunOptions(workers=0), Store(folder).failures(), job, Console(quiet=True))
    rows: list[Row] = []
    total = len(sweep.points)
    finished_before = {path.parent.name for path in folder.glob("cells/*/result.json")}
    executed = 0
    begun = time.monotonic()
    while runner.try_next([sweep]):
        row = _row_of_last(sweep, folder)
        rows.append(row)
        write_csv(folder / "sweep.csv", list(row), [{**each, "values": json.dumps(each["values"])} for each in rows])
        outcome = row["error"] if row["score"] is None else f"{sweep.metric} {row['score']:.4f}"
        text = f"{len(rows)}/{total} {row['status']}: {sweep.describe(row['values'])}: {outcome}"
        if row["id"] not in finished_before:
            executed += 1
        if executed and len(rows) < total:
            seconds_a_run = (time.monotonic() - begun) / executed
            text += f"; about {duration(seconds_a_run * (total - len(rows)))} left"
        say(console, text)
        if _NOT_LOGGED in row["error"] and sweep.best() is None:
            raise RuntimeError(
                f"`metric`: the first run has not logged `{sweep.metric}`. Give its Trainer "
                f'`logger=CSVLogger(os.environ["{LOGS}"])`, and let the module or a callback log it. No other run was '
                "started."
            )
    _tell_end(sweep, rows, console)
    say(console, f"All runs: {folder / 'sweep.csv'}")
    return rows


def _row_of_last(sweep: Sweep, folder: Path) -> Row:
    """Return the row of ``sweep.csv`` of the point that was tried last."""
    tried = sweep.tried[-1]
    [run_id] = tried.fits
    result = read_json_if_there(folder / "cells" / run_id / "result.json") or {}
    return {
        "run": len(sweep.tried),
        "status": "failed" if tried.score is None else "finished",
        "score": tried.score,
        "values": tried.point,
        "id": run_id,
        "folder": result.get("folder", ""),
        "error": tried.error,
    }


def _tell_end(sweep: Sweep, rows: Sequence[Row], console: Console) -> None:
    """Print the best configuration, and how to send the runs to Weights & Biases if there are any."""
    best = sweep.best()
    if best is None:
        return
    text = f"Best configuration: {sweep.describe(best.point)} ({sweep.metric} {best.score:.4f})."
    say(console, text + sweep.note_of_equals())
    folders = {Path(row["folder"]) for row in rows if row["folder"]}
    if folders:
        place = os.path.commonpath([folder.parent for folder in folders]) or "."
        sync = f"find {shlex.quote(place)} -name 'offline-run-*' -exec wandb sync {{}} +"
        say(console, f"{quantity(len(folders), 'offline run folder')}; to send them: {sync}")


class Sweep(Search):
    """The search of a file for ``wandb sweep``, one point at a time.

    The program may be named from the current folder or from a folder above the file.

    Args:
        path: The file.
        count: Largest number of runs.
        seed: Seed of the search.
        further: Words at the end of each command.

    Attributes:
        only_in_service: Entries of the file that only the service of Weights & Biases uses.

    Raises:
        FileNotFoundError: If the file or its program does not exist.
        ValueError: If an entry is unknown or missing, or only the service of Weights & Biases understands it.
    """

    def __init__(
        self, path: str | os.PathLike[str], count: int | None = None, seed: int = 0, further: Sequence[str] = ()
    ) -> None:
        content = read_yaml(Path(path))
        refuse_unknown(str(path), content, (*_KNOWN, *_OF_SERVICE))
        metric = check("`metric`", content.get("metric"), Mapping)
        refuse_unknown("`metric`", metric, (*_METRIC, *_METRIC_OF_SERVICE))
        goal = check("`metric.goal`", metric.get("goal"), Literal["maximize", "minimize"])
        method = check("`method`", content.get("method"), Literal[*_METHODS])
        parameters = check("`parameters`", content.get("parameters"), Mapping)
        super().__init__(
            space={name: _parameter(f"parameters.{name}", entry) for name, entry in parameters.items()},
            kind=_METHODS[method],
            count=count,
            seed=seed,
            mode="max" if goal == "maximize" else "min",
            at_once=1,
        )
        self.name = str(content.get("name") or Path(path).stem)
        self.further = list(further)
        self.metric = check("`metric.name`", metric.get("name"), str)
        # The name that the file gives does not depend on the current folder, so the ids of runs are made with it.
        self.program_given = check("`program`", content.get("program"), str)
        self.program = _found(self.program_given, Path(path))
        self.words = list(content.get("command") or _COMMAND)
        self.only_in_service = [entry for entry in _OF_SERVICE if entry in content]
        self.only_in_service += [f"metric.{entry}" for entry in _METRIC_OF_SERVICE if entry in metric]

    def cells(self, point: Point, number: int) -> list[Cell]:
        """Return the one run of a point."""
        config = {
            "sweep": self.name,
            "program": self.program_given,
            "metric": self.metric,
            "command": self.words,
            "further": self.further,
            "values": point,
        }
        return [Cell(self.name, self.program_given, 0, self.seed, point, config)]

    def command(self, point: Point) -> list[str]:
        """Return the command of a run as ``wandb agent`` would make it."""
        arguments = [f"--{name}={value}" for name, value in point.items()]
        macros = {
            "${env}": [],
            "${interpreter}": [sys.executable],
            "python": [sys.executable],
            "python3": [sys.executable],
            "${program}": [self.program],
            "${args}": arguments,
            "${args_no_hyphens}": [argument.removeprefix("--") for argument in arguments],
        }
        command = []
        for word in self.words:
            command += macros.get(word, [word])
        return command + self.further

    def describe(self, point: Point) -> str:
        """Return a point as a string, without the parameters that have a single value unless all have."""
        varied = {name: value for name, value in point.items() if not self.space[name].single()}
        return describe_point(varied or point) or self.name


@dataclass(frozen=True)
class _ProgramJob(CellJob):
    """The order to call a program, and to read the score that it has logged."""

    command: Sequence[str] = ()
    mode: str = "max"

    def run(self) -> None:
        logs = self.folder / "logs"
        # An earlier attempt has failed, so what it has logged is no score.
        shutil.rmtree(logs, ignore_errors=True)
        # The service of Weights & Biases that this process may have would write into the folder where it was started.
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
        environment |= {
            LOGS: str(logs),
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_RUN_ID": self.cell.id,
            "WANDB_RUN_GROUP": self.cell.data,
        }
        with self.log.open("wb") as log:
            code = subprocess.call(self.command, env=environment, stdout=log, stderr=log)
        if code:
            lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RuntimeError(f"exit code {code}: {lines[-1] if lines else 'no output'}")
        score = _best_logged(logs, self.cell.config["metric"], self.mode)
        self.check_claim()
        (self.folder / "failed.json").unlink(missing_ok=True)
        write_json(self.folder / "result.json", {"val": score, "folder": self._offline_folder()})

    def _offline_folder(self) -> str:
        """Return the newest folder of the run that Weights & Biases has logged; empty if there is none.

        It is below the program's ``--output``, if there is this option.
        """
        places = ["wandb", "runs"]
        for word in self.command:
            if word.startswith("--output="):
                places = [word.removeprefix("--output=")]
        found: list[Path] = []
        for place in places:
            found += Path(place).rglob(f"offline-run-*-{self.cell.id}")
        # Names begin with the date and the time.
        newest = max(found, key=lambda folder: folder.name, default=None)
        return "" if newest is None else str(newest)


def _best_logged(logs: Path, metric: str, mode: str) -> float:
    """Return the best value of a metric in the files of ``CSVLogger`` below a folder; NaN if none is finite.

    Raises:
        RuntimeError: If the metric was never logged.
    """
    logged: list[float] = []
    for path in logs.rglob("metrics.csv"):
        with path.open(encoding="utf-8", newline="") as file:
            # A row has no value of a metric that was not logged with its other metrics.
            logged += [float(row[metric]) for row in csv.DictReader(file) if row.get(metric)]
    if not logged:
        raise RuntimeError(_NOT_LOGGED)
    finite = [value for value in logged if math.isfinite(value)]
    best = max if mode == "max" else min
    return best(finite, default=math.nan)


def _found(program: str, file: Path) -> str:
    """Return the path of a program that is named from the current folder, or from a folder above the sweep's file.

    Raises:
        FileNotFoundError: If there is none, nor a command of this name.
    """
    if shutil.which(program):
        return program
    for folder in (Path(), *file.resolve().parents):
        if (folder / program).exists():
            return str(folder / program)
    raise FileNotFoundError(f"`program` of {file} must be a script here or above that file; there is no {program}.")


def _parameter(name: str, entry: Any) -> Any:
    """Return Optuna's distribution of a parameter of a file.

    Raises:
        TypeError: If a bound of a range is not a number.
        ValueError: If the entry is none that a search of Optuna's knows.
    """
    match entry:
        case {"value": value, **others} if set(others) <= {"distribution"}:
            return choice_of([value])
        case {"values": [*values], **others} if values and set(others) <= {"distribution"}:
            return choice_of(values)
        case {"min": low, "max": high, **others} if set(others) <= {"distribution", "q"}:
            return _range(name, low, high, others)
    raise ValueError(f"`{name}` must have a `value`, a list of `values`, or `min` and `max`, got {entry!r}.")


def _range(name: str, low: Any, high: Any, others: Mapping[Any, Any]) -> Any:
    """Return Optuna's distribution of a parameter between two bounds."""
    from optuna.distributions import FloatDistribution, IntDistribution

    low = check(f"`{name}.min`", low, Finite)
    high = check(f"`{name}.max`", high, Finite)
    is_whole = isinstance(low, int) and isinstance(high, int)
    kind = others.get("distribution", "int_uniform" if is_whole else "uniform")
    match check(f"`{name}.distribution`", kind, Literal[*_RANGES]):
        case "int_uniform":
            return IntDistribution(int(low), int(high))
        case "q_uniform":
            return FloatDistribution(low, high, step=float(check(f"`{name}.q`", others.get("q", 1.0), Positive)))
        case "log_uniform_values":
            return FloatDistribution(low, high, log=True)
    return FloatDistribution(low, high)
