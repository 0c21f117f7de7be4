"""``python -m fl_lightning.experiment table.yaml`` runs a table, ``... sweep sweep.yaml`` a sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_lightning.experiment.estimate import describe_plan, describe_time, measure_paces
from fl_lightning.experiment.options import add_options, run_arguments
from fl_lightning.experiment.runner import run_table
from fl_lightning.experiment.sweep import run_sweep
from fl_lightning.experiment.table_file import read_table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    It is 1 if the table is wrong or a cell has failed or has no score, and 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _sweep(arguments[1:]) if arguments[:1] == ["sweep"] else _table(arguments)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. The same command goes on where this one was.", file=sys.stderr)
        return 130


def _table(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    table = read_table(options.table).only(options.methods, options.data, options.folds, options.seeds)
    output = options.output or Path("runs") / table.name
    if options.dry_run or options.estimate:
        print(describe_plan(table, output))
        if options.estimate:
            print(describe_time(table, *measure_paces(table), options.workers))
        return 0
    rows = run_table(table, output, **run_arguments(options))
    return int(any(row.get("score") is None for row in rows))


def _sweep(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m fl_lightning.experiment sweep",
        description="Run the file of a Weights & Biases sweep, without an account and without a network.",
        epilog="arguments after -- are added to every run",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, help="largest number of runs; random and bayes need it")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search; default: 0")
    parser.add_argument("--output", type=Path, help="folder of sweep.csv; default: runs/sweeps/<name of the sweep>")
    own, further = _cut(arguments)
    options = parser.parse_args(own)
    rows = run_sweep(options.file, count=options.count, seed=options.seed, output=options.output, further=further)
    return int(any(row["score"] is None for row in rows))


def _cut(arguments: list[str]) -> tuple[list[str], list[str]]:
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fl_lightning.experiment", description=__doc__)
    parser.add_argument("table", type=Path, help="YAML file of the table; or the word sweep, see `sweep --help`")
    add_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="check the table, print the plan and stop")
    parser.add_argument(
        "--estimate", action="store_true", help="print the plan and the time from two rounds of each data set, and stop"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
