"""``fl-lightning COMMAND ...``: hands the arguments to the command's own program, which is imported then."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import runpy
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType

#: Recipes, tables, sweeps and presets: beside this package, in a clone and in an installation alike.
RECIPES = Path(__file__).parents[1] / "recipes"
SHELLS = ("bash", "zsh", "tcsh")

COMMANDS = {
    "run": "run a table of methods and data sets, resumed where it was interrupted",
    "sweep": "run a sweep over hyper-parameters, with or without Weights & Biases",
    "report": "write the report of an experiment as one HTML page",
    "describe": "show how a data set is distributed among clients, as a table",
    "recipe": "run a recipe that comes with the package",
}
_EXAMPLES = """examples:
  # the recipes, and the options of one
  fl-lightning recipe
  fl-lightning recipe cifar_radfed --help
  # a table that comes with the package, or a YAML file
  fl-lightning run mnist_methods --dry-run
  fl-lightning report runs/mnist_methods
  # a data set among clients
  fl-lightning describe digits --partitioner dirichlet --num-clients 20 \\
      --alpha 0.3 --output report

`fl-lightning COMMAND --help` shows the options of a command.
Completion by the tab key in bash; zsh and tcsh work, too:
  eval "$(fl-lightning --print-completion bash)"
"""
_WIDTH = 22  # of the column of names


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in COMMANDS:
        if argv is None:  # a program of its own
            _find_own_classes()
        try:
            return _RUN[arguments[0]](arguments[1:])
        except KeyboardInterrupt:
            print("\nInterrupted. Run the same command again to continue.", file=sys.stderr)
            return 130
        except UnknownNameError as error:
            text = f"error: {error}"
            print(
                textwrap.fill(text, shutil.get_terminal_size().columns) if sys.stderr.isatty() else text,
                file=sys.stderr,
            )
            return 2
    options = _parser().parse_args(arguments)  # ends with help, the version, or an error
    if options.print_completion:
        print(completion(options.print_completion))
    else:
        _parser().print_help()
    return 0


def _find_own_classes() -> None:
    """Let the user's classes be imported from the folder of the command, as ``python -m`` does; a script does not."""
    here = os.getcwd()
    if sys.path[:1] not in ([here], [""]):
        sys.path.insert(0, here)


class UnknownNameError(ValueError):
    """A table, sweep or recipe that does not exist."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        wrong = re.search("invalid choice: '(.*?)'", message)
        close = difflib.get_close_matches(wrong[1], COMMANDS, n=1) if wrong else []
        super().error(message + (f". Did you mean {close[0]}?" if close else ""))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fl-lightning",
        description="Federated learning with the Lightning Trainer that you already use.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fl-lightning {metadata.version('fl-lightning')}")
    parser.add_argument("--print-completion", choices=SHELLS, metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


# ---- the commands ----


def _run(arguments: list[str]) -> int:
    given = _with_shipped_file(arguments, "tables")
    program = _loaded("fl_lightning.experiment.__main__", "the table", given)
    return int(program.table(given, prog="fl-lightning run", shipped=_shipped("tables")))


def _sweep(arguments: list[str]) -> int:
    given = _with_shipped_file(arguments, "sweeps")
    program = _loaded("fl_lightning.experiment.__main__", "the sweep", given)
    return int(program.sweep(given, prog="fl-lightning sweep", shipped=_shipped("sweeps")))


def _report(arguments: list[str]) -> int:
    program = _loaded("fl_lightning.report.__main__", "the results", arguments)
    return int(program.main(arguments, prog="fl-lightning report"))


def _describe(arguments: list[str]) -> int:
    program = _loaded("datamodules.__main__", "the data", arguments)
    return int(program.describe(arguments, prog="fl-lightning describe"))


def _loaded(module: str, source: str, arguments: Sequence[str]) -> ModuleType:
    """Return a command's program. Loading PyTorch takes seconds, so a terminal shows what the command begins with."""
    if sys.stderr.isatty() and not {"-h", "--help"} & set(arguments):
        print(f"Reading {source}…", file=sys.stderr)
    return import_module(module)


