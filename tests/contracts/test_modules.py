"""The contract of modules: however clients are trained, a fit leaves behind what a loop by hand leaves behind.

The entries of the zoo (``tests/zoo/modules``) are its registry: a new module is an ``Entry`` in a list there.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from zoo.entry import Entry
from zoo.fitting import Fit, fit
from zoo.modules import ENTRIES
from zoo.outcome import Outcome, compare
from zoo.reference import Reference

#: Why clients of an entry are not stacked.
CAUSES = dict(line.split(": ", 1) for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines())


@lru_cache(maxsize=2)
def by_hand(entry: Entry) -> Outcome:
    return Reference(entry).run()


@lru_cache(maxsize=2)
def one_by_one(entry: Entry) -> Fit:
    return fit(entry, "sequential")


def cases() -> list[Any]:
    """Return every entry with every executor; the sequential one needs the loop by hand as its referee."""
    return [
        pytest.param(entry, executor, marks=[pytest.mark.long] * entry.long, id=f"{entry.name}-{executor}")
        for entry in ENTRIES
        for executor in (["sequential"] if entry.by_hand else []) + ["vectorized"]
    ]


@pytest.mark.parametrize(("entry", "executor"), cases())
def test_modules(entry: Entry, executor: str) -> None:
    found = one_by_one(entry) if executor == "sequential" else fit(entry, executor)
    if entry.by_hand:
        assert not compare(by_hand(entry), found.outcome, entry.tolerance)
    if executor == "vectorized":
        assert not compare(one_by_one(entry).everything, found.everything, entry.tolerance)
        assert (found.cause is None) == entry.stacked, found.cause
        cause = re.sub(r"\d\.\d+", "NUMBER", re.sub(r", line \d+", "", str(found.cause)))
        assert cause == CAUSES.get(entry.name, "None")


def test_every_entry_has_a_name_and_every_cause_an_entry() -> None:
    names = {entry.name for entry in ENTRIES}
    assert len(names | CAUSES.keys()) == len(ENTRIES) > 280
