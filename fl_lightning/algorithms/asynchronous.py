"""The base of asynchronous algorithms."""

from __future__ import annotations

from typing import Any

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.asynchronous.algorithm import AsynchronousAlgorithm
from fl_lightning.parts.asynchronous.arrivals import ArrivalRule
from fl_lightning.parts.asynchronous.clock import Speeds, VirtualClock
from fl_lightning.parts.asynchronous.schedule import Asynchronous, Stamp
from fl_lightning.parts.objectives import LocalObjective
from fl_lightning.parts.sampling import Arrivals
from fl_lightning.parts.server_optimizers import ServerOptimizer


class AsynchronousCallback(AggregationCallback):
    """The base of asynchronous algorithms: a round is ``clients_per_round`` arrivals in virtual time.

    Args:
        clients_per_round: Results that arrive in a round: a float is a fraction of the clients, an int their number,
            which may be larger than that of the clients.
        speeds: Work units per unit of virtual time, one per client (or one for all, or a function that draws them); a
            task is 100 units. For anything else give a ``clock``.
        clock: How long clients take and when they are there, in the place of ``speeds``.
        concurrency: Most clients that train at once; all if ``None``. When one finishes, the next is drawn uniformly
            from those that do not train.
        max_staleness: Results that are staler are rejected; ``None`` takes all.
        lookahead: How many clients are trained together, ahead of their results' arrival; as many as arrive in a round,
            but at most 64, if ``None``. At most four times as many results are kept. Weights do not depend on it.
        kwargs: The other arguments of :class:`AggregationCallback`, without ``sampler`` and ``participation``.

    Raises:
        ValueError: If an argument is out of its range, or ``speeds`` and ``clock`` are both given.
    """

    def __init__(
        self,
        clients_per_round: int | float = 0.1,
        *,
        speeds: Speeds | None = None,
        clock: VirtualClock | None = None,
        concurrency: int | None = None,
        max_staleness: int | None = None,
        lookahead: int | None = None,
        **kwargs: Any,
    ) -> None:
        if speeds is not None and clock is not None:
            raise ValueError("Give `speeds` or a `clock`, not both: a VirtualClock has its own speeds.")
        self.clock = clock or VirtualClock(100 if speeds is None else speeds)
        self.max_staleness = max_staleness
        self._dispatch: dict[str, Any] = {"concurrency": concurrency, "lookahead": lookahead}
        if kwargs.get("sampler") is not None:
            raise ValueError(
                f"`sampler` cannot be a {type(kwargs['sampler']).__name__}: clients train whenever they are free. Give "
                "`clients_per_round`, the number of results in a round, and `concurrency`."
            )
        super().__init__(clients_per_round, **{**kwargs, "sampler": Arrivals(clients_per_round)})

    def schedule(self, **how: Any) -> Asynchronous:
        """Return the schedule; ``how`` is for :class:`~fl_lightning.parts.asynchronous.Asynchronous`."""
        return Asynchronous(self.clock, **self._dispatch, **how)

    def compose(
        self,
        rule: ArrivalRule,
        server: ServerOptimizer,
        objective: LocalObjective | None,
        *,
        stamp: Stamp = "version",
        wait_for_flush: bool = False,
        flush_rounds: bool = False,
        **options: Any,
    ) -> Algorithm:
        """Return the algorithm of these parts."""
        how: dict[str, Any] = {"stamp": stamp, "wait_for_flush": wait_for_flush, "flush_rounds": flush_rounds}
        return AsynchronousAlgorithm(
            sampler=self.sampler,
            schedule=self.schedule(**how),
            rule=rule,
            server=server,
            objective=objective,
            max_staleness=self.max_staleness,
            **options,
        )
