"""The command line of recipes that run one of several tables and report it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fl_lightning.command.options import add_options, run_arguments
from fl_lightning.command.parser import Parser, ends_by_interrupt
from fl_lightning.experiment.estimate import describe_plan, describe_time, measure_paces
from fl_lightning.experiment.runner import run_table
from fl_lightning.experiment.table import Table
from fl_lightning.experiment.table_file import read_table
from fl_lightning.report.experiment_report import experiment_report


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
    parser = _parser(description, presets)
    options = parser.parse_args(argv)
    try:
        with ends_by_interrupt(lambda: "Interrupted. Run the same command again to continue."):
            return _run(options, presets, prepare)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        parser.error(str(error))


def _run(
    options: argparse.Namespace, presets: Mapping[str, Path], prepare: Callable[[Table], Table] | None
) -> Path | None:
    table = read_table(presets[options.preset]).only(options.methods, options.data, options.folds, options.seeds)
    if prepare is not None:
        table = prepare(table)
    output = options.output or Path("runs") / table.name
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


def _parser(description: str, presets: Mapping[str, Path]) -> argparse.ArgumentParser:
    parser = Parser(description=description)
    parser.add_argument("--preset", choices=list(presets), default=next(iter(presets)), help="which table is run")
    add_options(parser)
    parser.add_argument("--estimate", action="store_true", help="print the plan and the time that it takes, and stop")
    return parser
