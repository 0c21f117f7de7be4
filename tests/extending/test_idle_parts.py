"""A part of one's own that would change nothing is an error, not a method that is FedAvg in silence."""

from __future__ import annotations

from typing import Any

import pytest

from fl_lightning import Federated
from fl_lightning.parts import Exchange, LocalObjective, Proximal


class NeverCalled(LocalObjective):
    def loss(self, client: Any) -> float:
        return 1.0


class SetsAnAttribute(LocalObjective):
    def __init__(self, weight: float) -> None:
        self.weight = weight


class Compresses(Exchange):
    def compress(self, update: Any) -> Any:
        return update


class Empty(Exchange):
    pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": NeverCalled()}, "NeverCalled overrides no method of LocalObjective.*nothing calls `loss`"),
        ({"objective": SetsAnAttribute(1.0)}, "SetsAnAttribute overrides no method of LocalObjective"),
        ({"exchange": Compresses()}, "Compresses overrides no method of Exchange.*nothing calls `compress`"),
        ({"exchange": [Empty()]}, "Empty overrides no method of Exchange.*Define `download`, `upload` or `published`"),
    ],
)
def test_a_part_that_changes_nothing_is_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Federated(3, **options)


class Heavier(Proximal):
    pass


class Watches(Exchange):
    def values(self) -> dict[str, float]:
        return {"seen": 1.0}


class OfTwo(Heavier):
    def helper(self) -> None: ...


@pytest.mark.parametrize("options", [{"objective": OfTwo(0.1)}, {"objective": Heavier(0.1)}, {"exchange": Watches()}])
def test_parts_that_inherit_or_watch_are_not_idle(options: dict[str, Any]) -> None:
    algorithm = Federated(3, **options).algorithm
    assert options.items() <= {
        ("objective", algorithm.objective),
        *(("exchange", own) for own in algorithm.exchange.members),
    }
