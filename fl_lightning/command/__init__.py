"""The command ``fl-lightning``. Each of its commands imports the library when it runs, so that help is quick."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import runpy
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml  # type: ignore[import-untyped]
from jsonargparse import set_parsing_settings

from fl_lightning.command.parser import Parser, ends_by_error, ends_by_interrupt, print_error

if TYPE_CHECKING:
    from jsonargparse import Namespace

__all__ = ["main"]

#: Recipes, tables, sweeps and presets.
RECIPES = Path(__file__).parents[1] / "recipes"
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
    arguments = list(sys.argv[1:] if argv is None else argv)
    here = os.getcwd()
    if argv is None and sys.path[:1] not in ([here], [""]):  # the user's classes are imported, as `python -m` does it
        sys.path.insert(0, here)
    with ends_by_interrupt(lambda: "Interrupted. Run the same command again to continue."):
        if arguments[:1] == ["recipe"]:
            return _recipe(arguments[1:])
        if arguments[:1] == ["fit"]:
            with ends_by_error():
                return _fit(arguments)
        if arguments[:1] == ["describe"]:  # its options are the arguments of classes
            arguments = [
                re.sub(r"^--[\w-]+", lambda name: f"--{name[0][2:].replace('-', '_')}", word) for word in arguments
            ]
        place = arguments.index("--") if "--" in arguments else len(arguments)
        parser = make_parser(arguments[:place])
        # what is not given is left to the classes
        options = parser.parse_args(arguments[:place], defaults=arguments[:1] != ["describe"])
        if options.command is None:
            parser.print_help()
            return 0
        if arguments[place:] and options.command != "sweep":
            parser.error(f"arguments after -- are for `sweep` alone, got {' '.join(arguments[place:])}")
        try:
            return _COMMANDS[options.command][2](options[options.command], arguments[place + 1 :])
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
    for name, (text, add_arguments, _) in _COMMANDS.items():
        command = Parser(description=f"{text[0].upper()}{text[1:]}.", usage=f"fl-lightning {name} [options]")
        if completes or arguments[:1] == [name]:
            add_arguments(command, arguments[1:])
        commands.add_subcommand(name, command, help=text)
        command.prog = f"fl-lightning {name}"  # not that of the usage
    return parser


def _folder(text: str) -> Path:
    """Return the folder that an option names; an empty text, maybe of a variable that is not set, names none."""
    if not text:
        raise argparse.ArgumentTypeError("it must name a folder, got ''")
    return Path(text)


# ---- run ----


def _add_run(parser: Parser, arguments: Sequence[str]) -> None:
    parser.add_argument("table", type=str, help="YAML file of a table, or the name of one below")
    parser.epilog = _list("tables that come with the package", _shipped("table"))
    parser.add_argument(
        "--dry-run", action="store_true", help="check the table and the data that are here, print the plan and stop"
    )
    parser.add_argument("--output", type=_folder, help="folder of the results; default: runs/<name of the table>")
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


def _run(options: Namespace, further: Sequence[str]) -> int:
    file = _file("table", options.table)
    from lightning.pytorch.utilities.exceptions import SIGTERMException

    from fl_lightning._lightning.loops.stopping import STATUS_OF_SIGTERM
    from fl_lightning.experiment import describe_plan, describe_time, measure_paces, read_table, run_table
    from fl_lightning.report.experiment_report import scores_as_text

    table = read_table(file).only(options.methods, options.data, options.folds, options.seeds)
    output = options.output or Path("runs") / table.name
    for name, data in table.data.items():
        if data.stand_in:
            print(f"STAND-IN {name}: {data.stand_in}", flush=True)
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
    if options.workers:  # without, a Trainer in this process answers
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
        print(f"\n{scores_as_text(output)}\n\nThe whole report: fl-lightning report {shlex.quote(str(output))}")
    return int(len(scored) < len(rows))


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
    parser.epilog = _list("sweeps that come with the package", _shipped("sweep"))
    parser.add_argument("--count", type=int, help="largest number of runs; random and bayes need it")
    parser.add_argument("--seed", type=int, default=0, help="seed of the search")
    parser.add_argument("--output", type=_folder, help="folder of sweep.csv; default: runs/sweeps/<name of the sweep>")


def _sweep(options: Namespace, further: Sequence[str]) -> int:
    file = _file("sweep", options.file)
    from fl_lightning.experiment import run_sweep

    rows = run_sweep(file, count=options.count, seed=options.seed, output=options.output, further=further)
    return int(any(row["score"] is None for row in rows))


# ---- report, describe, fit ----


def _add_report(parser: Parser, arguments: Sequence[str]) -> None:
    parser.add_argument("results", type=Path, help="folder that an experiment wrote")
    parser.add_argument(
        "--output", type=_folder, help="folder of the report; default: report in the folder of the results"
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
    parser.add_argument("name", choices=list(_shipped("recipe")))


def _recipe(arguments: Sequence[str]) -> int:
    recipes = _shipped("recipe")
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: fl-lightning recipe NAME [options]\n")
        print(_list("recipes", recipes))
        print("\n`fl-lightning recipe NAME --help` shows the options of a recipe.")
        return 0
    if arguments[0] not in recipes:
        return _no_such("recipe", arguments[0], list(recipes))
    sys.argv = [str(recipes[arguments[0]]), *arguments[1:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
    return 0


def _shipped(kind: str) -> dict[str, Path]:
    files = RECIPES.glob("*.py" if kind == "recipe" else f"{kind}s/*.yaml")
    return {path.stem: path for path in sorted(files)}


def _list(title: str, files: Mapping[str, Path]) -> str:
    """Return the names of files, each with its first line: that of its docstring, or a comment."""
    firsts = (path.read_text(encoding="utf-8").partition("\n")[0].strip('"# ') for path in files.values())
    return "\n".join([f"{title}:", *(f"  {name:<21} {first}" for name, first in zip(files, firsts, strict=True))])


def _file(kind: str, name: str) -> Path:
    """Return the path of a table or sweep: a file, or one of the package.

    Raises:
        SystemExit: If there is none.
    """
    path = RECIPES / f"{kind}s" / f"{name}.yaml"
    if not Path(name).exists() and not path.is_file():
        raise SystemExit(_no_such(kind, name, [*_shipped(kind), *(str(file) for file in Path().glob("*.y*ml"))]))
    return Path(name) if Path(name).exists() else path


def _no_such(kind: str, name: str, known: Sequence[str]) -> int:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(known)}."
    print(f"error: There is no {kind} {name}. {hint}", file=sys.stderr)
    return 2


#: What help says of each command, what adds its options, and what runs it.
_COMMANDS: dict[str, tuple[str, Callable[[Parser, Sequence[str]], None], Callable[[Namespace, Sequence[str]], int]]] = {
    "run": ("run a table of methods and data sets, resumed where it was interrupted", _add_run, _run),
    "sweep": ("run a sweep over hyper-parameters, with or without Weights & Biases", _add_sweep, _sweep),
    "report": ("write the report of an experiment as one HTML page", _add_report, _report),
    "describe": ("show how a data set is distributed among clients, as a table", _add_describe, _describe),
    # these two hand their arguments on
    "fit": ("train by LightningCLI, with the classes of the package", lambda *_: None, lambda *_: 0),
    "recipe": ("run a recipe that comes with the package", _add_recipe, lambda *_: 0),
}
