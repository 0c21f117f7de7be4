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
PARTIAL = (*NARROW, "FedLoRA", "FLoRA")
KEEPS_NOTHING = ("Scaffold", "FedNova", "QFedAvg", "MIFA", "APFL", "Mime", "MimeLite", "FjORD", "FedDF", "FLoRA")
#: The methods that the library refuses in a set-up, by the set-up.
REFUSED: dict[str, tuple[str, ...]] = {
    "buffers averaged": ("FjORD",),
    "buffers local": ("FjORD", "FedDF", "FLoRA"),
    "buffers of the server": ("FjORD",),
    "compressed down": ("IFCA", *PARTIAL),
    "compressed up": ("IFCA", "FLoRA"),
    "compressed, BatchNorm": ("IFCA", "Mime", "MimeLite", *PARTIAL, "FedDF"),
    "head alone trained": ("FedPer", "FedRep", "FedBABU", *NARROW),
    "asynchronous, personal": (*NARROW, "FedDF"),
    "kept momentum": ("Scaffold", "FedNova", "APFL", "FLoRA"),
    "kept AdamW": ("FedNova", "APFL", "FLoRA"),
    "kept AdamW, personal": ("FedNova", "IFCA", "APFL", "Mime", "MimeLite", *PARTIAL, "FedDF"),
    "kept rate by step": ("Scaffold", "FedNova", "QFedAvg", "MIFA", "APFL", "FLoRA"),
    "kept, head alone trained": ("Scaffold", "FedNova", "FedPer", "FedRep", "FedBABU", "APFL", *NARROW, "FLoRA"),
    "kept, class weights": ("FedNova", "APFL", "FLoRA"),
    "kept, tied head": ("FedNova", "FedPer", "FedRep", "FedBABU", "FedALA", "APFL", "FedRoD", *NARROW, "FLoRA"),
    "kept, early stopping": ("Scaffold", "FedNova", "APFL", "FLoRA"),
    "kept, asynchronous": ("APFL",),
    **dict.fromkeys(("kept, stacked", "kept, resumed", "kept, two processes"), KEEPS_NOTHING),
    "personal head": ("Local", "FedPer", "FedRep", "LGFedAvg", "FedProto", "Mime", "MimeLite", "FedDF", "FedMD"),
    "rate by step": ("FedNova", "QFedAvg", "MIFA"),
    "power of choice, personal": ("Mime", "MimeLite", *PARTIAL, "FedDF"),
    "active, personal": ("Mime", "MimeLite", *PARTIAL, "FedDF"),
    **dict.fromkeys(("stacked", "resumed", "two processes"), ("Mime", "MimeLite", "FjORD", "FedDF")),
    "tied head": ("FedPer", "FedRep", "FedBABU", "FedALA", "FedRoD", *NARROW, "FLoRA"),
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
        if "two processes" in title or (name not in WHOLE and title != "plain" and place % 20):
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
