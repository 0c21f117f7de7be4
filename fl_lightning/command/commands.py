"""The commands of ``fl-lightning``. Each imports the library when it runs, so that help is quick."""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jsonargparse import set_parsing_settings
from typing_extensions import override

from fl_lightning.command.parser import Parser, ends_by_error, ends_by_interrupt, print_error
from fl_lightning.shipped import no_such, shipped

if TYPE_CHECKING:
    from jsonargparse import Namespace

#: Options of ``run`` that are arguments of ``run_table``.
_WORK = ("workers", "devices", "checkpoint_seconds", "cell_timeout", "retries", "memory_limit", "engine")
_EXAMPLES = """examples:
  # the recipes, and the options of one
  fl-lightning recipe
  fl-lightning recipe cifar_radfed --help
  # the tables that come with the package, and one of them; a YAML file does, too
  fl-lightning run --help
  fl-lightning run mnist_methods --dry-run
  fl-lightning report runs/mnist_methods
  # a data set among clients
  fl-lightning describe digits --partitioner dirichlet --num-clients 20 \\
      --alpha 0.3 --output report
  # any model, data module and trainer, as LightningCLI does it
  fl-lightning fit --config my.yaml

`fl-lightning COMMAND --help` shows the options of a command.
Completion by the tab key in bash; zsh and others work, too (pip install shtab):
  eval "$(fl-lightning --print_completion shtab-bash)"
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    It is 1 if something is wrong or a cell has failed or has no score, 2 after a wrong use, 130 after Ctrl-C, and 143
    after SIGTERM.
    """
    if argv is None:
        argv = sys.argv[1:]
        here = os.getcwd()
        # The user's classes are imported from the folder, as `python -m` does it.
        if sys.path[:1] not in ([here], [""]):
            sys.path.insert(0, here)
    arguments = list(argv)
    name = arguments[0] if arguments else ""
    with ends_by_interrupt(lambda: "Interrupted. Run the same command again to continue."):
        # These two pass their arguments on.
        if name == "recipe":
            return _recipe(arguments[1:])
        if name == "fit":
            with ends_by_error():
                return _fit(arguments)
        place = arguments.index("--") if "--" in arguments else len(arguments)
        own = arguments[:place]
        further = arguments[place + 1 :]
        parser = make_parser(own)
        # What is not given to `describe` is left to the classes.
        options = parser.parse_args(own, defaults=name != "describe")
        if options.command is None:
            parser.print_help()
            return 0
        if "--" in arguments and options.command != "sweep":
            parser.error(f"arguments after -- are for `sweep` alone, got {' '.join(arguments[place:])}")
        try:
            return _COMMANDS[options.command].run(options[options.command], further)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            print_error(error)
            return 1


def make_parser(arguments: Sequence[str]) -> Parser:
    """Return the parser of the command that the arguments name; of all commands to complete their options."""
    completes = any(word.startswith("--print_completion") for word in arguments)
    set_parsing_settings(add_print_completion_argument=True)
    parser = Parser(
        prog="fl-lightning",
        usage="fl-lightning COMMAND [options]",
        version=metadata.version("fl-lightning"),
        description="Federated learning with the Lightning Trainer that you already use.",
        epilog=_EXAMPLES,
    )
    commands = parser.add_subcommands(required=False, dest="command", title="commands", metavar="COMMAND")
    for name, command in _COMMANDS.items():
        description = f"{command.help[0].upper()}{command.help[1:]}."
        own = Parser(description=description, usage=f"fl-lightning {name} [options]")
        if completes or arguments[:1] == [name]:
            command.add_options(own, arguments[1:])
        commands.add_subcommand(name, own, help=command.help)
        # jsonargparse has made a longer name of the usage.
        own.prog = f"fl-lightning {name}"
    return parser


class _Folder:
    """Makes the folder that an option names. Of a function the help would show where it lies in memory."""

    @override
    def __repr__(self) -> str:
        return "folder"

    def __call__(self, text: str) -> Path:
        """Return the folder; an empty text, maybe of a variable that is not set, names none."""
        if not text:
            raise argparse.ArgumentTypeError("it must name a folder, got ''")
        return Path(text)


# ---- run ----


def _add_run(parser: Parser, arguments: Sequence[str]) -> None:
    parser.add_argument("table", type=str, help="YAML file of a table, or the name of one below")
    parser.epilog = _list("tables that come with the package", shipped("table"))
    parser.add_argument(
        "--dry-run", action="store_true", help="check the table and the data that are here, print the plan and stop"
    )
    parser.add_argument("--output", type=_Folder(), help="folder of the results; default: runs/<name of the table>")
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
        help="for slurm, parameters of submitit's AutoExecutor; for ray, address, node_ip_address and options of a "
        "remote function",
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


def _run(options: Namespace, further: Sequence[str]) -> int:
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from fl_lightning._lightning.loops.stopping import STATUS_OF_SIGTERM
    from fl_lightning.experiment import describe_plan, describe_time, measure_paces, read_table, run_table
    from fl_lightning.report.experiment_report import scores_as_text

    table = read_table(options.table).only(options.methods, options.data, options.folds, options.seeds)
    output = options.output or Path("runs") / table.name
    for data_name, data in table.data.items():
        if data.stand_in:
            print(f"STAND-IN {data_name}: {data.stand_in}", flush=True)
    if options.dry_run or options.estimate:
        print(describe_plan(table, output, with_data=True))
        if options.estimate:
            print(describe_time(table, *measure_paces(table), options.workers))
        return 0
    work = {name: options[name] for name in _WORK}
    engine_options = _engine_options(options.engine_options)

    def end(*_: object) -> None:
        raise SIGTERMException

    before = signal.getsignal(signal.SIGTERM)
    # Without workers a Trainer in this process answers the signal.
    if options.workers:
        signal.signal(signal.SIGTERM, end)
    try:
        rows = run_table(table, output, engine_options=engine_options, **work)
    except SIGTERMException:
        print("Ended by SIGTERM. Run the same command again to continue.", file=sys.stderr)
        return STATUS_OF_SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
    scored = [row for row in rows if row.get("score") is not None]
    if scored:
        print(f"\n{scores_as_text(output)}\n")
        print(f"The whole report: fl-lightning report {shlex.quote(str(output))}")
    return 0 if len(scored) == len(rows) else 1


