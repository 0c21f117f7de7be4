"""Which executor trains a fit's clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from fl_lightning.algorithm import Algorithm
from fl_lightning.executors.sequential import SequentialExecutor, TrainClient
from fl_lightning.executors.vectorized import VectorizedExecutor
from fl_lightning.federation import Task

if TYPE_CHECKING:
    from fl_lightning.loop import FederatedLoop

ExecutorName = Literal["auto", "sequential", "vectorized"]


class Executor(Protocol):
    """Computes tasks."""

    def run(self, tasks: Sequence[Task], algorithm: Algorithm, train_client: TrainClient) -> None:
        """Train the clients of ``tasks`` and push each result to the algorithm."""


def make_executor(name: ExecutorName, loop: FederatedLoop) -> Executor:
    """Return the executor of a fit that begins."""
    if name == "vectorized":
        return VectorizedExecutor(loop, loop.callback.clients_at_once)
    return SequentialExecutor()
