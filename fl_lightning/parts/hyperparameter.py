"""Hyper-parameters that may change over the rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fl_lightning.arguments import check_text, plain, value_of

#: A number, or a function from the round (from 0) to a number.
Scheduled = float | Callable[[int], float]

_HINT = "It is called with the number of each round, from 0, and must give a number for all of them."


class Check(Protocol):
    """One of the checks of :mod:`fl_lightning.arguments`."""

    def __call__(self, name: str, value: float, hint: str = "") -> None:
        """Raise ``ValueError`` when ``value`` is not allowed."""
        ...


class Hyperparameter:
    """A checked number, or a schedule whose value is checked in every round.

    Args:
        name: The user's argument.
        value: A number, or a function from the round (from 0) to a number.
        check: Raises ``ValueError`` for a number that is not allowed.
        hint: The way out, for the error.

    Raises:
        TypeError: If the function fails for the first round, or later for another one.
        ValueError: If the number, or the first round's, is not allowed.
    """

    def __init__(self, name: str, value: Scheduled, check: Check, hint: str = "") -> None:
        check_text("name", name)
        self._name, self._value, self._check, self._hint = name, value, check, hint
        if callable(value):
            value_of(name, value, 0, _HINT)
        self.at(0)

    def check_rounds(self, number: int | None) -> None:
        """Look at the values of a table for all rounds of a fit before it begins.

        A table is the ``__getitem__`` of a list, a tuple or a dict, or a dict's ``get``. Other functions are called in
        their round alone: they may read what the run has changed by then.

        Args:
            number: Number of rounds; ``None`` if that is not known.

        Raises:
            TypeError: If the table has no value for a round.
            ValueError: If a value is not allowed.
        """
        table = getattr(self._value, "__self__", None)
        if type(table) in (list, tuple, dict) and getattr(self._value, "__name__", "") in ("__getitem__", "get"):
            for round_index in range(number or 0):
                self.at(round_index)

    def at(self, round_index: int) -> float:
        """Return the value in a round.

        Raises:
            TypeError: If the function fails.
            ValueError: If it is not allowed.
        """
        if not callable(self._value):
            self._check(self._name, self._value, self._hint)
            return float(plain(self._value))
        value = value_of(self._name, self._value, round_index, _HINT)
        self._check(f"{self._name}({round_index})", value, self._hint)
        return float(plain(value))
