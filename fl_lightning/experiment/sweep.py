"""Runs a Weights & Biases sweep on this machine. It needs no account and no network."""

from __future__ import annotations

import json
import math
import os
import shlex
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from fl_lightning.experiment.search import Point, Range, Search, SearchKind, describe_point
from fl_lightning.experiment.store import Store
from fl_lightning.experiment.table_file import read_yaml
from fl_lightning.files import make_folder
from fl_lightning.settings import PathLike, check
from fl_lightning.words import duration, enumeration

Row = dict[str, Any]
_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
#: Entries of the format of Weights & Biases that only its service uses.
_OF_SERVICE = ("early_terminate", "run_cap", "project", "entity", "controller", "scheduler", "job", "image_uri")
_KNOWN = ("program", "method", "metric", "parameters", "name", "command", "description", "kind", "apiVersion")
_METRIC, _METRIC_OF_SERVICE = ("name", "goal"), ("target", "impute", "impute_while_running")
_METHODS: dict[str, SearchKind] = {"grid": "grid", "random": "random", "bayes": "tpe"}
_RANGES = ("uniform", "int_uniform", "q_uniform", "log_uniform_values", "q_log_uniform_values")
_BLOCK = 32768  # bytes; records are split at the blocks' ends, as in LevelDB's logs
_FILE_HEADER, _RECORD_HEADER = 7, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
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
    check("`output`", output, PathLike | None)
    sweep = Sweep(check("`path`", path, PathLike), count, seed, further)
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
    total, executed, begun = len(sweep.points), 0, time.monotonic()
    known = {path.parent.name for path in folder.glob("cells/*/result.json")}
    while runner.try_next([sweep]):
        tried = sweep.tried[-1]
        [run_id] = tried.fits
        row: Row = {"run": len(sweep.tried), "status": "failed" if tried.score is None else "finished"}
        row |= {"score": tried.score, "values": tried.point, "id": run_id}
        row["folder"] = (read_json_if_there(folder / "cells" / run_id / "result.json") or {}).get("folder", "")
        rows.append({**row, "error": tried.error})
        write_csv(folder / "sweep.csv", list(rows[0]), [{**row, "values": json.dumps(row["values"])} for row in rows])
        score = tried.error if tried.score is None else f"{sweep.metric} {tried.score:.4f}"
        text = f"{len(rows)}/{total} {row['status']}: {sweep.describe(tried.point)}: {score}"
        executed += run_id not in known
        if executed and len(rows) < total:
            text += f"; about {duration((time.monotonic() - begun) / executed * (total - len(rows)))} left"
        say(console, text)
        if _NOT_LOGGED in tried.error and sweep.best() is None:
            raise RuntimeError(
                f"`metric`: the first run has not logged `{sweep.metric}`. Give its Trainer `logger=WandbLogger()`, "
                "and let the module or a callback log it. No other run was started."
            )
    if (best := sweep.best()) is not None:
        text = f"Best configuration: {sweep.describe(best.point)} ({sweep.metric} {best.score:.4f})."
        say(console, text + sweep.note_of_equals())
        folders = {Path(row["folder"]) for row in rows if row["score"] is not None}
        place = os.path.commonpath([folder.parent for folder in folders]) or "."
        sync = f"find {shlex.quote(place)} -name 'offline-run-*' -exec wandb sync {{}} +"
        say(console, f"{len(folders)} offline run folders; to send them: {sync}")
    say(console, f"All runs: {folder / 'sweep.csv'}")
    return rows


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
        mode = check("`metric.goal`", metric.get("goal"), Literal["maximize", "minimize"]).removesuffix("imize")
        kind = _METHODS[check("`method`", content.get("method"), Literal[*_METHODS])]
        parameters = check("`parameters`", content.get("parameters"), Mapping)
        space = {name: _parameter(f"parameters.{name}", entry) for name, entry in parameters.items()}
        super().__init__(space, kind, count, seed, mode, at_once=1)
        self.name, self.further = str(content.get("name") or Path(path).stem), list(further)
        self.metric = check("`metric.name`", metric.get("name"), str)
        self.program_given = check("`program`", content.get("program"), str)  # does not depend on the current folder
        self.program = _found(self.program_given, Path(path))
        self.words = list(content.get("command") or _COMMAND)
        self.only_in_service = [entry for entry in _OF_SERVICE if entry in content]
        self.only_in_service += [f"metric.{entry}" for entry in _METRIC_OF_SERVICE if entry in metric]

    def cells(self, point: Point, number: int) -> list[Cell]:
        """Return the one run of a point."""
        names = {"sweep": self.name, "program": self.program_given, "metric": self.metric}
        config = {**names, "command": self.words, "further": self.further, "values": point}
        return [Cell(self.name, self.program_given, 0, self.seed, point, config)]

    def command(self, point: Point) -> list[str]:
        """Return the command of a run as ``wandb agent`` would make it."""
        arguments = [f"--{name}={value}" for name, value in point.items()]
        macros = {
            "${env}": [],
            "${program}": [self.program],
            "${args}": arguments,
            "${args_no_hyphens}": [argument.removeprefix("--") for argument in arguments],
            **{word: [sys.executable] for word in ("${interpreter}", "python", "python3")},
        }
        return [part for word in self.words for part in macros.get(word, [word])] + self.further

    def describe(self, point: Point) -> str:
        """Return a point as a string, without the parameters that have a single value unless all have."""
        fixed = [name for name, entry in self.space.items() if not isinstance(entry, Range) and len(entry) == 1]
        varied = {name: value for name, value in point.items() if name not in fixed}
        return describe_point(varied or point) or self.name


