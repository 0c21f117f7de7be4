"""Runs a Weights & Biases sweep on this machine. It needs no account and no network."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_lightning.checks import Natural, PathLike, check, duration, joined
from fl_lightning.experiment.cell import CellJob
from fl_lightning.experiment.files import read_json_if_there, write_csv, write_json
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.processes import RunOptions
from fl_lightning.experiment.progress import say
from fl_lightning.experiment.runner import Runner
from fl_lightning.experiment.sweep_file import Sweep
from fl_lightning.experiment.wandb_file import read_history
from fl_lightning.files import make_folder

Row = dict[str, Any]
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
    ``wandb agent`` would call, in the current folder. Weights & Biases logs it offline, in a group with the name of the
    sweep. The score of a run is the best value of the metric in the file of the run. A run that has a score is not
    repeated, unless the file now has another program or command. At the end, the console shows the folders for
    ``wandb sync``.

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
        RuntimeError: If a Bayesian search needs optuna and optuna is not installed, or the first run that ends without
            an error has not logged the metric; no other run is started then.
    """
    check("`path`", path, PathLike)
    check("`further`", further, Sequence[str])
    check("`output`", output, PathLike | None)
    check("`seed`", seed, Natural)
    sweep = Sweep(Path(path), count, seed, further)
    folder = Path(output or Path("runs", "sweeps", sweep.name)).absolute()
    console = check("`console`", console or Console(), Console)
    if sweep.only_in_service:
        unused = joined([f"`{name}`" for name in sweep.only_in_service])
        say(console, f"Only the service of Weights & Biases uses {unused}: no effect here.")
    make_folder("output", folder, "Give another `output`.")
    runner = _ProgramRunner(folder, RunOptions(workers=0), time.time(), sweep)
    runner.begin(Console(quiet=True))
    rows: list[Row] = []
    spent: list[float] = []  # seconds of the runs that this call has executed
    total, begun = len(sweep.points), time.monotonic()
    known = {path.parent.name for path in folder.glob("cells/*/result.json")}
    while runner.try_next([sweep]):
        row = _row(sweep, folder)
        rows.append(row)
        write_csv(folder / "sweep.csv", list(row), [{**each, "values": json.dumps(each["values"])} for each in rows])
        score = row["error"] if row["score"] is None else f"{sweep.metric} {row['score']:.4f}"
        text = f"{len(rows)}/{total} {row['status']}: {sweep.describe(row['values'])}: {score}"
        spent += [] if row["id"] in known else [time.monotonic() - begun]
        begun = time.monotonic()
        if spent and len(rows) < total:
            text += f"; about {duration(statistics.mean(spent) * (total - len(rows)))} left"
        say(console, text)
        if _NOT_LOGGED in row["error"] and sweep.best() is None:
            raise RuntimeError(
                f"`metric`: the first run of {sweep.program} ended without an error, but has not logged "
                f"`{sweep.metric}`. Give its Trainer `logger=WandbLogger()` of lightning.pytorch.loggers, and let the "
                f'module or a callback log "{sweep.metric}". No other run was started.'
            )
    if (best := sweep.best()) is not None:
        text = f"Best configuration: {sweep.describe(best.point)} ({sweep.metric} {best.score:.4f})."
        folders = sorted({row["folder"] for row in rows if row["score"] is not None})
        say(console, text + sweep.note_of_equals())
        say(console, f"{len(folders)} offline run folders; to send them: wandb sync {pattern_of(folders)}.")
    say(console, f"All runs: {folder / 'sweep.csv'}")
    return rows


def _row(sweep: Sweep, folder: Path) -> Row:
    """Return what came out of the last run."""
    tried = sweep.tried[-1]
    result = read_json_if_there(folder / "cells" / tried.fits[0] / "result.json") or {}
    return {
        "run": len(sweep.tried),
        "status": "failed" if tried.score is None else "finished",
        "score": tried.score,
        "values": tried.point,
        "id": tried.fits[0],
        "folder": result.get("folder", ""),
        "error": tried.error,
    }


@dataclass
class _ProgramRunner(Runner):
    sweep: Sweep

    def job(self, cell: Cell) -> CellJob:
        return _ProgramJob(cell, self.folder, command=self.sweep.command(cell.values), mode=self.sweep.mode)


@dataclass(frozen=True)
class _ProgramJob(CellJob):
    """The order to call a program, and to read its score from the file of its Weights & Biases run."""

    command: Sequence[str] = ()
    mode: str = "max"

    def run(self) -> None:
        # without this service a run starts its own one, which has written the file when the run ends
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"} | {
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            "WANDB_RUN_ID": self.cell.id,
            "WANDB_RUN_GROUP": self.cell.data,
        }
        with self.log.open("w") as log:
            code = subprocess.call(self.command, env=environment, stdout=log, stderr=log)
        if code:
            lines = self.log.read_text().strip().splitlines()
            raise RuntimeError(f"exit code {code}: {lines[-1] if lines else 'no output'}")
        # below `--output` if the program has it
        given = [word.partition("=")[2] for word in self.command if word.startswith("--output=")]
        places = given[-1:] or ["wandb", "runs"]
        found = [folder for place in places for folder in Path(place).rglob(f"offline-run-*-{self.cell.id}")]
        folder = max(found, key=lambda folder: folder.name, default=Path("none"))
        steps = [step for file in folder.glob("*.wandb") for step in read_history(file)]
        metric = self.cell.config["metric"]
        values = [float(step[metric]) for step in steps if metric in step]
        if not values:
            raise RuntimeError(_NOT_LOGGED)
        best = max if self.mode == "max" else min
        score = best(filter(math.isfinite, values), default=math.nan)
        write_json(self.folder / "result.json", {"val": score, "folder": str(folder)})


def pattern_of(folders: Sequence[str]) -> str:
    """Return a pattern of the shell that is true of all folders of runs, such as ``runs/a/*/wandb/offline-run-*``."""
    parts = [Path(folder).parent.parts for folder in folders]
    if len({len(each) for each in parts}) > 1:
        return " ".join(folders)
    shown = [names[0] if len(set(names)) == 1 else "*" for names in zip(*parts, strict=True)]
    return str(Path(*shown, "offline-run-*"))
