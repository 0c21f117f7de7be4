"""Virtual time of rounds that clients begin together."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import lightning.pytorch as pl

from fl_lightning.diagnostics.observer import RoundObserver, aggregation_of, loop_of
from fl_lightning.parts.clock import VirtualClock
from fl_lightning.settings import check_arguments


class VirtualTime(RoundObserver):
    """Logs ``fed/virtual_time`` of a synchronous algorithm: a round takes as long as its slowest client.

    Asynchronous algorithms log it themselves, so that curves of both lie on one axis; give both the same clock.
    ``fed/utilization`` is the share of their time in which clients work, all clients counted. A client that does part
    of the local work takes that part of the time, its delay included, but its messages are whole; clients that drop
    out are not waited for, and take nothing of the links that others share.

    All clients of a round get the server's model when it begins. Each answers as soon as it has done its work.

    Args:
        clock: How long each client takes. Its ``dropout`` and ``online`` have no effect here: see ``participation`` of
            the aggregation callback.

    Attributes:
        now: Virtual time so far.

    Raises:
        TypeError: If ``clock`` is not a clock.
        ValueError: When the fit begins, if there is not one speed for each client, or the algorithm is asynchronous.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        check_arguments(self)
        self.reset()

    def reset(self) -> None:
        """Start at time 0."""
        self.now = 0.0
        self._ticks = 0
        self._worked = 0
        self._tasks = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Learn the clients' durations."""
        callback = aggregation_of(trainer, self)
        if callback.algorithm.schedule.has_virtual_time:
            raise ValueError(
                f"{type(callback).__name__} logs its virtual time as `fed/virtual_time`, too. Leave VirtualTime out."
            )
        self.clock.setup(callback.algorithm.federation, together=True)

    def on_round_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Add the round's time."""
        callback = aggregation_of(trainer, self)
        full = callback.settings.full_work
        tasks = []
        for task in callback.algorithm.tasks:
            share = Fraction(task.work or full, full)
            tasks.append((task.client, self._tasks, share))
            self._tasks += 1
        durations = self.clock.durations_together(tasks)
        self._ticks += max(durations, default=0)
        self._worked += sum(durations)
        self.now = self.clock.time(self._ticks)
        clients = loop_of(trainer).data.num_clients
        self.values = {"fed/virtual_time": self.now}
        if self._ticks:
            self.values["fed/utilization"] = self._worked / (clients * self._ticks)

    def state_dict(self) -> dict[str, Any]:
        """Return the time so far."""
        return {"now": self.now, "ticks": self._ticks, "worked": self._worked, "tasks": self._tasks}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the time of a checkpoint."""
        self.now = state_dict["now"]
        self._ticks = state_dict["ticks"]
        self._worked = state_dict["worked"]
        self._tasks = state_dict["tasks"]
