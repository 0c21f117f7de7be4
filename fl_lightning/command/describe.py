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
    parser.add_argument("--max_clients", type=int, metavar="N", help="most clients in the figure; default: 100")
    parser.add_argument("--overwrite", action="store_true", help="replace another report in DIR")
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--partitioner", "--split"):
        first.add_argument(name)
    given = {"data": "".join(arguments[:1]), **vars(first.parse_known_args(arguments)[0])}
    known = {"partitioner", "split"}
    for kind, name in given.items():
        if name in _classes(kind):
            names = _argument_names(_classes(kind)[name])
            parser.add_class_arguments(_classes(kind)[name], skip=known & names)
            known |= names


def describe(options: Namespace) -> int:
    """Print the report of a federation, and write its page; return the exit status.

    Raises:
        ValueError: If there is no partitioner, and the data set has no clients of its own.
    """
    parts = {kind: _make(kind, options) for kind in ("partitioner", "split") if options.get(kind)}
    data: FederatedDataModule = _make("data", options, **parts)
    if data.partitioner is None and type(data).federate is FederatedDataModule.federate:  # before files are read
        raise ValueError(f"{type(data).__name__} needs a `--partitioner`, one of {', '.join(_classes('partitioner'))}.")
    data.prepare_data()
    data.setup()
    folder = options.get("output")
    settings = {name: options[name] for name in ("max_clients", "overwrite") if name in options}
    print(partition_report(data, folder, **settings))
    files = f"{folder}/partition.png\n{folder}/partition.html"
    print(f"\n{files if folder else '--output DIR writes a picture and a page.'}")
    return 0


def _make(kind: str, options: Namespace, **parts: Any) -> Any:
    made = _classes(kind)[options[kind]]
    names = _argument_names(made) - {"partitioner", "split"}
    return made(**{name: options[name] for name in names if name in options}, **parts)


def _argument_names(kind: type) -> set[str]:
    return set(Parser().add_class_arguments(kind))


def _classes(kind: str) -> dict[str, type]:
    """Return the classes of a kind that the package exports: ``FashionMNISTDataModule`` is ``fashion-mnist``."""
    module, base = _KINDS[kind]
    suffix = re.compile("(DataModule|Partitioner|Split)$")
    # a new word begins after a small letter or digit, and with the last capital before a small letter
    word = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
    exported = (getattr(module, name) for name in module.__all__)
    return {
        word.sub("-", suffix.sub("", found.__name__)).lower(): found
        for found in exported
        if inspect.isclass(found) and issubclass(found, base) and not inspect.isabstract(found)
    }
