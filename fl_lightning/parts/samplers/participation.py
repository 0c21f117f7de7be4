"""Which clients can be reached, report, and do all of their work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from fl_lightning.settings import Fraction, Share, check_fields

Availability = Share | Callable[[int], Any]


@dataclass(eq=False, kw_only=True)
class Participation:
    """Which of a round's clients can be reached, report, and do all of their work.

    Args:
        available: Which clients can be reached: a float in (0, 1] is each client's chance in each round, a function
            gives the clients of a round (counted from 0). All if ``None``.
        dropout: Chance that a client that was drawn does not report. It receives a model, and its work is lost.
        stragglers: Fraction of a round's clients that do only part of the local work: a whole number of epochs (or
            steps) drawn uniformly between 1 and one less than all (Li et al. 2020).
        drop_stragglers: Whether the work of stragglers is lost, as for FedAvg in Li et al.'s comparison.

    Raises:
        ValueError: If an argument is out of its range; in a round, if ``available`` names a client that does not
            exist, or stragglers have no part of the work to do.

    Example:
        >>> algorithm = FedAvg(2, participation=Participation(available=0.9, dropout=0.1))
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    available: Availability | None = None
    dropout: Fraction = 0.0
    stragglers: Annotated[float, "[0, 1]"] = 0.0
    drop_stragglers: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def reachable(self, round_index: int, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Return the clients that can be reached in a round, sorted."""
        if self.available is None:
            return np.arange(num_clients)
        if not callable(self.available):
            return np.flatnonzero(rng.random(num_clients) < self.available)
        clients = np.unique(np.asarray(self.available(round_index)))
        if not len(clients):
            return clients.astype(np.int64)
        are_places = clients.dtype.kind in "iu"
        if not are_places or clients[0] < 0 or clients[-1] >= num_clients:
            raise ValueError(
                f"`available({round_index})` must give clients from 0 to {num_clients - 1}, no mask, got {clients[:8]}."
            )
        return clients.astype(np.int64)

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
        # Clients come in random order, so the last ones are the stragglers.
        num_full = round(len(drawn) * (1 - self.stragglers))
        num_stragglers = len(drawn) - num_full
        if num_stragglers and not self.drop_stragglers:
            if full_work < 2:
                raise ValueError(
                    f"`stragglers` need `local_epochs` (or `local_steps`) of at least 2 to do part of, got {full_work}."
                )
            parts = rng.integers(1, full_work, size=num_stragglers)
            work[num_full:] = parts.tolist()
        reports = rng.random(len(drawn)) >= self.dropout
        if self.drop_stragglers:
            reports[num_full:] = False
        work_of_reporting = [part for part, has_reported in zip(work, reports, strict=True) if has_reported]
        return drawn[reports], work_of_reporting
