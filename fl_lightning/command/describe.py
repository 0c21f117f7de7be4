"""``fl-lightning describe``: a data set, its partitioner and its split, whose arguments are options."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from jsonargparse import Namespace

import fl_lightning.data
import fl_lightning.partitioners
from fl_lightning import FederatedDataModule, datamodules, partition_report
from fl_lightning.command.parser import Parser
from fl_lightning.data.splits import Split
from fl_lightning.partitioners import Partitioner


def add_arguments(parser: Parser, arguments: Sequence[str]) -> None:
    """Add the options of the classes that the arguments name; an option that several of them have is for all."""
    parser.add_argument("data", choices=list(_data_modules()), help="with a data set, this help shows its arguments")
    parser.add_argument("--partitioner", choices=list(_partitioners()), help="with it, this help shows its arguments")
    parser.add_argument("--split", choices=list(_splits()), help="of training, validation and test; default: client")
    parser.add_argument("--output", type=str, metavar="DIR", help="folder for partition.png and partition.html")
    parser.add_argument("--max_clients", type=int, metavar="N", help="most clients in the figure; default: 100")
    parser.add_argument("--overwrite", action="store_true", help="replace another report in DIR")
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("partitioner", "split"):
        first.add_argument(f"--{name}")
    named, _ = first.parse_known_args(arguments)
    known = {"partitioner", "split"}
    for kind in filter(None, (_data_modules().get(arguments[0]) if arguments else None, *_parts(vars(named)).values())):
        names = _argument_names(kind)
        parser.add_class_arguments(kind, skip=known & names)
        known |= names


def describe(options: Namespace) -> int:
    """Print the report of a federation, and write its page; return the exit status.

    Raises:
        ValueError: If there is no partitioner, and the data set has no clients of its own.
    """
    parts = {name: _make(kind, options) for name, kind in _parts(vars(options)).items() if kind is not None}
    data: FederatedDataModule = _make(_data_modules()[options.data], options, **parts)
    if data.partitioner is None and type(data).federate is FederatedDataModule.federate:  # before files are read
        raise ValueError(f"{type(data).__name__} needs a `--partitioner`, one of {', '.join(_partitioners())}.")
    data.prepare_data()
    data.setup()
    folder = options.get("output")
    settings = {name: options[name] for name in ("max_clients", "overwrite") if name in options}
    print(partition_report(data, folder, **settings))
    print(
        f"\n{folder}/partition.png\n{folder}/partition.html"
        if folder
        else "\n--output DIR writes a picture and a page."
    )
    return 0


def _parts(given: Mapping[str, Any]) -> dict[str, type | None]:
    """Return the classes of the partitioner and of the split, where they are given."""
    known = {"partitioner": _partitioners(), "split": _splits()}
    return {name: classes.get(given.get(name, "")) for name, classes in known.items()}


def _argument_names(kind: type) -> set[str]:
    return set(Parser().add_class_arguments(kind))


def _make(kind: type, options: Namespace, **parts: Any) -> Any:
    given = {name: options[name] for name in _argument_names(kind) - {"partitioner", "split"} if name in options}
    return kind(**given, **parts)


def _data_modules() -> dict[str, type]:
    return _classes_by_name(datamodules, FederatedDataModule)


def _partitioners() -> dict[str, type]:
    return _classes_by_name(fl_lightning.partitioners, Partitioner)


def _splits() -> dict[str, type]:
    return _classes_by_name(fl_lightning.data, Split)


def _classes_by_name(module: ModuleType, base: type) -> dict[str, type]:
    """Return the classes of a kind that a module exports: ``FashionMNISTDataModule`` is ``fashion-mnist``."""
    kind = re.compile("(DataModule|Partitioner|Split)$")
    # a new word begins after a small letter or digit, and with the last capital before a small letter
    word = re.compile("(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
    exported = (getattr(module, name) for name in module.__all__)
    return {
        word.sub("-", kind.sub("", found.__name__)).lower(): found
        for found in exported
        if inspect.isclass(found) and issubclass(found, base) and not inspect.isabstract(found)
    }
