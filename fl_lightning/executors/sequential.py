"""One client after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import ClientResult, Task

TrainClient = Callable[[Task, Tensor], ClientResult]


class SequentialExecutor:
    """Trains one client after the other on one module: the reference for all executors."""

    def run(self, tasks: Iterable[Task], algorithm: Algorithm, train_client: TrainClient) -> None:
        """Train the clients of ``tasks`` and push each result to the algorithm.

        Args:
            tasks: This process's tasks.
            algorithm: Gives the start models and takes the results.
            train_client: Trains one client from a start model.
        """
        for task in tasks:
            algorithm.receive(train_client(task, algorithm.start(task)))
