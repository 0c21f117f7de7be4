"""The command line of a recipe that is a table with presets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fl_lightning.experiment.estimate import describe_plan, describe_time, measure_paces
from fl_lightning.experiment.options import add_options
from fl_lightning.experiment.runner import run_table
from fl_lightning.experiment.table import Table, read_table


def run_presets(
    description: str,
    presets: Mapping[str, Path],
    argv: Sequence[str] | None = None,
    prepare: Callable[[Table], Table] | None = None,
) -> Path | None:
    """Run a preset's table from the command line: say what is a stand-in and how long it takes, run it, and report.

    Args:
        description: Of the recipe, for ``--help``.
        presets: The tables' files by the presets' names; the first is the default.
        argv: The arguments; those of the command line if ``None``.
        prepare: Makes changes to the table before it is run.

    Returns:
        The report's page; ``None`` if only an estimate was asked for.

    Raises:
        SystemExit: If an argument is wrong.
    """
    parser = _parser(description, presets)
    options = parser.parse_args(argv)
    try:
        return _run(options, presets, prepare)
    except (ValueError, OSError, RuntimeError) as error:
        parser.error(str(error))


def _run(
    options: argparse.Namespace, presets: Mapping[str, Path], prepare: Callable[[Table], Table] | None
) -> Path | None:
    from fl_lightning.report import experiment_report

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
    run_table(table, output, workers=options.workers, devices=options.devices)
    page = experiment_report(output)
    print(f"Report: {page}")
    return page


def _parser(description: str, presets: Mapping[str, Path]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=list(presets), default=next(iter(presets)))
    add_options(parser)
    parser.add_argument("--estimate", action="store_true", help="say what would be run and how long it takes, no more")
    return parser
