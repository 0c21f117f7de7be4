"""Words of messages: values in short, numbers with their nouns, lists in a sentence, durations."""

import inspect
import os
import reprlib
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

#: How a module takes the weights of a checkpoint alone.
LOAD_WEIGHTS = '`module.load_state_dict(torch.load(path)["state_dict"])`'


class _Short(reprlib.Repr):
    """Shows arrays by their shape, functions by their name, and cuts long strings and lists."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = 60
        self.maxother = 60
        self.maxlong = 60
        self.maxlist = 4
        self.maxtuple = 4
        self.maxdict = 4
        self.maxset = 4
        self.maxfrozenset = 4

    def repr_instance(self, x: Any, level: int) -> str:
        """Return an object's ``repr`` if that is one short line without addresses, otherwise its class."""
        if isinstance(x, os.PathLike):
            return self.repr1(os.fspath(x), level)
        if isinstance(x, type) or inspect.isroutine(x):
            return x.__name__
        name = type(x).__name__
        shape = getattr(x, "shape", None)
        if isinstance(shape, tuple):
            return f"<{name} of shape {tuple(shape)}>" if shape else self.repr1(x.item(), level)
        if type(x).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
            return f"<{name}>"
        shown = repr(x)
        if "\n" in shown or " at 0x" in shown or len(shown) > 160:
            return f"{name}(...)"
        return shown

    # `reprlib` looks up a method by the name of an object's class.
    repr_type = repr_instance
    repr_function = repr_instance
    repr_builtin_function_or_method = repr_instance


_short = _Short()


def short_repr(value: object) -> str:
    """Return a value in a few words: arrays by their shape, functions by their name, long strings and lists cut."""
    return _short.repr(value)


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun: ``"1 client"``, ``"2,000 clients"``."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"


def enumeration(words: Sequence[str], by: str = "and", most: int | None = None) -> str:
    """Return words as a list in a sentence: ``"a, b and c"``.

    Args:
        words: The words.
        by: What is before the last one.
        most: How many are shown, if there are more: ``"a, b and 3 more"``; all if ``None``.
    """
    shown = list(words)
    # "and 1 more" would be as long as the word itself.
    if most is not None and len(words) - most > 1:
        shown = [*words[:most], f"{len(words) - most} more"]
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} {by} {shown[-1]}"


def duration(seconds: float) -> str:
    """Return a duration in short: ``"0.3 s"``, ``"40 s"``, ``"12 min"``, ``"3.5 h"`` or ``"2.1 days"``."""
    if seconds < 0.95:
        return f"{max(seconds, 0.1):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    if minutes < 90:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    if hours < 48:
        return f"{hours:.1f} h"
    return f"{hours / 24:.1f} days"


def how_to_install(extra: str) -> str:
    """Return the command that installs what an extra of the package needs: ``pip install "submitit>=1.5"``.

    It is true whether the package is from an index or from a clone, which ``pip install "fl-lightning[slurm]"`` is not.
    """
    needed = []
    for line in metadata.requires("fl-lightning") or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            needed.append(f'"{requirement.name}{requirement.specifier}"')
    return f"pip install {' '.join(needed)}"