@dataclass(frozen=True)
class _ProgramJob(CellJob):
    """The order to call a program, and to read its score from the file of its Weights & Biases run."""

    command: Sequence[str] = ()
    mode: str = "max"

    def run(self) -> None:
        # without this service a run starts its own one, which has written the file when the run ends
        environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
        environment |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
        environment |= {"WANDB_RUN_ID": self.cell.id, "WANDB_RUN_GROUP": self.cell.data}
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
        self.check_claim()
        (self.folder / "failed.json").unlink(missing_ok=True)
        write_json(self.folder / "result.json", {"val": score, "folder": str(folder)})


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


def _parameter(name: str, entry: Any) -> Sequence[Any] | Range:
    match entry:
        case {"value": value, **others} if set(others) <= {"distribution"}:
            return [value]
        case {"values": [*values], **others} if values and set(others) <= {"distribution"}:
            return values
        case {"min": low, "max": high, **others} if set(others) <= {"distribution", "q"}:
            whole = isinstance(low, int) and isinstance(high, int)
            kind: Any = others.get("distribution", "int_uniform" if whole else "uniform")
            check(f"`{name}.distribution`", kind, Literal[*_RANGES])
            step = float(entry.get("q", 1.0)) if kind.startswith("q_") else 0.0
            return Range(low, high, log="log_" in kind, integer=kind == "int_uniform", step=step)
    raise ValueError(f"`{name}` must have a `value`, a list of `values`, or `min` and `max`, got {entry!r}.")


def read_history(path: Path) -> list[dict[str, Any]]:
    """Return the logged values of a ``run-<id>.wandb`` file, as one dict for each step."""
    return [values_in(record.history.item) for record in read_records(path, "history")]


def values_in(items: Iterable[Any]) -> dict[str, Any]:
    """Return the values of a record by their names."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def read_records(path: Path, kind: str) -> Iterator[Any]:
    """Yield the records of one kind of a ``run-<id>.wandb`` file, such as ``"metric"``, ``"config"``, ``"summary"``.

    The file of a killed run may end in the middle of a record; that record is left out.
    """
    from wandb.proto import wandb_internal_pb2

    for content in _records(path):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == kind:
            yield record


def _records(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    place, parts = _FILE_HEADER, b""
    while place + _RECORD_HEADER.size <= len(content):
        left = _BLOCK - place % _BLOCK
        if left < _RECORD_HEADER.size:  # padding
            place += left
            continue
        _, length, kind = _RECORD_HEADER.unpack_from(content, place)
        place += _RECORD_HEADER.size
        if place + length > len(content):
            return
        parts = (b"" if kind in (_FULL, _FIRST) else parts) + content[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield parts
