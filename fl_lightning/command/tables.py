"""Command lines that run a table: the options, and the recipes that have several tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]

from fl_lightning.command.parser import Parser, ends_by_interrupt

if TYPE_CHECKING:
    from fl_lightning.experiment import Table


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all programs that run a table: its folder, the part that is run, the workers, their limits."""
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


def run_presets(
    description: str,
    presets: Mapping[str, Path],
    argv: Sequence[str] | None = None,
    prepare: Callable[[Table], Table] | None = None,
) -> Path | None:
    """Run the table of a preset from the command line, and report it.

    The plan, the stand-ins and an estimate of the time are printed first.

    Args:
        description: Description of the recipe, for ``--help``.
        presets: Files of the tables by name of the preset; the first one is the default.
        argv: Arguments; those of the command line if ``None``.
        prepare: Changes the table before it is run.

    Returns:
        The page of the report; ``None`` after ``--estimate``.

    Raises:
        SystemExit: If an argument is wrong, or the table cannot be run.
    """
    from fl_lightning.experiment import describe_plan, describe_time, measure_paces, run_table
    from fl_lightning.report import experiment_report

    parser = Parser(description=description)
    parser.add_argument("--preset", choices=list(presets), default=next(iter(presets)), help="which table is run")
    add_options(parser)
    options = parser.parse_args(argv)
    try:
        with ends_by_interrupt(lambda: "Interrupted. Run the same command again to continue."):
            table = read_part(presets[options.preset], options)
            table = table if prepare is None else prepare(table)
            output = folder_of(table, options)
            print(describe_plan(table, output))
            for name, data in table.data.items():
                if data.stand_in:
                    print(f"STAND-IN {name}: {data.stand_in}")
            print(describe_time(table, *measure_paces(table), options.workers), flush=True)
            if options.estimate:
                return None
            run_table(table, output, **run_arguments(options))
            page = experiment_report(output)
            print(f"Report: {page}")
            return page
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        parser.error(str(error))
