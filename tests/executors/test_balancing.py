"""How tasks are shared out over processes."""

from __future__ import annotations

from fl_lightning.executors import balance
from fl_lightning.parts.messages import Task


def test_tasks_are_shared_out_by_cost_and_pinned_ones_stay_on_their_process() -> None:
    tasks = [Task(slot, 9 - slot, 1) for slot in range(5)]
    by_cost = balance(tasks, [9, 1, 4, 4, 1], 2, lambda task, num_ranks: None)
    pinned = balance(tasks, [9, 1, 4, 4, 1], 2, lambda task, num_ranks: task.slot % num_ranks)
    assert [[task.slot for task in share] for share in by_cost] == [[0, 4], [1, 2, 3]]
    assert [[task.slot for task in share] for share in pinned] == [[0, 2, 4], [1, 3]]
