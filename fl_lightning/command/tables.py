"""The options of ``fl-lightning run``, and what they ask for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from fl_lightning.experiment import Table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options: the folder, the part of the table that is run, the workers and their limits."""
    parser.add_argument("--output", type=Path, help="folder of the results; default: runs/<name of the table>")
    parser.add_argument("--estimate", action="store_true", help="print the plan and the time that it takes, and stop")
    part = parser.add_argument_group("part of the table")
    part.add_argument("--methods", nargs="+", metavar="NAME", help="only these methods")
    part.add_argument("--data", nargs="+", metavar="NAME", help="only these data sets")
    part.add_argument("--folds", nargs="+", type=int, metavar="N", help="these folds in place of the table's")
    part.add_argument("--seeds", nargs="+", type=int, metavar="N", help="these seeds in place of the table's")
    work = parser.add_argument_group("workers")
    work.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="worker processes, one thread each; 0 runs the cells in this process",
    )
    work.add_argument(
        "--engine",
        choices=("local", "slurm", "ray"),
        default="local",
        help="where the workers are: on this machine, in an array of SLURM's jobs, or on a cluster of Ray",
    )
    work.add_argument(
        "--engine-options",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="for slurm, parameters of submitit's AutoExecutor; for ray, the address and options of a remote function",
    )
    work.add_argument("--devices", type=int, nargs="+", metavar="N", help="GPUs, distributed among the workers")
    work.add_argument(
        "--checkpoint-seconds", type=float, default=60.0, metavar="SECONDS", help="time between two checkpoints"
    )
    work.add_argument(
        "--cell-timeout", type=float, metavar="SECONDS", help="longest time that one attempt at a cell may take"
    )
    work.add_argument("--retries", type=int, default=0, metavar="N", help="how often a cell that failed is tried again")
    work.add_argument(
        "--memory-limit", type=float, metavar="GB", help="main memory that a worker may allocate; Linux only"
    )


def run_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :func:`~fl_lightning.experiment.run_table` that the options give."""
    names = ("workers", "devices", "checkpoint_seconds", "cell_timeout", "retries", "memory_limit", "engine")
    pairs = [word.partition("=") for word in options.engine_options]
    of_engine = {name: yaml.safe_load(value) for name, _, value in pairs}
    return {**{name: getattr(options, name) for name in names}, "engine_options": of_engine}


def read_part(file: Path, options: argparse.Namespace) -> Table:
    """Return the part of a table that the options ask for."""
    from fl_lightning.experiment import read_table

    return read_table(file).only(options.methods, options.data, options.folds, options.seeds)


def folder_of(table: Table, options: argparse.Namespace) -> Path:
    """Return the folder of a table's results."""
    folder: Path | None = options.output
    return folder or Path("runs") / table.name
