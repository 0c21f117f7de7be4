"""The base of executors, and the distribution of a round's tasks over processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fl_lightning.clients.training import LocalTraining
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.messages import ClientResult, Task, Upload
from fl_lightning.signatures import ShowsArguments


class Executor(ShowsArguments, ABC):
    """Computes the tasks of a round on one process. A subclass defines :meth:`run`."""

    def reset(self) -> None:
        """Forget what earlier runs found; called before :meth:`on_fit_start` if the first round of all comes next."""

    def on_fit_start(self, training: LocalTraining, algorithm: Algorithm) -> None:
        """Called when a fit begins, after a checkpoint's state was loaded."""

    @abstractmethod
    def run(
        self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm
    ) -> Iterable[ClientResult | Upload]:
        """Train the clients of the tasks and yield their results.

        ``yield training.train(task, algorithm.received(task))`` does so for one task. Exchanges come after it. A client
        that is another machine has its exchanges there: yield an :class:`Upload` of it, and nothing of its further
        trainings. A task without an answer counts as a client that has dropped out.

        Args:
            tasks: This process's tasks.
            training: Trains clients.
            algorithm: Gives the models from which tasks start.
        """

    def score(self, tasks: Sequence[Task], training: LocalTraining, algorithm: Algorithm) -> Mapping[int, float]:
        """Return the scores of clients before a draw, each at the model that it receives; called on all processes.

        Args:
            tasks: A task of each client.
            training: Scores clients.
            algorithm: Its sampler says what a score is.

        Returns:
            A score of each client; NaN for one that does not answer.
        """
        return training.score(tasks)

    def describe(self) -> str:
        """Return how clients train, and why, after "Clients train"; nothing while that is not known."""
        return f"by {type(self).__name__}"

    def on_fit_end(self) -> None:
        """Called when a fit ends, also by an exception."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: numbers, texts, lists and dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a checkpoint, before :meth:`on_fit_start`."""


def balance(
    tasks: Sequence[Task], costs: Sequence[float], num_ranks: int, owner: Callable[[Task, int], int | None]
) -> list[list[Task]]:
    """Divide the tasks of a round among processes.

    Args:
        tasks: The tasks, one a slot.
        costs: Predicted cost of each task, such as its number of steps.
        num_ranks: Number of processes.
        owner: Returns the process to which a task belongs because of what is kept there, out of ``num_ranks``. Where
            it is ``None``, the largest remaining task goes to the process with the least work.

    Returns:
        The tasks of each process, each list in the order of slots.
    """
    shares: list[list[Task]] = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    pairs = sorted(zip(costs, tasks, strict=True), key=lambda pair: -pair[0])
    for cost, task in pairs:
        rank = owner(task, num_ranks)
        if rank is None:
            rank = loads.index(min(loads))
        shares[rank].append(task)
        loads[rank] += cost
    return [sorted(share, key=lambda task: task.slot) for share in shares]
