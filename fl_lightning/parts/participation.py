"""Clients that cannot be reached, drop out, or do part of the work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from fl_lightning.arguments import check_bool, check_fraction, check_interval, plain, to_indices
from fl_lightning.representation import ShowsArguments
from fl_lightning.super_calls import is_of_library

Availability = float | Callable[[int], Sequence[int] | np.ndarray]


class Participation(ShowsArguments):
    """Which of a round's clients can be reached, report, and do all of their work.

    Args:
        available: Which clients can be reached: a float in (0, 1] is each client's chance in each round, a function
            gives the clients of a round (counted from 0). All if ``None``.
        dropout: Chance that a client that was drawn does not report. It receives a model, and its work is lost.
        stragglers: Fraction of a round's clients that do only part of the local work: a whole number of epochs (or
            steps) drawn uniformly between 1 and one less than all (Li et al. 2020).
        drop_stragglers: Whether the work of stragglers is lost, as for FedAvg in Li et al.'s comparison.

    Raises:
        TypeError: In a round, if ``available`` does not give whole numbers (but, for example, a mask of booleans).
        ValueError: If an argument is out of its range; in a round, if ``available`` names a client that does not
            exist, or stragglers have no part of the work to do.
    """

    def __init__(
        self,
        *,
        available: Availability | None = None,
        dropout: float = 0.0,
        stragglers: float = 0.0,
        drop_stragglers: bool = False,
    ) -> None:
        if available is not None and not callable(available):
            hint = "It is each client's chance to be reached; for certain clients give a function of the round."
            check_interval("available", available, hint, within="(0, 1]")
        check_fraction("dropout", dropout, "It is the chance that a client does not report.")
        check_interval("stragglers", stragglers, "It is the fraction of clients.", within="[0, 1]")
        check_bool("drop_stragglers", drop_stragglers)
        self.available = plain(available)
        self.dropout = plain(dropout)
        self.stragglers = plain(stragglers)
        self.drop_stragglers = drop_stragglers

    @property
    def may_draw(self) -> bool:
        """Whether code of a user's own is called, which may draw from the global generators."""
        return callable(self.available) or not is_of_library(type(self))

    def reachable(self, round_index: int, num_clients: int, rng: np.random.Generator) -> np.ndarray | None:
        """Return the clients that can be reached in a round, sorted; ``None`` for all."""
        if self.available is None:
            return None
        if not callable(self.available):
            return np.flatnonzero(rng.random(num_clients) < self.available)
        clients = np.unique(to_indices(f"available({round_index})", self.available(round_index)))
        if len(clients) and not 0 <= clients[0] <= clients[-1] < num_clients:
            raise ValueError(
                f"`available({round_index})` must give clients from 0 to {num_clients - 1}, got "
                f"{int(clients[0])} to {int(clients[-1])}. Clients are numbered by position."
            )
        return clients

    def outcome(
        self, drawn: np.ndarray, full_work: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, list[int | None]]:
        """Return the clients that report and the work of each (``None``: all).

        Args:
            drawn: The round's clients, in random order.
            full_work: Local epochs (or steps) of a client that does all.
            rng: The round's generator.
        """
        work: list[int | None] = [None] * len(drawn)
        full = round(len(drawn) * (1 - self.stragglers))
        if full < len(drawn) and not self.drop_stragglers:
            if full_work < 2:
                raise ValueError(
                    f"`stragglers={self.stragglers}` need `local_epochs` (or `local_steps`) of at least 2 to do part "
                    f"of them, got {full_work}. Give more, or `drop_stragglers=True`."
                )
            work[full:] = [int(part) for part in rng.integers(1, full_work, size=len(drawn) - full)]
        reports = rng.random(len(drawn)) >= self.dropout
        if self.drop_stragglers:
            reports[full:] = False
        return drawn[reports], [part for part, reported in zip(work, reports, strict=True) if reported]
