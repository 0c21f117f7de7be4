"""One client after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import Executor
from fl_lightning.executors.channels_last import channels_last
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.settings import check


class SequentialExecutor(Executor):
    """Trains one client after the other on one module: the reference for all executors.

    Args:
        channels_last: Whether convolutions train with channels last in memory: other roundings, often faster on CPUs.
    """

    def __init__(self, channels_last: bool = False) -> None:
        check("`channels_last`", channels_last, bool)
        self.channels_last = channels_last

    def describe(self) -> str:
        """Return how clients train."""
        if self.channels_last:
            return "one after the other, with channels last in memory"
        return "one after the other"

    def run(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Iterator[ClientResult]:
        """Train the clients of the tasks and yield their results."""
        layout = channels_last(training.vector.module) if self.channels_last else nullcontext()
        with layout, training.batches.made_ahead(tasks):
            for task in tasks:
                yield training.train(task, algorithm.received(task))