def _recipe(arguments: list[str]) -> int:
    names = recipes()
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: fl-lightning recipe NAME [options]\n")
        width, indent = shutil.get_terminal_size().columns, " " * (_WIDTH + 2)
        for name, path in names.items():
            print(
                textwrap.fill(_first_line(path), width, initial_indent=f"  {name:<{_WIDTH}}", subsequent_indent=indent)
            )
        print("\n`fl-lightning recipe NAME --help` shows the options of a recipe.")
        return 0
    if arguments[0] not in names:
        raise UnknownNameError(f"There is no recipe {arguments[0]!r}. {_meant(arguments[0], list(names))}")
    path = names[arguments[0]]
    sys.argv = [str(path), *arguments[1:]]
    runpy.run_path(str(path), run_name="__main__")
    return 0


_RUN: dict[str, Callable[[list[str]], int]] = {
    "run": _run,
    "sweep": _sweep,
    "report": _report,
    "describe": _describe,
    "recipe": _recipe,
}


def recipes() -> dict[str, Path]:
    """Return the files of the recipes by their names."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.py"))}


def _with_shipped_file(arguments: list[str], kind: str) -> list[str]:
    """Return the arguments with the path of a file of the package in place of its name, if the first one is a name.

    Raises:
        UnknownNameError: If the first argument is neither a path nor such a name.
    """
    if not arguments or arguments[0].startswith("-") or Path(arguments[0]).exists():
        return arguments
    path = RECIPES / kind / f"{arguments[0]}.yaml"
    if not path.is_file():
        for ending in (".yaml", ".yml"):
            if Path(f"{arguments[0]}{ending}").is_file():
                raise UnknownNameError(f"There is no file {arguments[0]}. Did you mean {arguments[0]}{ending}?")
        raise UnknownNameError(f"There is no file {arguments[0]}. {_meant(Path(arguments[0]).stem, _shipped(kind))}")
    return [str(path), *arguments[1:]]


def _shipped(kind: str) -> list[str]:
    return sorted(path.stem for path in (RECIPES / kind).glob("*.yaml"))


def _meant(word: str, names: list[str]) -> str:
    close = difflib.get_close_matches(word, names, n=1) or [name for name in names if word in name.split("_")][:1]
    return f"Did you mean {close[0]}?" if close else f"The package has {', '.join(names)}."


def _first_line(path: Path) -> str:
    return next((line.strip('" ') for line in path.read_text(encoding="utf-8").splitlines() if line), "")


# ---- completion ----


def completion(shell: str) -> str:
    """Return the script that completes the command and its options in a shell."""
    import shtab

    experiment, report, data = (
        import_module(name)
        for name in ("fl_lightning.experiment.__main__", "fl_lightning.report.__main__", "datamodules.__main__")
    )
    parser = argparse.ArgumentParser(prog="fl-lightning", description=_parser().description)
    parser.add_argument("--version", action="store_true", help="show the version")
    commands = parser.add_subparsers()
    for name, own in (
        ("run", experiment.table_parser()),
        ("sweep", experiment.sweep_parser()),
        ("report", report.parser("")),
        ("describe", data.describe_parser([], "")),
    ):
        _add_copy(commands, name, own)
    chosen = commands.add_parser("recipe", help=COMMANDS["recipe"])
    chosen.add_argument("name", choices=list(recipes()))
    return str(shtab.complete(parser, shell))


def _add_copy(commands: argparse._SubParsersAction, name: str, own: argparse.ArgumentParser) -> None:
    """Add a command with the arguments of its own parser, files completed as files."""
    import shtab

    command = commands.add_parser(name, help=COMMANDS[name], parents=[own], add_help=False, conflict_handler="resolve")
    for action in command._actions:
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
