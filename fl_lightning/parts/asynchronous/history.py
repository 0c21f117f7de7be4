"""Staleness drawn from a history of models, without a clock."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fl_lightning.arguments import check_count, plain
from fl_lightning.parts.asynchronous.clock import VirtualClock
from fl_lightning.parts.asynchronous.flights import ARRIVAL, Flight
from fl_lightning.parts.asynchronous.schedule import Asynchronous
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.server import Server


class SampledStaleness(Asynchronous):
    """Staleness drawn at random instead of arising from a clock (Xie et al.'s simulation; eq. (26)).

    Each result comes from a client drawn uniformly and from a model drawn uniformly among the last ``history`` ones,
    including the present one. A model is added to the history at each result, whether or not the server moved.

    Equations are numbered as in ``docs/references.md``.

    Args:
        history: D, at least 1; staleness is 0 to D - 1.
        options: Further arguments of :class:`Asynchronous`, without ``clock``, ``concurrency``, ``stamp`` and
            ``wait_for_flush``.

    Raises:
        ValueError: If ``history`` is below 1, or another argument is out of its range or has no meaning here.
    """

    repeats_clients = True

    def __init__(self, history: int, **options: Any) -> None:
        check_count("history", history, hint="It is the number of models that a client's may be drawn from.")
        for name in ("clock", "concurrency", "stamp", "wait_for_flush"):
            if name in options:
                raise ValueError(
                    f"`{name}={options[name]!r}` has no effect with `history`, which draws clients and staleness "
                    "without a clock and counts results. Leave it out."
                )
        super().__init__(VirtualClock(), stamp="upload", **options)
        self.history = plain(history)
        self._models: dict[int, Tensor] = {}
        self._drawn: list[tuple[int, int, int]] = []  # which result, its client, its model's number

    def on_fit_start(self, federation: Federation) -> None:
        """Start with the first model alone."""
        super().on_fit_start(federation)
        self.simulation.outbox = []
        self._models, self._drawn = {0: federation.model}, []

    def enter(self, round_index: int, rng: np.random.Generator, arrivals: int) -> None:
        """Begin a round: draw its results' clients and models."""
        super().enter(round_index, rng, arrivals)
        self._drawn = []
        for number in range(self.uploads, self.uploads + arrivals):
            staleness = int(rng.integers(min(number + 1, self.history)))
            self._drawn.append((number, int(rng.integers(len(self._sizes))), number - staleness))

    def next_arrival(self, server: Server) -> int:
        """Return the slot of the next result, having begun those whose model is there."""
        self._models[self.uploads] = server.model
        self._models.pop(self.uploads - self.history, None)
        for number, client, model in self._drawn:
            if model <= self.uploads:
                # a result's place in the order stands for the time at which it is due
                flight = Flight(self._task(client), model, model, self.simulation.now, number + 1)
                self.simulation.send(flight, self._models[model], ARRIVAL)
        self._drawn = [drawn for drawn in self._drawn if drawn[2] > self.uploads]
        event = self.simulation.next_event()
        assert event is not None  # every result's model is there by its turn
        return event.slot

    def free(self, clients: Collection[int]) -> None:
        """Do nothing: the next clients are drawn."""

    def values(self) -> dict[str, float]:
        """Return nothing: there is no time."""
        return {}

    def _under_way(self) -> Callable[[], dict[str, Any]]:
        return partial(_with_models, super()._under_way(), self._models.copy())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the last models of a checkpoint."""
        super().load_state_dict(state)
        self._models = {number: model.to(self._model) for number, model in state["models"].items()}


def _with_models(rest: Callable[[], dict[str, Any]], models: dict[int, Tensor]) -> dict[str, Any]:
    return {**rest(), "models": models}
