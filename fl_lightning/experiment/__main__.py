"""``python -m fl_lightning.experiment table.yaml`` runs a table, ``... sweep sweep.yaml`` a sweep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning.pytorch.utilities.exceptions import SIGTERMException

from fl_lightning.command_line import CommandParser, print_error, wrapped
from fl_lightning.experiment.estimate import describe_plan, describe_time, measure_paces
from fl_lightning.experiment.options import add_options, names_options, run_arguments
from fl_lightning.experiment.runner import check_run, run_table
from fl_lightning.experiment.sweep import run_sweep
from fl_lightning.experiment.table_file import read_table


def main(argv: Sequence[str] | None = None) -> int:
    """Run a table or a sweep and return the exit status; see :func:`table` and :func:`sweep`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return sweep(arguments[1:]) if arguments[:1] == ["sweep"] else table(arguments)


_PROG = "python -m fl_lightning.experiment"


def table(arguments: Sequence[str], prog: str = _PROG, shipped: Sequence[str] = ()) -> int:
    """Run a table and return the exit status.

    It is 1 if the table is wrong or a cell has failed or has no score, 130 after Ctrl-C, and 143 after SIGTERM.

    Args:
        arguments: Those of the command line.
        prog: What the help calls the program.
        shipped: Names of tables that come with the package, which the program takes in place of files.
    """
    options = table_parser(prog, shipped).parse_args(arguments)
    return _guarded(lambda: _table(options))


def sweep(arguments: Sequence[str], prog: str = f"{_PROG} sweep", shipped: Sequence[str] = ()) -> int:
    """Run a sweep and return the exit status; arguments and status as of :func:`table`."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    options = sweep_parser(prog, shipped).parse_args(arguments[:place])
    return _guarded(lambda: _sweep(options, arguments[place + 1 :]))


def _guarded(work: Callable[[], int]) -> int:
    try:
        return work()
    except (ValueError, OSError, RuntimeError) as error:
        print_error(error)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. Run the same command again to continue.", file=sys.stderr)
        return 130
    except SIGTERMException:  # a Trainer's answer to the signal; without it, the status would be 0
        print("Ended by SIGTERM. Run the same command again to continue.", file=sys.stderr)
        return 143


def _table(options: argparse.Namespace) -> int:
    table = read_table(options.table)
    with names_options(*run_arguments(options), "methods", "data", "folds", "seeds"):
        check_run(**run_arguments(options))
        chosen = table.only(options.methods, options.data, options.folds, options.seeds)
    output = options.output or Path("runs") / chosen.name
    if options.dry_run or options.estimate:
        print(wrapped(describe_plan(chosen, output, with_data=True), sys.stdout))
        if options.estimate:
            print(wrapped(describe_time(chosen, *measure_paces(chosen), options.workers), sys.stdout))
        return 0
    with names_options("output"):
        rows = run_table(chosen, output, **run_arguments(options))
    return int(any(row.get("score") is None for row in rows))


def _sweep(options: argparse.Namespace, further: Sequence[str]) -> int:
    with names_options("count", "seed", "output"):
        rows = run_sweep(options.file, count=options.count, seed=options.seed, output=options.output, further=further)
    return int(any(row["score"] is None for row in rows))


def table_parser(prog: str = _PROG, shipped: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the arguments of :func:`table`."""
    parser = CommandParser(
        prog=prog,
        description="Run the cells of a table that are not finished: methods x data sets x folds x seeds.",
        epilog=_examples(prog, "table", "mnist_methods", "--dry-run", shipped),
    )
    parser.add_argument("table", type=Path, help=_help_of_file("table", shipped))
    add_options(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="check the table and the data that are here, print the plan and stop"
    )
    parser.add_argument(
        "--estimate", action="store_true", help="print the plan and the time from two rounds of each data set, and stop"
    )
    return parser


def sweep_parser(prog: str = f"{_PROG} sweep", shipped: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of the arguments of :func:`sweep` before ``--``."""
    parser = CommandParser(
        prog=prog,
        description="Run the file of a Weights & Biases sweep. It needs no account and no network.",
        epilog="arguments after -- are added to every run\n\n"
        + _examples(prog, "sweep", "cifar_fedadam", "--count 20", shipped),
    )
    parser.add_argument("file", type=Path, help=_help_of_file("sweep", shipped))
    parser.add_argument("--count", type=int, help="largest number of runs; random and bayes need it")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search")
    parser.add_argument("--output", type=Path, help="folder of sweep.csv; default: runs/sweeps/<name of the sweep>")
    return parser


def _help_of_file(kind: str, shipped: Sequence[str]) -> str:
    return f"YAML file of a {kind}" + (", or the name of one that comes with the package" if shipped else "")


def _examples(prog: str, kind: str, name: str, option: str, shipped: Sequence[str]) -> str:
    """Return the last lines of the help: an example, and where the files of the package are."""
    if shipped:
        return f"example:\n  {prog} {name} {option}\n\n{kind}s that come with the package: {', '.join(shipped)}"
    command = {"table": "run", "sweep": "sweep"}[kind]
    return (
        f"example:\n  {prog} {kind}.yaml {option}\n\n`fl-lightning {command}` also takes the names of {kind}s that "
        "come with the package; its --help lists them."
    )


if __name__ == "__main__":
    sys.exit(main())
