"""Command-line options made of the arguments of a class."""

from __future__ import annotations

import argparse
import collections.abc
import contextlib
import inspect
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

Convert = Callable[[str], Any]


def add_options(parser: argparse.ArgumentParser, key: str, cls: type, *, prefix: bool = False) -> None:
    """Add the arguments of a class that can be written as text to a parser, in a group of their own.

    These are numbers, texts, paths, truth values, ``None``, literals and unions of them, and sequences, written with
    commas. An argument without a default is a required option; others are left to the class unless they are given.

    Args:
        parser: The parser.
        key: Name under which :func:`given_options` finds the values.
        cls: The class.
        prefix: Whether to put ``key`` before the name of every option; else only where the parser has that option.
    """
    group = parser.add_argument_group(f"arguments of {cls.__name__}")
    for name, (convert, default) in _text_arguments(cls).items():
        settings: dict[str, Any] = {"dest": f"{key}:{name}", "default": argparse.SUPPRESS}
        settings |= {"required": True} if default is inspect.Parameter.empty else {"help": f"default: {default}"}
        if convert is _truth:
            settings["action"] = argparse.BooleanOptionalAction
        else:
            settings |= {"type": convert, "metavar": convert.__name__}
        option = name.replace("_", "-")
        try:
            group.add_argument(f"--{key}-{option}" if prefix else f"--{option}", **settings)
        except argparse.ArgumentError:  # another part has an option of this name
            group.add_argument(f"--{key}-{option}", **settings)


def given_options(namespace: argparse.Namespace, key: str) -> dict[str, Any]:
    """Return the arguments of a class that were given, by their names."""
    return {name.partition(":")[2]: value for name, value in vars(namespace).items() if name.startswith(f"{key}:")}


def has_option(cls: type, option: str) -> bool:
    """Return whether :func:`add_options` makes an option such as ``"--alpha"`` of an argument of a class."""
    return option.removeprefix("--").replace("-", "_") in _text_arguments(cls)


def is_describable(cls: type) -> bool:
    """Return whether a class can be made of arguments that are written as text."""
    required = {name for name, parameter in _parameters(cls).items() if parameter.default is parameter.empty}
    return not inspect.isabstract(cls) and required <= set(_text_arguments(cls))


def _parameters(cls: type) -> dict[str, inspect.Parameter]:
    """Return the arguments that have names."""
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: value for name, value in inspect.signature(cls).parameters.items() if value.kind not in variadic}


def _text_arguments(cls: type) -> dict[str, tuple[Convert, Any]]:
    """Return how to read each argument that can be written as text, and its default."""
    hints = get_type_hints(cls.__init__)  # type: ignore[misc]
    arguments = {}
    for name, parameter in _parameters(cls).items():
        convert = _reader(hints.get(name))
        if convert is not None:
            arguments[name] = convert, parameter.default
    return arguments


def _reader(hint: Any) -> Convert | None:
    """Return the function that reads a value of a type from a text, or ``None`` if a text cannot express the type.

    A reader raises ``ValueError`` at a wrong text, and its ``__name__`` says what it expects.
    """
    origin: Any = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _union(get_args(hint))
    if origin is Literal:
        return _choice(get_args(hint))
    if hint is bool:
        return _truth
    if hint in (int, float, str, Path):
        return cast(Convert, hint)
    if _is_text(hint):
        return str
    if origin in (list, tuple, collections.abc.Sequence):
        return _sequence(get_args(hint)[0], tuple if origin is tuple else list)
    return None


def _is_text(hint: Any) -> bool:
    return hint in (str, Path) or get_origin(hint) is os.PathLike


def _union(members: tuple[Any, ...]) -> Convert | None:
    # every number is also a text, so texts are tried last
    order = sorted(members, key=_is_text)
    readers = [reader for member in order if (reader := _reader(member)) is not None]
    if not readers:
        return None
    if type(None) in members:
        readers.insert(0, _choice((None,)))

    def read(text: str) -> Any:
        for reader in readers:
            with contextlib.suppress(ValueError):
                return reader(text)
        raise ValueError(text)

    read.__name__ = " or ".join(dict.fromkeys(reader.__name__ for reader in readers))
    return read


def _choice(values: tuple[Any, ...]) -> Convert:
    by_text = {str(value).lower(): value for value in values}

    def read(text: str) -> Any:
        if text.lower() not in by_text:
            raise ValueError(text)
        return by_text[text.lower()]

    read.__name__ = "|".join(by_text)
    return read


def _sequence(inner: Any, make: type) -> Convert | None:
    reader = _reader(inner)
    if reader is None:
        return None

    def read(text: str) -> Any:
        return make(reader(item) for item in text.split(","))

    read.__name__ = f"{reader.__name__},..."
    return read


_truth = _choice((True, False))
