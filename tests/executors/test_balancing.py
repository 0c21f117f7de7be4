"""How tasks are shared out over processes."""

from __future__ import annotations

from fl_lightning.executors import balance
from fl_lightning.parts.messages import Task


def test_tasks_are_shared_out_by_cost() -> None:
    tasks = [Task(slot, 9 - slot, 1) for slot in range(5)]
    shares = balance(tasks, [9, 1, 4, 4, 1], 2, lambda task, num_ranks: None)
    assert [[task.slot for task in share] for share in shares] == [[0, 4], [1, 2, 3]]


def test_pinned_tasks_stay_on_their_process() -> None:
    tasks = [Task(slot, 9 - slot, 1) for slot in range(5)]
    shares = balance(tasks, [9, 1, 4, 4, 1], 2, lambda task, num_ranks: task.slot % num_ranks)
    assert [[task.slot for task in share] for share in shares] == [[0, 2, 4], [1, 3]]
