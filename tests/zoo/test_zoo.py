"""Whatever executor is named, nobody can tell it from a loop by hand: weights, values, logger calls, attributes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from zoo.entry import Entry
from zoo.fitting import Fit, fit
from zoo.known import KNOWN, cause_of
from zoo.modules import ENTRIES
from zoo.outcome import ASPECTS, Outcome, differences
from zoo.reference import Reference

NAMES = [entry.name for entry in ENTRIES]
DIFFERENT = {name for known in KNOWN for name in known.entries}


@lru_cache(maxsize=8)
def by_hand(entry: Entry) -> Outcome:
    """Return what the hand-written loop leaves behind."""
    return Reference(entry).run()


@lru_cache(maxsize=8)
def by_library(entry: Entry, executor: str) -> Fit | Exception:
    """Return what the library leaves behind, or the error that it raised."""
    try:
        return fit(entry, executor)
    except Exception as error:
        return error


def fitted(entry: Entry, executor: str) -> Fit:
    """Return what the library leaves behind."""
    done = by_library(entry, executor)
    if isinstance(done, Exception):
        raise done
    return done


def cases() -> list[Any]:
    """Return every entry with every executor and aspect; known differences are expected to fail.

    Where it stacks, ``"auto"`` runs what ``"vectorized"`` runs: by name, only those that differ run by default.
    """
    found = []
    for entry in ENTRIES:
        for executor in ("sequential", "auto", "vectorized"):
            for aspect in ASPECTS:
                cause = cause_of(entry.name, executor, aspect)
                marks: list[Any] = [] if cause is None else [pytest.mark.xfail(strict=True, reason=cause)]
                if executor == "vectorized" and entry.name not in DIFFERENT:
                    marks.append(pytest.mark.long)
                found.append(pytest.param(entry, executor, aspect, marks=marks, id=f"{entry.name}-{executor}-{aspect}"))
    return found


@pytest.mark.parametrize(("entry", "executor", "aspect"), cases())
def test_nobody_can_tell(entry: Entry, executor: str, aspect: str) -> None:
    expected, found = getattr(by_hand(entry), aspect), getattr(fitted(entry, executor).outcome, aspect)
    assert not differences(expected, found, entry.tolerance)
    alone, at_once = fitted(entry, "sequential"), fitted(entry, executor)
    assert not differences(getattr(alone.everything, aspect), getattr(at_once.everything, aspect), entry.tolerance)


def test_every_entry_has_a_name_of_its_own() -> None:
    assert len(NAMES) > 60
    assert len(set(NAMES)) == len(NAMES)


def test_known_differences_are_of_entries_that_exist() -> None:
    assert set(NAMES) >= DIFFERENT
