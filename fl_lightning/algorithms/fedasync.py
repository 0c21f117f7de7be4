"""FedAsync: the server acts on every result."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from fl_lightning.algorithms.asynchronous import AsynchronousCallback
from fl_lightning.parts.aggregations.stale import StalenessMixing
from fl_lightning.parts.aggregations.staleness import Staleness
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.proximal import proximal
from fl_lightning.parts.schedules.asynchronous import Asynchronous
from fl_lightning.parts.schedules.sampled_staleness import SampledStaleness
from fl_lightning.settings import Count, Natural, ScheduledShare, ScheduledWeight


@dataclass(eq=False, repr=False)
class FedAsync(AsynchronousCallback):
    """FedAsync (Xie et al. 2019; eq. (23)-(25)): the server mixes each result in as it arrives.

    ``x <- (1 - a) x + a x_new`` with ``a = mixing s(d)``; d is 0 for a result of the server's present model. Clients
    minimise ``F_k(w) + rho/2 |w - w'|^2``, w' the received model.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AsynchronousCallback`.

    Args:
        clients_per_round: Results that arrive in a round.
        mixing: alpha in (0, 1]; a function of the round makes a schedule.
        staleness: s: ``"constant"`` 1, ``"polynomial"`` (1 + d)^-0.5, ``"hinge"`` 1 up to d = 4, then
            1 / (10 (d - 4) + 1), ``"exponential"`` exp(-d / 2); or a function of d, such as
            ``fl_lightning.parts.polynomial(a=0.3)``.
        rho: Weight of the proximal term, at least 0. (The authors' code takes ``rho`` times the learning rate.)
        max_staleness: Results with a larger d are rejected; ``None`` accepts all.
        history: D of the authors' simulation (eq. (26)), which needs no clock. Each result comes from a client drawn
            uniformly and starts from a model drawn uniformly among the last D, so that d is 0 to D - 1.
        aggregation: Another way to merge each result. It excludes ``mixing`` and ``staleness``.

    Raises:
        ValueError: If an argument is out of its range, or ``history`` is combined with a clock; at the start or in a
            round, if ``mixing s(d)`` is above 1.

    Example:
        >>> algorithm = FedAsync(clients_per_round=4, speeds=[100, 90, 80, 30, 20, 10])
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    clients_per_round: int | float | None = None
    _: KW_ONLY
    mixing: ScheduledShare = 0.6
    staleness: Staleness = "polynomial"
    rho: ScheduledWeight = 0.0
    max_staleness: Natural | None = None
    history: Count | None = None
    aggregation_settings: ClassVar[Mapping[str, object]] = {"mixing": 0.6, "staleness": "polynomial"}

    def __post_init__(self) -> None:
        timed = [name for name in ("speeds", "clock", "concurrency") if getattr(self, name) is not None]
        if self.history is not None and timed:
            raise ValueError(
                f"`history` draws staleness at random and has no clock, so it cannot be combined with `{timed[0]}`. "
                "Give only one of them."
            )
        super().__post_init__()

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.compose(
            schedule=self.schedule(max_staleness=self.max_staleness),
            objective=proximal(self.rho),
            aggregation=StalenessMixing(self.mixing, self.staleness),
        )

    def schedule(self, **how: Any) -> Asynchronous:
        """Return the schedule of a clock, or of staleness drawn from a history."""
        if self.history is None:
            return super().schedule(**how)
        return SampledStaleness(self.history, lookahead=self.lookahead, **how)
