"""Compares between processes what parts of a user's own make of it: states, the round's clients, models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor

from fl_lightning.parts.federation import Federation
from fl_lightning.parts.guards.fingerprints import fingerprint
from fl_lightning.parts.guards.own_parts import of_users
from fl_lightning.parts.part import Part

#: So many rounds of a fit are compared.
_COMPARED_ROUNDS = 10
_MUST = (
    "must use nothing that only one process knows, such as an attribute that its own clients changed, or a random "
    "generator of its own that is not seeded by `self.federation.seed`."
)


class SameEverywhere:
    """Raises ``RuntimeError`` in the first rounds of a fit where processes differ; nothing is compared without a cause.

    A cause is a part of a user's own; those of the library are the same on all processes.
    """

    def __init__(self) -> None:
        self._rounds = 0

    def on_fit_start(self) -> None:
        """Begin anew."""
        self._rounds = 0

    def check_cohort(self, sampler: Part, drawn: np.ndarray, federation: Federation) -> None:
        """Compare the clients that a sampler drew for a round; call it on all processes."""
        if sampler.is_of_library or self._rounds >= _COMPARED_ROUNDS or federation.num_ranks == 1:
            return
        if number := _different(federation, drawn.tolist()):
            raise RuntimeError(
                f"`{type(sampler).__name__}.draw` drew other clients on each of the {number} processes. All of them "
                "must know the round's clients. Draw by the generator that is given, `rng`, or by the global ones, "
                "which are seeded for it; make nothing depend on the process."
            )

    def check_vectors(self, parts: Sequence[Part], federation: Federation) -> None:
        """Compare which parts keep vectors of clients, before the round's end joins them; call it on all processes."""
        own = of_users(parts)
        if not own or federation.num_ranks == 1:
            return
        if number := _different(federation, [[type(part).__name__, *sorted(part.client_states)] for part in own]):
            raise RuntimeError(
                f"The {number} processes do not have the same `ClientStates` in the attributes of "
                f"{' and '.join(type(part).__name__ for part in own)}. Each process trains some of the clients, so one "
                "that is made for single clients is not on all processes. Make each `ClientStates` in `on_fit_start`."
            )

    def on_round_end(
        self, parts: Sequence[Part], model: Tensor, published: Tensor | None, federation: Federation
    ) -> None:
        """Compare the states of parts, the server's model and the published one; call it on all processes.

        Args:
            parts: All parts of the algorithm.
            model: The server's model at the round's end.
            published: The model that the user sees.
            federation: The run.
        """
        self._rounds += 1
        own = of_users(parts)
        if not own or self._rounds > _COMPARED_ROUNDS or federation.num_ranks == 1:
            return
        for part in own:
            if part.defines_state:
                _check_state(part, federation)
        if number := _different(federation, fingerprint(model)):
            raise RuntimeError(
                f"The server's model differs between the {number} processes, each of which trains some of the clients. "
                f"Look at {' and '.join(type(part).__name__ for part in own)}: an aggregation with "
                "`reduces_over_ranks = True` must return sums over all processes, by `self.federation.sum_over_ranks`; "
                f"`merge`, `merged` and `step` {_MUST}"
            )
        if number := _different(federation, fingerprint(published)):
            raise RuntimeError(
                f"The published model, which is validated and checkpointed, differs between the {number} processes. "
                f"Look at {' and '.join(type(part).__name__ for part in own)}: `published` of an exchange and "
                f"`publish` of a schedule {_MUST}"
            )


def _check_state(part: Part, federation: Federation) -> None:
    state = None
    with suppress(AttributeError):  # what the server's first move makes is not there yet
        state = fingerprint(part.state_dict())
    if number := _different(federation, state):
        raise RuntimeError(
            f"The state of {type(part).__name__} differs between the {number} processes, each of which trains "
            "some of the clients. A client may train elsewhere in the next round, and a checkpoint holds the state of "
            "one process. Keep what belongs to clients in a `ClientStates`, whose clients stay on their processes; "
            "join counts and sums in `on_round_end` by `self.federation.gather`; or train in one process."
        )


def _different(federation: Federation, mine: Any) -> int:
    """Return the number of processes if a value is not the same on all of them; otherwise 0."""
    everyone = federation.gather(mine)
    return len(everyone) if any(each != everyone[0] for each in everyone) else 0
