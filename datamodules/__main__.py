"""Describes a federation: ``python -m datamodules describe cifar10 --partitioner dirichlet --num-clients 100 ...``."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

import datamodules
import fl_lightning.data
import fl_lightning.partitioners
from datamodules.options import add_options, given_options, has_option, is_describable
from fl_lightning import partition_report
from fl_lightning.command_line import CommandParser, print_error, without_markup
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.splits import Split
from fl_lightning.partitioners import Partitioner

_PROGRAM = "python -m datamodules describe"
_EXAMPLE = "example:\n  {} digits \\\n      --partitioner dirichlet --num-clients 20 --alpha 0.3"
_DESCRIPTION = (
    "Show how a data set is distributed among clients, as a table; with --output, as a picture and a page, too. With "
    "the name of a data set, the help shows its options; with --partitioner and --split theirs, too."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``describe``, the only command; return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["describe"]:
        return describe(arguments[1:])
    parser = CommandParser(prog="python -m datamodules", epilog=_EXAMPLE.format(_PROGRAM))
    parser.add_argument("command", choices=["describe"], help="show how a data set is distributed among clients")
    parser.parse_args(arguments)
    return 2


def describe(arguments: Sequence[str], prog: str = _PROGRAM) -> int:
    """Describe a federation; return the exit status, 1 if the federation cannot be made.

    Args:
        arguments: Those of the command line.
        prog: What the help calls the program.
    """
    options = describe_parser(arguments, prog).parse_args(arguments)
    try:
        datamodule = _build(options)
        _refuse_no_partitioner(datamodule)
        datamodule.prepare_data()
        datamodule.setup()
        report = partition_report(
            datamodule, options.output, max_clients=options.max_clients, overwrite=options.overwrite
        )
    except (ValueError, OSError, RuntimeError) as error:
        print_error(error)
        return 1
    print(report)
    if options.output is None:
        print("\nWith --output DIR, a picture and a page are written into that folder.")
    else:
        print(f"\n{options.output}/partition.png\n{options.output}/partition.html")
    return 0


def _refuse_no_partitioner(datamodule: FederatedDataModule) -> None:
    """Raise an error for a data set without clients and without a partitioner, before its files are read."""
    if datamodule.partitioner is None and type(datamodule).federate is FederatedDataModule.federate:
        raise ValueError(
            f"{type(datamodule).__name__} has no `partitioner`, so it is unknown which client holds which sample. Give "
            f"--partitioner, one of {', '.join(_partitioners())}."
        )


def classes_by_name(module: ModuleType, base: type) -> dict[str, type]:
    """Return the classes of a kind that a module exports and that can be made from texts, by their names.

    A name is the class's own without the kind, in lower case: ``FashionMNISTDataModule`` is ``fashion-mnist``.
    """
    exported = (getattr(module, name) for name in module.__all__)
    kind = re.compile("(DataModule|Partitioner|Split)$")
    # a new word begins after a small letter or digit, and with the last capital before a small letter
    word = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
    return {
        word.sub("-", kind.sub("", cls.__name__)).lower(): cls
        for cls in exported
        if inspect.isclass(cls) and issubclass(cls, base) and is_describable(cls)
    }


def _modules() -> dict[str, type]:
    return classes_by_name(datamodules, FederatedDataModule)


def _partitioners() -> dict[str, type]:
    return classes_by_name(fl_lightning.partitioners, Partitioner)


def _splits() -> dict[str, type]:
    return classes_by_name(fl_lightning.data, Split)


def describe_parser(arguments: Sequence[str], prog: str) -> argparse.ArgumentParser:
    """Return the parser, with the options of the partitioner and of the split that the arguments name."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--partitioner")
    first.add_argument("--split")
    named, _ = first.parse_known_args(arguments)

    example = _EXAMPLE.format(prog)
    parser = _Parser(prog=prog, description=_DESCRIPTION, epilog=example)
    parser.has_partitioner = named.partitioner is not None
    data = parser.add_subparsers(dest="data", required=True, metavar="data", title="data sets")
    for name, cls in _modules().items():
        summary = without_markup((inspect.getdoc(cls) or "").partition("\n")[0]).replace("%", "%%")
        command = data.add_parser(name, help=summary, description=summary, epilog=example)
        _add_common(command)
        if named.partitioner in _partitioners():
            add_options(command, "partitioner", _partitioners()[named.partitioner])
        add_options(command, "data", cls)
        if named.split in _splits():
            add_options(command, "split", _splits()[named.split], prefix=True)
    return parser


class _Parser(CommandParser):
    """Says where the options of partitioners come from, if one is given without a partitioner."""

    has_partitioner = True

    def error(self, message: str) -> NoReturn:
        """End the program with the message."""
        if "unrecognized arguments" in message and not self.has_partitioner:
            message += f". Options of a partitioner need --partitioner, one of {', '.join(_partitioners())}"
        elif "unrecognized arguments" in message:
            for option in dict.fromkeys(re.findall(r"--[\w-]+", message)):
                owners = [name for name, cls in _partitioners().items() if has_option(cls, option)]
                message += f". {option} is for --partitioner {' or '.join(owners)}" if owners else ""
        super().error(message)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partitioner", choices=_partitioners(), help="with it, this help shows its arguments; some data need none"
    )
    parser.add_argument(
        "--split", choices=_splits(), help="how training, validation and test sets are made; default: client"
    )
    parser.add_argument("--output", metavar="DIR", help="folder for partition.png and partition.html")
    parser.add_argument(
        "--max-clients", type=int, default=100, metavar="N", help="largest number of clients in the figure"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace another report in DIR")


def _build(arguments: argparse.Namespace) -> FederatedDataModule:
    """Make the data module that the arguments name."""
    options = given_options(arguments, "data")
    if arguments.partitioner is not None:
        options["partitioner"] = _partitioners()[arguments.partitioner](**given_options(arguments, "partitioner"))
    if arguments.split is not None:
        options["split"] = _splits()[arguments.split](**given_options(arguments, "split"))
    datamodule: FederatedDataModule = _modules()[arguments.data](**options)
    return datamodule


if __name__ == "__main__":
    sys.exit(main())
