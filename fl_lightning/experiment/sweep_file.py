"""Reads the YAML file of a Weights & Biases sweep, as a search over the options of a program."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fl_lightning.checks import check
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.search import Point, Range, Search, SearchKind, describe_point
from fl_lightning.experiment.table_file import read_yaml, refuse_unknown

_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_NEEDED = ("program", "method", "metric", "parameters")
#: Entries of the format of Weights & Biases that only its service uses.
_OF_SERVICE = ("early_terminate", "run_cap", "project", "entity", "controller", "scheduler", "job", "image_uri")
_KNOWN = (*_NEEDED, "name", "command", *_OF_SERVICE, "description", "kind", "apiVersion")
_METRIC, _METRIC_OF_SERVICE = ("name", "goal"), ("target", "impute", "impute_while_running")
_METHODS: dict[str, SearchKind] = {"grid": "grid", "random": "random", "bayes": "tpe"}
_RANGES = ("uniform", "int_uniform", "q_uniform", "log_uniform_values", "q_log_uniform_values")


class Sweep(Search):
    """The search of a file for ``wandb sweep``, one point at a time. Its cells are calls of a program.

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

    def __init__(self, path: Path, count: int | None = None, seed: int = 0, further: Sequence[str] = ()) -> None:
        content = read_yaml(path)
        refuse_unknown(str(path), content, _KNOWN)
        if missing := [name for name in _NEEDED if not content.get(name)]:
            raise ValueError(f"{path} has no {', '.join(f'`{name}`' for name in missing)}, which a sweep needs.")
        metric = check("`metric`", content["metric"], Mapping)
        refuse_unknown("`metric`", metric, (*_METRIC, *_METRIC_OF_SERVICE))
        goal = check("`metric.goal`", metric.get("goal"), Literal["maximize", "minimize"])
        kind = _METHODS[check("`method`", content["method"], Literal[*_METHODS])]
        parameters = check("`parameters`", content["parameters"], Mapping)
        space = {name: _parameter(f"parameters.{name}", entry) for name, entry in parameters.items()}
        super().__init__(space, kind, count, seed, goal.removesuffix("imize"), at_once=1)
        self.name, self.further = str(content.get("name") or path.stem), list(further)
        self.metric = check("`metric.name`", metric.get("name"), str)
        self.program_given = str(content["program"])  # does not depend on the current folder
        self.program = _found(self.program_given, path)
        self.words = list(content.get("command") or _COMMAND)
        self.only_in_service = [entry for entry in _OF_SERVICE if entry in content]
        self.only_in_service += [f"metric.{entry}" for entry in _METRIC_OF_SERVICE if entry in metric]

    def cells(self, point: Point, number: int) -> list[Cell]:
        """Return the one run of a point."""
        config = {
            "sweep": self.name,
            "program": self.program_given,
            "command": self.words,
            "further": self.further,
            "metric": self.metric,
            "values": point,
        }
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
        """Return a point as a text, without the parameters that have a single value unless all have."""
        fixed = [name for name, entry in self.space.items() if not isinstance(entry, Range) and len(entry) == 1]
        varied = {name: value for name, value in point.items() if name not in fixed}
        return describe_point(varied or point) or self.name


def _found(program: str, file: Path) -> str:
    """Return the path of a program that is named from the current folder, or from a folder above the sweep's file.

    Raises:
        FileNotFoundError: If there is none, nor a command of this name.
    """
    if Path(program).exists() or shutil.which(program):
        return program
    found = next((folder / program for folder in file.resolve().parents if (folder / program).exists()), None)
    if found is None:
        raise FileNotFoundError(
            f"`program` of {file} must be a script; there is no {program} in the present folder, nor in a folder above "
            "the sweep's file."
        )
    return str(found)


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
    raise ValueError(
        f"`{name}` must have a `value`, a list of `values`, or `min` and `max`, got {entry!r}. Write nested parameters "
        "with dots, as `model.lr`."
    )
