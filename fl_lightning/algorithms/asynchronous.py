"""The base of asynchronous algorithms."""

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.options import choose_arrivals
from fl_lightning.parts.clock import Speeds, VirtualClock
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.parts.samplers.participation import Participation
from fl_lightning.parts.schedules.asynchronous import Asynchronous
from fl_lightning.settings import Count


@dataclass(eq=False, repr=False)
class AsynchronousCallback(AggregationCallback):
    """The base of asynchronous algorithms: a round is ``clients_per_round`` arrivals in virtual time.

    A float is a fraction of the clients (default 0.1), an int the number of results, which may exceed that of clients.

    The other arguments are those of :class:`AggregationCallback`, without ``sampler`` and ``participation``.

    Args:
        speeds: Work units per unit of virtual time, one per client (or one for all, or a function that draws them); a
            task is 100 units. For anything else give a ``clock``.
        clock: How long clients take and when they are available, instead of ``speeds``.
        concurrency: Most clients that train at once; all if ``None``. When one finishes, the next is drawn uniformly
            from those that do not train.
        lookahead: How many clients are trained together, ahead of their results' arrival; as many as arrive in a round,
            but at most 64, if ``None``. At most four times as many results are kept. The server's model does not
            depend on it; clients' personal values and privacy ledgers count a training when it is made.
        aggregation: Merges the buffered results, instead of the algorithm's own aggregation.

    Raises:
        ValueError: If an argument is out of its range, or ``speeds`` and ``clock`` are both given.
    """

    _: KW_ONLY
    speeds: Speeds | None = None
    clock: VirtualClock | None = None
    concurrency: Count | None = None
    lookahead: Count | None = None
    # Clients train whenever they are free, and the clock says who is there, so these are no arguments.
    sampler: ClientSampler | None = field(default=None, init=False)
    participation: Participation | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.speeds is not None and self.clock is not None:
            raise ValueError("Give `speeds` or a `clock`, not both: a VirtualClock has speeds already.")
        if self.clock is None:
            self.clock = VirtualClock(100 if self.speeds is None else self.speeds)
        super().__post_init__()

    def make_sampler(self, clients_per_round: int | float | None, sampler: ClientSampler | None) -> ClientSampler:
        """Return the number of results in a round as a sampler.

        Raises:
            ValueError: If a sampler is given.
        """
        return choose_arrivals(clients_per_round, sampler)

    def schedule(self, **how: Any) -> Asynchronous:
        """Return the schedule; ``how`` is for :class:`~fl_lightning.parts.Asynchronous`."""
        assert self.clock is not None
        return Asynchronous(self.clock, concurrency=self.concurrency, lookahead=self.lookahead, **how)
