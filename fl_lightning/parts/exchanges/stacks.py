"""Messages with low-rank adapters that clients fold into their frozen weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

from typing_extensions import override

from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.partial import AdapterRanks, pairs_of
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import Payload, Task


@dataclass(eq=False)
class StackMessages(Exchange):
    """Counts the stacks of all clients' adapters that the server sends in the place of adapters (FLoRA; eq. (99)).

    A client gets the stacks of all aggregations since it last answered, or the sums of their products, if these are
    fewer numbers. Before the first aggregation it gets the adapters. New adapters follow from the run's seed.

    Equations are numbered as in ``docs/references.md``.

    Args:
        ranks: Says how many ranks clients have; all of them if ``None``.

    Attributes:
        sizes: The numbers in the stack of each aggregation.
        known: How many aggregations each client knows that has answered.
    """

    varies_sizes = True

    ranks: AdapterRanks | None = None

    @override
    def setup(self, federation: Federation) -> None:
        self.sizes: list[int]
        self.add_state("sizes", [])
        self.known: dict[int, int]
        self.add_state("known", {})

    @override
    def on_round_start(self, round_index: int) -> None:
        self._answered: set[int] = set()
        self._aggregations = len(self.sizes)
        layout = self.federation.layout
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        #: The places of all adapters in the layout, and the numbers in the sums of their products.
        self._places: list[int] = []
        self._dense = 0
        for a, b in pairs_of(self.federation):
            self._places += [layout.names.index(a), layout.names.index(b)]
            self._dense += shapes[b][0] * shapes[a][1:].numel()

    @override
    def on_delivery(self, task: Task, received: object) -> None:
        """Note that the client has what the server has sent."""
        self._answered.add(task.client)

    @override
    def on_round_end(self) -> None:
        """Note what the round's clients know, on all processes."""
        known = dict(self.known)
        for share in self.federation.gather(self._answered):
            known.update(dict.fromkeys(sorted(share), self._aggregations))
        self.known = known

    @override
    def payload_down(self, payload: Payload, task: Task | None = None) -> Payload:
        """Return the message with the stacks that a client lacks."""
        if task is None or not self._aggregations:
            return payload
        held = None if self.ranks is None else self.ranks.held(task)
        adapters = self.federation.layout.payload(self._places, held).values
        stacks = sum(self.sizes[self.known.get(task.client, 0) : self._aggregations])
        return replace(payload, values=payload.values - adapters + min(stacks, self._dense))
