"""One client after the other."""

from __future__ import annotations

from collections.abc import Sequence

from fl_lightning.clients.training import LocalTraining
from fl_lightning.executors.base import Executor
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Task


class SequentialExecutor(Executor):
    """Trains one client after the other on one module: the reference for all executors."""

    def run(self, tasks: Sequence[Task], clients: LocalTraining, algorithm: Algorithm) -> None:
        """Train the clients of the tasks and give each result to the algorithm."""
        for task in tasks:
            algorithm.receive(clients.train(task, algorithm.start(task)))
