"""``fl-lightning describe``: a data set, its partitioner and its split, whose arguments are options."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jsonargparse import Namespace

import fl_lightning.data
import fl_lightning.partitioners
from fl_lightning import FederatedDataModule, datamodules, partition_report
from fl_lightning.command.parser import Parser
from fl_lightning.data.federated_split import Split
from fl_lightning.partitioners import Partitioner

_KINDS: dict[str, tuple[ModuleType, type]] = {
    "data": (datamodules, FederatedDataModule),
    "partitioner": (fl_lightning.partitioners, Partitioner),
    "split": (fl_lightning.data, Split),
}


def add_arguments(parser: Parser, arguments: Sequence[str]) -> None:
    """Add the options of the classes that the arguments name; an option that several of them have is for all."""
    parser.add_argument("data", choices=list(_classes("data")), help="with a data set, this help shows its arguments")
    parser.add_argument(
        "--partitioner", choices=list(_classes("partitioner")), help="with it, this help shows its arguments"
    )
    parser.add_argument("--split", choices=list(_classes("split")), help="of the samples or clients; default: client")
    parser.add_argument("--output", type=str, metavar="DIR", help="folder for partition.png and partition.html")
    parser.add_argument("--max-clients", type=int, metavar="N", help="most clients in the figure; default: 100")
    parser.add_argument("--overwrite", action="store_true", help="replace another report in DIR")
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--partitioner", "--split"):
        first.add_argument(name)
    named, _ = first.parse_known_args(arguments)
    given = {"data": arguments[0] if arguments else "", "partitioner": named.partitioner, "split": named.split}
    known = {"partitioner", "split"}
    for kind, name in given.items():
        found = _classes(kind).get(name)
        if found is not None:
            names = _argument_names(found)
            parser.add_class_arguments(found, skip=known & names)
            known |= names
    _write_with_hyphens(parser)


def _write_with_hyphens(parser: Parser) -> None:
    """Let options be typed with hyphens, as help then writes them; those with underscores stay known."""
    by_option = parser._option_string_actions
    for option, action in list(by_option.items()):
        typed = option.replace("_", "-")
        by_option[typed] = action
        action.option_strings = [each.replace("_", "-") for each in action.option_strings]


def describe(options: Namespace) -> int:
    """Print the report of a federation, and write its page; return the exit status.

    Raises:
        ValueError: If there is no partitioner, and the data set has no clients of its own.
    """
    parts = {}
    for kind in ("partitioner", "split"):
        if options.get(kind):
            parts[kind] = _make(kind, options)
    data: FederatedDataModule = _make("data", options, **parts)
    # The error comes before files are read.
    if data.partitioner is None and type(data).federate is FederatedDataModule.federate:
        raise ValueError(f"{type(data).__name__} needs a `--partitioner`, one of {', '.join(_classes('partitioner'))}.")
    data.prepare_data()
    data.setup()
    folder = options.get("output")
    settings = {name: options[name] for name in ("max_clients", "overwrite") if name in options}
    print(partition_report(data, folder, **settings))
    if folder:
        print(f"\n{folder}/partition.png\n{folder}/partition.html")
    else:
        print("\n--output DIR writes a picture and a page.")
    return 0


def _make(kind: str, options: Namespace, **parts: Any) -> Any:
    """Return an object of the class that the options name, with those options that are its arguments."""
    made = _classes(kind)[options[kind]]
    names = _argument_names(made) - {"partitioner", "split"}
    arguments = {name: options[name] for name in names if name in options}
    return made(**arguments, **parts)


def _argument_names(kind: type) -> set[str]:
    """Return the names of a class's arguments, those of its bases too."""
    return set(Parser().add_class_arguments(kind))


def _classes(kind: str) -> dict[str, type]:
    """Return the classes of a kind that the package exports: ``FashionMNISTDataModule`` is ``fashion-mnist``."""
    module, base = _KINDS[kind]
    classes = {}
    for exported in module.__all__:
        found = getattr(module, exported)
        if inspect.isclass(found) and issubclass(found, base) and not inspect.isabstract(found):
            name = re.sub("(DataModule|Partitioner|Split)$", "", found.__name__)
            # A new word begins after a small letter or digit, and with the last capital before a small letter.
            words = re.sub("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
            classes[words.lower()] = found
    return classes
