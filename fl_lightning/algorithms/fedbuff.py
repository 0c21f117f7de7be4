"""FedBuff and buffered aggregation with dynamic weights: the server acts when some results have arrived."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

from fl_lightning.algorithms.asynchronous import AsynchronousCallback
from fl_lightning.parts.aggregations.stale import Division, DynamicWeightMean, Examples, StalenessWeightedDeltas
from fl_lightning.parts.aggregations.staleness import Staleness
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.objectives.proximal import proximal
from fl_lightning.parts.schedules.asynchronous import Stamp
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.parts.servers.mixing import Mixing
from fl_lightning.settings import Count, Natural, NotNegative, Positive, Scheduled, ScheduledWeight, Share


@dataclass(eq=False, repr=False)
class FedBuff(AsynchronousCallback):
    """FedBuff (Nguyen et al. 2022; eq. (27)-(29)): the server moves when ``buffer_size`` updates have arrived.

    ``w <- w + server_lr / K sum s(d) omega Delta``. With ``wait_for_flush=True`` it is the PAPAYA baseline of Gao et
    al. 2024, in which a client waits until its update is used.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AsynchronousCallback`.

    Args:
        buffer_size: K, the results in the buffer with which the server moves.
        clients_per_round: Results that arrive in a round.
        server_lr: eta_g, greater than 0; a function of the round makes a schedule. It excludes ``server``.
        server: Server optimizer, such as ``Momentum(0.9, lr=0.7)`` or ``Adaptive(...)``. Its aggregate is the model
            moved by the buffered updates.
        staleness: s, as for :class:`FedAsync`; ``"polynomial"`` is 1 / sqrt(1 + d).
        weighting: omega, by the size of the client's data: ``"uniform"``, ``"samples"``, ``"sqrt"`` or ``"log"``,
            relative to a client of mean size.
        divide_by: ``"count"`` (K), ``"weights"`` (the sum of ``s omega``) or ``"none"`` (FLSim).
        average_staleness: s is divided by its value at this staleness; FLSim's default is 1.
        wait_for_flush: Whether clients wait for the server's move after their result arrived.
        once_per_buffer: Whether a client's second result in a buffer is rejected.
        flush_rounds: Whether the server also moves at each round's end, with the results that the buffer holds.
        broadcast_threshold: The server sends its model to all clients when one move changes it by more than this share;
            see :class:`~fl_lightning.parts.Asynchronous`.
        stamp: What staleness counts, the server's moves (``"version"``) or arrivals (``"upload"``); see
            :class:`~fl_lightning.parts.Asynchronous`.
        mu: Weight of a proximal term of the clients, at least 0.
        max_staleness: Results with a larger staleness are rejected; ``None`` accepts all.
        aggregation: Another way to merge the buffered results. It excludes the arguments for weights.

    Raises:
        ValueError: If an argument is out of its range, or ``server_lr`` and ``server`` are both given; when the fit
            begins, if clients wait for a buffer that is larger than their number.

    Example:
        >>> algorithm = FedBuff(buffer_size=3, clients_per_round=6, speeds=[100, 90, 80, 30, 20, 10])
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    buffer_size: Count = 10
    clients_per_round: int | float | None = None
    _: KW_ONLY
    server_lr: Scheduled | None = None
    server: ServerOptimizer | None = None
    staleness: Staleness = "polynomial"
    weighting: Examples = "uniform"
    divide_by: Division = "count"
    average_staleness: NotNegative = 0.0
    wait_for_flush: bool = False
    once_per_buffer: bool = False
    flush_rounds: bool = False
    broadcast_threshold: Positive | None = None
    stamp: Stamp = "version"
    mu: ScheduledWeight = 0.0
    max_staleness: Natural | None = None
    aggregation_settings: ClassVar[Mapping[str, object]] = {
        "staleness": "polynomial",
        "weighting": "uniform",
        "divide_by": "count",
        "average_staleness": 0.0,
    }

    def __post_init__(self) -> None:
        if self.server is not None and self.server_lr is not None:
            raise ValueError(
                f"`server_lr={self.server_lr!r}` and `server` exclude each other: a server optimizer has its own "
                f"learning rate. Leave `server_lr` out, and give {type(self.server).__name__} its `lr`."
            )
        super().__post_init__()

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        schedule = self.schedule(
            buffer_size=self.buffer_size,
            max_staleness=self.max_staleness,
            stamp=self.stamp,
            wait_for_flush=self.wait_for_flush,
            once_per_buffer=self.once_per_buffer,
            flush_rounds=self.flush_rounds,
            broadcast_threshold=self.broadcast_threshold,
        )
        server_lr = 1.0 if self.server_lr is None else self.server_lr
        return self.compose(
            schedule=schedule,
            objective=proximal(self.mu),
            aggregation=StalenessWeightedDeltas(self.staleness, self.weighting, self.divide_by, self.average_staleness),
            server_optimizer=Mixing(server_lr) if self.server is None else self.server,
        )


@dataclass(eq=False, repr=False)
class DynamicWeightFedBuff(AsynchronousCallback):
    """Buffered models with dynamic weights (Gao et al. 2024, Algorithm 1; eq. (30)-(34)).

    When ``buffer_size`` models have arrived, the server mixes in their mean with weights ``beta_b`` in proportion to
    ``|D_b| exp(s_b / f_b)``: s_b falls with staleness, f_b counts the client's models in the buffer. The uploader gets
    the server's model at once. The same ``alpha`` is the exponent of staleness and the server's mixing weight.

    Equations are numbered as in ``docs/references.md``.

    The other arguments are those of :class:`AsynchronousCallback`.

    Args:
        buffer_size: B, the results in the buffer with which the server moves.
        clients_per_round: Results that arrive in a round.
        alpha: Exponent of staleness and the server's mixing weight, in (0, 1].
        mu: Weight of the clients' proximal term, at least 0.
        stamp: What staleness counts. ``"upload"``: the results since the client received its model, 0 if there were
            none. ``"upload-literal"``: the same, as Algorithm 1 is written, where the counter is sent before it is
            increased. ``"version"``: the server's moves.
        staleness_at: ``"receipt"`` counts staleness when a result arrives, ``"flush"`` when the buffer is full.
        frequency: ``"flush"`` gives all models of a client their final count f, ``"arrival"`` each the count so far.
        broadcast_threshold: As for :class:`FedBuff`.
        max_staleness: Results with a larger staleness are rejected; ``None`` accepts all.
        aggregation: Another way to merge the buffered results. It excludes the arguments for weights.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> algorithm = DynamicWeightFedBuff(clients_per_round=6, speeds=[100, 90, 80, 30, 20, 10])
        >>> trainer = L.Trainer(max_epochs=2, callbacks=[algorithm])
        >>> trainer.fit(module, datamodule=data)
    """

    buffer_size: Count = 3
    clients_per_round: int | float | None = None
    _: KW_ONLY
    alpha: Share = 0.5
    mu: ScheduledWeight = 0.01
    stamp: Stamp = "upload"
    staleness_at: Literal["receipt", "flush"] = "receipt"
    frequency: Literal["flush", "arrival"] = "flush"
    broadcast_threshold: Positive | None = None
    max_staleness: Natural | None = None
    aggregation_settings: ClassVar[Mapping[str, object]] = {"staleness_at": "receipt", "frequency": "flush"}

    def configure_algorithm(self) -> Algorithm:
        """Return the algorithm."""
        schedule = self.schedule(
            buffer_size=self.buffer_size,
            max_staleness=self.max_staleness,
            stamp=self.stamp,
            broadcast_threshold=self.broadcast_threshold,
        )
        mean = DynamicWeightMean(self.alpha, self.staleness_at, self.frequency)
        return self.compose(
            schedule=schedule, objective=proximal(self.mu), aggregation=mean, server_optimizer=Mixing(self.alpha)
        )
