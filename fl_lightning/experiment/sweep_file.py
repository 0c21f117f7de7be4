"""Reads the YAML file of a Weights & Biases sweep."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fl_lightning.checks import check, check_fields
from fl_lightning.experiment.search import Choice, Point, Range, make_range
from fl_lightning.experiment.table import check_file_name
from fl_lightning.experiment.table_file import refuse_unknown
from fl_lightning.experiment.yaml_file import read_yaml

_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
_NEEDED = ("program", "method", "metric", "parameters")
#: Entries of the format of Weights & Biases that only its service uses.
_OF_SERVICE = ("early_terminate", "run_cap", "project", "entity", "controller", "scheduler", "job", "image_uri")
_KNOWN = (*_NEEDED, "name", "command", *_OF_SERVICE, "description", "kind", "apiVersion")
_METRIC, _METRIC_OF_SERVICE = ("name", "goal"), ("target", "impute", "impute_while_running")
_ENTRIES = {"value", "values", "min", "max", "distribution", "q"}
_RANGES = ("uniform", "int_uniform", "q_uniform", "log_uniform_values", "q_log_uniform_values")


@dataclass(frozen=True)
class Sweep:
    """A sweep.

    Attributes:
        name: Name of the sweep.
        program: Script of a run.
        program_given: The script as the file names it, which does not depend on the current folder.
        method: ``"grid"``, ``"random"`` or ``"bayes"``.
        metric: Name of the metric that is optimised.
        goal: ``"maximize"`` or ``"minimize"``.
        space: The parameters.
        command: Words of the command, with the macros of Weights & Biases.
        only_in_service: Entries of the file that only the service of Weights & Biases uses.
    """

    name: str
    program: str
    program_given: str
    method: Literal["grid", "random", "bayes"]
    metric: str
    goal: Literal["maximize", "minimize"]
    space: dict[str, Choice | Range]
    command: list[str]
    only_in_service: list[str]

    def __post_init__(self) -> None:
        check_fields(self)

    def command_of(self, point: Point, further: Sequence[str] = ()) -> list[str]:
        """Return the command of a run as ``wandb agent`` would make it, with further arguments at its end."""
        arguments = [f"--{name}={value}" for name, value in point.items()]
        words: list[str] = []
        for word in self.command:
            if word in ("${interpreter}", "python", "python3"):
                words.append(sys.executable)
            elif word == "${program}":
                words.append(self.program)
            elif word == "${args}":
                words += arguments
            elif word == "${args_no_hyphens}":
                words += [argument.removeprefix("--") for argument in arguments]
            elif word != "${env}":
                words.append(word)
        return [*words, *further]


def read_sweep(path: str | os.PathLike[str]) -> Sweep:
    """Return the sweep of a file for ``wandb sweep``.

    Its program may be named from the current folder or from a folder above the file.

    Raises:
        FileNotFoundError: If the file or its program does not exist.
        ValueError: If an entry is unknown or missing, or only the service of Weights & Biases understands it.
    """
    content = read_yaml(Path(path))
    refuse_unknown(str(path), content, _KNOWN)
    if missing := [name for name in _NEEDED if not content.get(name)]:
        raise ValueError(f"{path} has no {', '.join(f'`{name}`' for name in missing)}, which a sweep needs.")
    metric, parameters = (
        check("`metric`", content["metric"], Mapping),
        check("`parameters`", content["parameters"], Mapping),
    )
    refuse_unknown("`metric`", metric, (*_METRIC, *_METRIC_OF_SERVICE))
    name = content.get("name") or Path(path).stem
    check_file_name("name", name, "runs/sweeps/<name>")
    program = str(content["program"])
    return Sweep(
        name=name,
        program=_found(program, Path(path)),
        program_given=program,
        method=content["method"],
        metric=check("`metric.name`", metric.get("name"), str),
        goal=check("`metric.goal`", metric.get("goal"), Literal["maximize", "minimize"]),
        space={name: _parameter(f"parameters.{name}", entry) for name, entry in parameters.items()},
        command=list(content.get("command") or _COMMAND),
        only_in_service=[
            *(entry for entry in _OF_SERVICE if entry in content),
            *(f"metric.{entry}" for entry in _METRIC_OF_SERVICE if entry in metric),
        ],
    )


def _found(program: str, file: Path) -> str:
    """Return the path of a program that is named from the current folder, or from a folder above the sweep's file.

    Raises:
        FileNotFoundError: If there is none, nor a command of this name.
    """
    if Path(program).exists() or shutil.which(program):
        return program
    above = (folder / program for folder in file.resolve().parents)
    found = next((str(path) for path in above if path.exists()), None)
    if found is None:
        raise FileNotFoundError(
            f"`program` of {file} must be a script; there is no {program} in the present folder, nor in a folder above "
            "the sweep's file."
        )
    return found


def _parameter(name: str, entry: Any) -> Choice | Range:
    given = {} if not isinstance(entry, Mapping) or not set(entry) <= _ENTRIES else entry
    match {key: value for key, value in given.items() if key not in ("distribution", "q")}:
        case {"value": value, **others} if not others:
            return Choice((value,))
        case {"values": [*values], **others} if values and not others:
            return Choice(tuple(values))
        case {"min": low, "max": high, **others} if not others:
            whole = isinstance(low, int) and isinstance(high, int)
            kind = given.get("distribution", "int_uniform" if whole else "uniform")
            check(f"`{name}.distribution`", kind, Literal[*_RANGES])
            step = float(given.get("q", 1.0)) if kind.startswith("q_") else 0.0
            return make_range(name, low, high, log="log_" in kind, integer=kind == "int_uniform", step=step)
    raise ValueError(
        f"`{name}` must have a `value`, a list of `values`, or `min` and `max`, got {entry!r}. Write nested parameters "
        "with dots, as `model.lr`."
    )
