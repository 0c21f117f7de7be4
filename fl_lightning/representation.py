"""Texts: the arguments of constructors as ``help`` and ``repr`` show them, lists in sentences, durations."""

from __future__ import annotations

import inspect
import os
import re
import reprlib
import sys
from collections.abc import Mapping, Sequence, Set
from inspect import Parameter, Signature
from typing import Any, ClassVar

import numpy as np

#: How a module takes the weights of a checkpoint alone.
LOAD_WEIGHTS = '`module.load_state_dict(torch.load(path)["state_dict"])`'


class FullSignature:
    """A class attribute ``__signature__`` that shows all arguments; see :func:`full_signature`."""

    def __get__(self, instance: object, cls: type) -> Signature:
        if instance is not None:
            raise AttributeError
        return full_signature(cls)


class ShowsArguments:
    """Shows an object by its class and the constructor arguments that differ from their defaults.

    Attributes:
        shown_always: Arguments that are shown even if they have their default values, such as a seed.
        stored_as: The attribute of an argument whose own name is that of a property.
    """

    shown_always: ClassVar[tuple[str, ...]] = ()
    stored_as: ClassVar[Mapping[str, str]] = {}
    __signature__ = FullSignature()

    @reprlib.recursive_repr()
    def __repr__(self) -> str:
        return represent(self, always=self.shown_always)


def full_signature(cls: type) -> Signature:
    """Return the arguments of a class's constructor and those that ``**options`` hands on to its base classes.

    Of a constructor with ``**options: Unpack[SomeTypedDict]`` only the arguments that the dictionary names are shown.
    """
    found: dict[str, Parameter] = {}
    handed_on: Set[str] | None = None  # names; None for any
    owners = [base for base in cls.__mro__ if "__init__" in vars(base) and base is not object]
    for base in owners:
        _, *parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
        for parameter in parameters:
            if parameter.kind is not Parameter.VAR_KEYWORD and (handed_on is None or parameter.name in handed_on):
                shown = parameter if base is owners[0] else parameter.replace(kind=Parameter.KEYWORD_ONLY)
                found.setdefault(parameter.name, shown)
        rest = next((each for each in parameters if each.kind is Parameter.VAR_KEYWORD), None)
        if rest is None:
            break
        names = _names_in(rest, base)
        handed_on = names if handed_on is None else handed_on if names is None else handed_on & names
    return Signature(sorted(found.values(), key=lambda parameter: parameter.kind))


def _names_in(options: Parameter, owner: type) -> Set[str] | None:
    """Return the names in the TypedDict that annotates ``**options``; ``None`` if there is none."""
    text = re.fullmatch(r"Unpack\[(\w+)\]", str(options.annotation))
    kind = getattr(sys.modules[owner.__module__], text[1]) if text else None
    return None if kind is None else kind.__required_keys__ | kind.__optional_keys__


def arguments(instance: object) -> dict[str, Any]:
    """Return the values of an object's constructor arguments by name, if attributes of these names have them."""
    stored_as = getattr(type(instance), "stored_as", {})
    names = [(name, stored_as.get(name, name)) for name in full_signature(type(instance)).parameters]
    return {name: getattr(instance, attribute) for name, attribute in names if hasattr(instance, attribute)}


def represent(instance: object, *facts: str, always: Sequence[str] = (), leave_out: Sequence[str] = ()) -> str:
    """Return the class and the constructor arguments of an object that differ from their defaults, in one line.

    Args:
        instance: The object; the value of an argument is the attribute of the same name.
        *facts: Texts that come first, such as ``"3 clients"``.
        always: Arguments that are shown even if they have their default values.
        leave_out: Arguments that are not shown.

    Returns:
        For example ``DirichletPartitioner(num_clients=100, alpha=0.3, seed=0)``.
    """
    parameters, shown = full_signature(type(instance)).parameters, []
    for name, value in arguments(instance).items():
        if name in leave_out:
            continue
        if parameters[name].kind is Parameter.VAR_POSITIONAL:
            shown += [short(item) for item in value]
        elif name in always or not _is_default(value, parameters[name].default):
            shown.append(f"{name}={short(value)}")
    return f"{type(instance).__name__}({', '.join([*facts, *shown])})"


def _is_default(value: object, default: object) -> bool:
    # True is no 1, and an array is equal to a number in more than one way
    if value is default or default is Parameter.empty or isinstance(value, bool) != isinstance(default, bool):
        return value is default
    return not isinstance(value, np.ndarray) and bool(value == default)


class _Short(reprlib.Repr):
    """Shows arrays by their shape, functions by their name, and cuts long texts and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 60
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 4
        self.maxlevel = 3

    def repr_instance(self, x: Any, level: int) -> str:
        """Return an object's own text if that is one short line without addresses, otherwise its class."""
        if isinstance(x, os.PathLike):
            return self.repr1(os.fspath(x), level)
        if isinstance(x, type) or inspect.isroutine(x):
            return x.__name__
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple):
            return f"<{type(x).__name__} of shape {tuple(shape)}>" if shape else self.repr1(x.item(), level)
        if type(x).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
            return f"<{type(x).__name__}>"
        text = repr(x)
        return f"{type(x).__name__}(...)" if "\n" in text or " at 0x" in text or len(text) > 160 else text

    repr_type = repr_builtin_function_or_method = repr_function = repr_instance


_short = _Short()


def short(value: object) -> str:
    """Return a value in a few words: arrays by their shape, functions by their name, long texts and lists cut."""
    return _short.repr(value)


def counted(number: int, noun: str) -> str:
    """Return a number of things as a text: ``"1 client"``, ``"2,000 clients"``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def who_train(number: int) -> str:
    """Return ``"1 client trains"`` or ``"2 clients train"``."""
    return f"{counted(number, 'client')} train{'s' * (number == 1)}"


def joined(words: Sequence[str], by: str = "and", most: int | None = None) -> str:
    """Return words as a list in a sentence: ``"a, b and c"``.

    Args:
        words: The words.
        by: What is before the last one.
        most: How many are shown, if there are more: ``"a, b and 3 more"``; all if ``None``.
    """
    others = 0 if most is None else len(words) - most
    shown = [*words[:most], f"{others} more"] if others > 1 else words
    return f" {by} ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)


def duration(seconds: float) -> str:
    """Return a duration as a short text: ``"0.3 s"``, ``"40 s"``, ``"12 min"``, ``"3.5 h"`` or ``"2.1 days"``."""
    if seconds < 0.95:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
