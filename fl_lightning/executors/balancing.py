"""The distribution of a round's tasks over processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fl_lightning.parts.messages import Task


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
    load = [0.0] * num_ranks
    for index in sorted(range(len(tasks)), key=lambda i: (-costs[i], tasks[i].slot)):
        rank = owner(tasks[index], num_ranks)
        if rank is None:
            rank = min(range(num_ranks), key=lambda r: (load[r], r))
        shares[rank].append(tasks[index])
        load[rank] += costs[index]
    return [sorted(share, key=lambda task: task.slot) for share in shares]
