"""States of parts change from round to round: checkpoints hold them, and rounds that break off return to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from contracts.test_parts import PARTS
from helpers.algorithms import ALGORITHMS, Net, data
from lightning.pytorch.callbacks import Callback

from fl_lightning import AggregationCallback, Federated
from fl_lightning.parts.part import Part, walk
from fl_lightning.testing.fits import quiet_trainer

#: What parts keep for one round alone, or what says which round it is.
OF_A_ROUND = (
    "report sent_in_round rng round losses mean _repetitions _starts _new _unclipped _losses _answered _aggregations "
    "_sum _kept _candidates"
)
STATEFUL = (
    "FedBuff FedAvg-compressed-median FedAvg-private Scaffold FedDyn-all FedAdam RADFed-park HierFAVG Mime IFCA "
    "FedLoRA FedLoRA-stack MIFA QFedAvg"
)
SAMPLERS = ("ImportanceSampler, means", "PowerOfChoice", "ActiveSampler", "Oort", "TierSampler")


class Looks(Callback):
    """Notes what all parts hold at the end of each round."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.seen: list[list[dict[str, str]]] = []

    def on_round_end(self, trainer: Any, module: Any) -> None:
        self.parts = walk(*trainer.callbacks[0].algorithm.parts.values())
        self.seen.append([{name: repr(value) for name, value in vars(part).items()} for part in self.parts])


MAKERS: dict[str, Callable[[], AggregationCallback]] = {
    **{name: ALGORITHMS[name] for name in STATEFUL.split()},
    **{name: lambda options=PARTS[name][0]: Federated(**options()) for name in SAMPLERS},
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_a_part_changes_from_round_to_round_is_a_state(name: str) -> None:
    torch.manual_seed(0)
    looks = Looks()
    quiet_trainer(max_epochs=3, callbacks=[MAKERS[name](), looks]).fit(Net(), data())
    first, *_, last = looks.seen
    for part, before, after in zip(looks.parts, first, last, strict=True):
        changed = {attribute for attribute in after if before.get(attribute) != after[attribute]}
        assert changed - set(part.declared()) - set(OF_A_ROUND.split()) == set(), part
