"""Every method in every set-up ends as a plain loop in torch says, or is refused before it trains.

The referee is in ``referee/``; ``python -m tests.contracts.setups`` prints the table. A cell that is known to be wrong
is in ``WRONG_TODAY``, and its test fails when it is mended, so that it leaves the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from contracts.referee.methods import METHODS
from contracts.referee.setups import SETUPS, cells, play

NARROW = ("HeteroFL", "FjORD")
#: The methods that the library refuses in a set-up, by the set-up.
REFUSED: dict[str, tuple[str, ...]] = {
    "buffers averaged": ("FjORD",),
    "buffers local": ("FjORD", "FedDF"),
    "buffers of the server": ("FjORD",),
    "compressed down": ("IFCA", *NARROW),
    "compressed up": ("IFCA",),
    "compressed, BatchNorm": ("IFCA", "Mime", "MimeLite", *NARROW, "FedDF"),
    "head alone trained": ("FedPer", "FedRep", "FedBABU", *NARROW),
    "asynchronous, personal": (*NARROW, "FedDF"),
    "kept momentum": ("Scaffold", "FedNova", "APFL"),
    "kept AdamW": ("FedNova", "APFL"),
    "kept AdamW, personal": ("FedNova", "IFCA", "APFL", "Mime", "MimeLite", *NARROW, "FedDF"),
    "kept rate by step": ("Scaffold", "FedNova", "QFedAvg", "MIFA", "APFL"),
    "kept, head alone trained": ("Scaffold", "FedNova", "FedPer", "FedRep", "FedBABU", "APFL", *NARROW),
    "kept, class weights": ("FedNova", "APFL"),
    "kept, tied head": ("FedNova", "FedPer", "FedRep", "FedBABU", "FedALA", "APFL", "FedRoD", *NARROW),
    "kept, early stopping": ("Scaffold", "FedNova", "APFL"),
    "kept, asynchronous": ("APFL",),
    "kept, stacked": ("Scaffold", "FedNova", "QFedAvg", "MIFA", "APFL", "Mime", "MimeLite", "FjORD", "FedDF"),
    "kept, resumed": ("Scaffold", "FedNova", "QFedAvg", "MIFA", "APFL", "Mime", "MimeLite", "FjORD", "FedDF"),
    "kept, two processes": ("Scaffold", "FedNova", "QFedAvg", "MIFA", "APFL", "Mime", "MimeLite", "FjORD", "FedDF"),
    "personal head": ("Local", "FedPer", "FedRep", "LGFedAvg", "FedProto", "Mime", "MimeLite", "FedDF", "FedMD"),
    "rate by step": ("FedNova", "QFedAvg", "MIFA"),
    "power of choice, personal": ("Mime", "MimeLite", *NARROW, "FedDF"),
    "active, personal": ("Mime", "MimeLite", *NARROW, "FedDF"),
    "stacked": ("Mime", "MimeLite", "FjORD", "FedDF"),
    "resumed": ("Mime", "MimeLite", "FjORD", "FedDF"),
    "two processes": ("Mime", "MimeLite", "FjORD", "FedDF"),
    "tied head": ("FedPer", "FedRep", "FedBABU", "FedALA", "FedRoD", *NARROW),
}
#: The methods that are wrong in a set-up: neither as the referee says nor refused.
WRONG_TODAY: dict[str, tuple[str, ...]] = {}
#: Methods of which all set-ups are default tests.
WHOLE = ("Ditto",)


def params() -> Iterator[Any]:
    """Return all cells; of most methods, 19 of 20 are long."""
    for place, (name, title) in enumerate(cells()):
        marks = []
        if name in WRONG_TODAY.get(title, ()):
            marks.append(pytest.mark.xfail(strict=True, reason="wrong today"))
        if title == "two processes" or (name not in WHOLE and title != "plain" and place % 20):
            marks.append(pytest.mark.long)
        yield pytest.param(name, title, marks=marks, id=f"{name}, {title}")


@pytest.mark.parametrize(("name", "title"), params())
def test_a_method_in_a_setup_is_as_the_referee_says_or_refused(name: str, title: str) -> None:
    outcome = play(name, title)
    if name in WRONG_TODAY.get(title, ()):
        assert outcome.word in ("right", "refused"), outcome.text
        return
    wanted = "refused" if name in REFUSED.get(title, ()) else "right"
    assert outcome.word == wanted, outcome.text


@pytest.mark.parametrize("listed", [REFUSED, WRONG_TODAY])
def test_a_list_names_cells(listed: dict[str, tuple[str, ...]]) -> None:
    assert {(name, title) for title, names in listed.items() for name in names}.issubset(cells())


def test_every_method_and_every_setup_has_cells() -> None:
    names, titles = zip(*cells(), strict=True)
    assert set(names) == set(METHODS)
    assert set(titles) == set(SETUPS)
