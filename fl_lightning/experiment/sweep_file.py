"""Reads the YAML file of a Weights & Biases sweep."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fl_lightning.checks import check
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
    command: tuple[str, ...] = _COMMAND
    only_in_service: tuple[str, ...] = ()

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
    missing = [name for name in _NEEDED if not content.get(name)]
    if missing:
        raise ValueError(f"{path} has no {', '.join(f'`{name}`' for name in missing)}, which a sweep needs.")
    metric, parameters = content["metric"], content["parameters"]
    if not isinstance(metric, Mapping) or not isinstance(metric.get("name"), str):
        raise ValueError(f"`metric` must be a mapping with a `name` and a `goal`, got {metric!r}.")
    refuse_unknown("`metric`", metric, (*_METRIC, *_METRIC_OF_SERVICE))
    if metric.get("goal") is None:
        raise ValueError(f"`metric` {metric['name']} has no `goal`. Give `goal: maximize` or `goal: minimize`.")
    if not isinstance(parameters, Mapping):
        raise ValueError(f"`parameters` must map names to values or ranges, got {parameters!r}.")
    name = content.get("name") or Path(path).stem
    check_file_name("name", name, "runs/sweeps/<name>")
    check("`method`", content["method"], Literal["grid", "random", "bayes"])
    check("`metric.goal`", metric["goal"], Literal["maximize", "minimize"])
    return Sweep(
        name=name,
        program=_found(str(content["program"]), Path(path)),
        program_given=str(content["program"]),
        method=content["method"],
        metric=metric["name"],
        goal=metric["goal"],
        space={name: _parameter(name, entry) for name, entry in parameters.items()},
        command=tuple(content.get("command") or _COMMAND),
        only_in_service=(
            *(entry for entry in _OF_SERVICE if entry in content),
            *(f"metric.{entry}" for entry in _METRIC_OF_SERVICE if entry in metric),
        ),
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
    if not isinstance(entry, Mapping) or not set(entry) <= _ENTRIES:
        given = sorted(entry) if isinstance(entry, Mapping) else entry
        way_out = f"Write `{name}: {{{'values' if isinstance(entry, list) else 'value'}: {entry}}}`."
        if isinstance(entry, Mapping):
            way_out = "Write nested parameters with dots, as `model.lr`."
        raise ValueError(
            f"`parameters.{name}` must have some of {', '.join(sorted(_ENTRIES))}, got {given!r}. {way_out}"
        )
    ways = [way for way in ("value", "values", "min") if way in entry]
    if len(ways) != 1 or ("min" in ways) != ("max" in entry):
        raise ValueError(f"`parameters.{name}` must have `value`, `values`, or `min` and `max`, got {dict(entry)!r}.")
    if "value" in entry:
        return Choice((entry["value"],))
    if "values" in entry:
        if not isinstance(entry["values"], list) or not entry["values"]:
            raise ValueError(f"`parameters.{name}.values` must be a list of values, got {entry['values']!r}.")
        return Choice(tuple(entry["values"]))
    low, high = entry["min"], entry["max"]
    whole = isinstance(low, int) and isinstance(high, int)
    distribution = entry.get("distribution", "int_uniform" if whole else "uniform")
    check(f"`parameters.{name}.distribution`", distribution, Literal[*_RANGES])
    step = float(entry.get("q", 1.0)) if distribution.startswith("q_") else 0.0
    return make_range(
        f"parameters.{name}",
        low,
        high,
        log="log_" in distribution,
        integer=distribution == "int_uniform",
        step=step,
    )