def _engine_options(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of an engine.

    Raises:
        ValueError: If a word is no ``NAME=VALUE``, or the value no YAML.
    """
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"`--engine-options` {word!r}: {' '.join(str(error).split())}") from error
        if not name or not equals:
            raise ValueError(f"`--engine-options` must be NAME=VALUE, got {word!r}.")
    return options


# ---- sweep ----


def _add_sweep(parser: Parser, arguments: Sequence[str]) -> None:
    text = "YAML file of a sweep, or the name of one below; arguments after -- are added to every run"
    parser.add_argument("file", type=str, help=text)
    parser.epilog = _list("sweeps that come with the package", shipped("sweep"))
    parser.add_argument("--count", type=int, help="largest number of runs; random and bayes need it")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search")
    parser.add_argument(
        "--output", type=_Folder(), help="folder of sweep.csv; default: runs/sweeps/<name of the sweep>"
    )


def _sweep(options: Namespace, further: Sequence[str]) -> int:
    from fl_lightning.experiment import run_sweep

    rows = run_sweep(options.file, count=options.count, seed=options.seed, output=options.output, further=further)
    has_failed = any(row["score"] is None for row in rows)
    return 1 if has_failed else 0


# ---- report, describe, fit ----


def _add_report(parser: Parser, arguments: Sequence[str]) -> None:
    parser.add_argument("results", type=Path, help="folder that an experiment wrote")
    parser.add_argument(
        "--output", type=_Folder(), help="folder of the report; default: report in the folder of the results"
    )


def _report(options: Namespace, further: Sequence[str]) -> int:
    from fl_lightning.report import experiment_report

    print(experiment_report(options.results, options.output))
    return 0


def _add_describe(parser: Parser, arguments: Sequence[str]) -> None:
    from fl_lightning.command.describe import add_arguments

    add_arguments(parser, arguments)


def _describe(options: Namespace, further: Sequence[str]) -> int:
    from fl_lightning.command.describe import describe

    return describe(options)


def _fit(arguments: Sequence[str]) -> int:
    """Run ``fit`` of LightningCLI; classes of the package need no import path."""
    import lightning as L
    from lightning.pytorch.cli import LightningCLI

    import fl_lightning.models  # noqa: F401
    from fl_lightning import (
        FederatedDataModule,
        datamodules,  # noqa: F401
    )

    LightningCLI(
        L.LightningModule,
        FederatedDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        parser_kwargs={"prog": "fl-lightning"},
        args=list(arguments),
    )
    return 0


# ---- recipes and their files ----


def _add_recipe(parser: Parser, arguments: Sequence[str]) -> None:
    parser.add_argument("name", choices=list(shipped("recipe")))


def _recipe(arguments: Sequence[str]) -> int:
    recipes = shipped("recipe")
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: fl-lightning recipe NAME [options]\n")
        print(_list("recipes", recipes))
        print("\n`fl-lightning recipe NAME --help` shows the options of a recipe.")
        return 0
    name = arguments[0]
    if name not in recipes:
        print_error(no_such("recipe", name, recipes))
        return 2
    file = str(recipes[name])
    sys.argv = [file, *arguments[1:]]
    runpy.run_path(file, run_name="__main__")
    return 0


def _list(title: str, files: Mapping[str, Path]) -> str:
    """Return the names of files, each with its first line: that of its docstring, or a comment."""
    lines = [f"{title}:"]
    for name, path in files.items():
        first, _, _ = path.read_text(encoding="utf-8").partition("\n")
        title_of_file = first.strip('"# ')
        lines.append(f"  {name:<21} {title_of_file}")
    return "\n".join(lines)


# ---- all commands ----


@dataclass(frozen=True)
class _Command:
    """A command.

    Attributes:
        help: What help says of it.
        add_options: Adds its options to a parser, given the arguments behind its name.
        run: Runs it, given its options and the arguments after ``--``; returns the exit status.
    """

    help: str
    add_options: Callable[[Parser, Sequence[str]], None]
    run: Callable[[Namespace, Sequence[str]], int]


def _add_nothing(parser: Parser, arguments: Sequence[str]) -> None:
    """Add no options: the command has a parser of its own."""


def _run_nothing(options: Namespace, further: Sequence[str]) -> int:
    """Do nothing: the command was run before its arguments were parsed, and only its help is asked for."""
    return 0


_COMMANDS = {
    "run": _Command("run a table of methods and data sets, resumed where it was interrupted", _add_run, _run),
    "sweep": _Command("run a sweep over hyper-parameters, with or without Weights & Biases", _add_sweep, _sweep),
    "report": _Command("write the report of an experiment as one HTML page", _add_report, _report),
    "describe": _Command("show how a data set is distributed among clients, as a table", _add_describe, _describe),
    "fit": _Command("train by LightningCLI, with the classes of the package", _add_nothing, _run_nothing),
    "recipe": _Command("run a recipe that comes with the package", _add_recipe, _run_nothing),
}
