"""Finds attributes of users' parts that change and are not saved."""

from __future__ import annotations

import dis
import functools
import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from fl_lightning.parts.guards.fingerprints import fingerprint
from fl_lightning.parts.part import Part
from fl_lightning.super_calls import is_of_library

_PRIVATE = ("_federation", "_guarded_calls", "_arguments_given")
#: So many rounds of a fit are compared, and so many in which the server acts, if it acts seldom.
_COMPARED_ROUNDS, _COMPARED_ACTIONS = 10, 4


class UnsavedState:
    """Compares the attributes of parts that save nothing, in the first rounds of a fit.

    What a round makes for all later ones is no state, and neither is what ``on_round_start`` sets anew. A part with a
    ``state_dict`` of its own knows what it saves.
    """

    def __init__(self) -> None:
        self._rounds = self._actions = self._aggregations = 0
        self._watched: list[_Watched] = []
        self._found: list[tuple[Part, list[str]]] = []
        self._told = False

    def on_fit_start(self) -> None:
        """Begin anew."""
        self._rounds = self._actions = self._aggregations = 0
        self._watched, self._found = [], []

    @contextmanager
    def set_anew(self) -> Iterator[None]:
        """Ignore attributes that are set inside this block: each round sets them again."""
        watched = [each for each in self._watched if each.new]
        before = [each.fingerprints() for each in watched]
        yield
        for each, fingerprints in zip(watched, before, strict=True):
            each.leave_out_changes_of(fingerprints)

    def on_round_end(self, parts: Iterable[Part], aggregations: int) -> None:
        """Compare the parts' attributes with those at the end of the first round that had them.

        Args:
            parts: All parts of the algorithm.
            aggregations: How often the server has acted.
        """
        acted, self._aggregations = aggregations > self._aggregations, aggregations
        self._rounds, self._actions = self._rounds + 1, self._actions + acted
        if self._rounds == 1:
            self._watched = [_Watched(part) for part in parts if _saves_nothing(part)]
        if self._rounds <= _COMPARED_ROUNDS or (acted and self._actions <= _COMPARED_ACTIONS):
            changed = [(each.part, each.compare()) for each in self._watched]
            self._found = self._found or [(part, names) for part, names in changed if names]

    def warn(self) -> None:
        """Warn once of what changes and is not saved; called when a state is saved."""
        for part, names in [] if self._told else self._found:
            self._told = True
            if part.federation.rank == 0:
                shown = ", ".join(f"`{name}`" for name in names)
                warnings.warn(
                    f"{type(part).__name__} changes {shown} from round to round, and has no `state_dict`. Checkpoints "
                    "do not hold this, so a resumed run goes on without it. Define `state_dict()` and "
                    "`load_state_dict(state)`; where a resumed run does not need it, let them save and load nothing.",
                    stacklevel=2,
                )


class _Watched:
    """The attributes of a part, as they were at the end of the first round that had them."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.new: set[str] = set()  # since the last comparison
        self._known: dict[str, Any] = {}
        kind: Any = type(part)
        self._left_out = {*_PRIVATE, *_of_library(kind)}

    def fingerprints(self) -> dict[str, Any]:
        """Return the fingerprints of the present values."""
        return {name: fingerprint(value) for name, value in vars(self.part).items() if name not in self._left_out}

    def compare(self) -> list[str]:
        """Return the names of attributes that have changed, and know those that are new."""
        now = self.fingerprints()
        changed = _changed(self._known, now)
        self.new = now.keys() - self._known.keys()
        self._known = {**now, **self._known}
        return changed

    def leave_out_changes_of(self, before: dict[str, Any]) -> None:
        """Compare no more what is new and not as it was before."""
        self._left_out |= self.new & {*_changed(before, self.fingerprints())}
        self._known = {name: value for name, value in self._known.items() if name not in self._left_out}
        self.new = set()


def _saves_nothing(part: Part) -> bool:
    """Whether a part of a user's own has no ``state_dict`` of its own, whatever the library's classes save."""
    return not part.is_of_library and not part.defines_state


@functools.cache
def _of_library(cls: type) -> frozenset[str]:
    """Return the attributes that classes of the library set in their own code, which they save if need be."""
    classes = [base for base in cls.__mro__ if is_of_library(base)]
    functions = [inspect.unwrap(held) for base in classes for held in vars(base).values() if inspect.isroutine(held)]
    codes = [function.__code__ for function in functions if inspect.isfunction(function)]
    return frozenset(i.argval for code in codes for i in dis.get_instructions(code) if i.opname == "STORE_ATTR")


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of ``before`` that are not the same now."""
    return [name for name, value in before.items() if name in now and now[name] != value]
