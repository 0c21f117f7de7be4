"""Checks of the models that clients receive, and of the results that executors hand in for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

from torch import Tensor

from fl_lightning.parts.federation import ClientResult, Task
from fl_lightning.parts.guards.changes_in_place import version_of
from fl_lightning.parts.guards.contracts import is_finite
from fl_lightning.representation import counted
from fl_lightning.sentences import joined


class ReceivedModels:
    """Notices what parts or hooks make of a model between its way to a client and the client's result."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[Tensor, int]] = {}

    def add(self, task: Task, model: Tensor) -> None:
        """Note that a client received a model, shape ``(size,)``."""
        self._models[task.slot] = model, version_of(model)

    def check(self, task: Task, *users: Sequence[str]) -> None:
        """Raise ``RuntimeError`` for a client whose model was changed in place before its result was there.

        Args:
            task: The client's task.
            users: Methods that saw the model.
        """
        model, version = self._models.pop(task.slot, (None, 0))
        if model is None or version_of(model) == version:
            return
        raise RuntimeError(
            f"The model that client {task.client} received was changed in place before its result was there. "
            f"{' or '.join([*chain(*users), 'a hook'])} did so. Other clients and the result use this tensor, too. "
            "Work on a copy, such as `client.start.clone()`, and return a new tensor from each `download`."
        )

    def forget(self) -> None:
        """Forget the models of a round that broke off."""
        self._models = {}


def check_start(result: ClientResult, schedule: Any, server: Any, exchanges: Sequence[str]) -> None:
    """Raise ``FloatingPointError`` for a client that received NaN or infinite parameters from a finite server.

    Args:
        result: The client's.
        schedule: The algorithm's schedule, from which the model came.
        server: The server.
        exchanges: The methods through which the model went then.
    """
    n = len(result.parameters)
    if is_finite(result.start[:n]) or not is_finite(server.model[:n]):
        return
    by_schedule = not is_finite(schedule.start(result.task.slot, server)[:n])
    makers = [f"`{type(schedule).__name__}.start`"] if by_schedule else exchanges
    raise FloatingPointError(
        f"Client {result.task.client} received NaN or infinite parameters, although the server's are finite. Check the "
        f"arithmetic of {' and '.join(makers) or 'the exchanges'}. The round is discarded."
    )


def note_missing(error: Exception, round_index: int, left_out: Sequence[int], dropped: int) -> None:
    """Add to an error at a round's end which of its clients are missing.

    Args:
        error: What was raised.
        round_index: The round, from 0.
        left_out: Clients that handed back NaN or infinite values.
        dropped: How many clients dropped out.
    """
    said = []
    if left_out:
        clients = f"client{'s' * (len(left_out) > 1)} {joined([f'{client}' for client in left_out], most=5)}"
        said.append(
            f"{clients} handed back NaN or infinite values and {'was' if len(left_out) == 1 else 'were'} left out"
        )
    if dropped:
        said.append(f"{counted(dropped, 'client')} dropped out")
    if said:
        error.add_note(f"In round {round_index + 1}, {', and '.join(said)}.")


def refuse_result(task: Task) -> NoReturn:
    """Raise ``FloatingPointError`` for a client that handed back invalid values."""
    samples = counted(task.num_samples, "sample")
    raise FloatingPointError(
        f"Client {task.client} ({samples}) handed back NaN or infinite values, or has such a loss. "
        'Lower the learning rate or clip gradients, or give `invalid_updates="skip"` to leave such clients out.'
    )


def check_due(task: Task, due: Mapping[int, Task], *, is_there: bool) -> None:
    """Raise ``RuntimeError`` for a result that the executor must not hand in.

    Args:
        task: The client's task.
        due: The tasks that executors were given, by slot.
        is_there: Whether there is a result for the slot already.
    """
    is_other = due.get(task.slot) != task
    if is_other or is_there:
        what = "a result of another round" if is_other else "two results"
        raise RuntimeError(
            f"The executor handed in {what} for client {task.client}, in slot {task.slot}. It must call "
            "`algorithm.receive` once for each of the tasks that it was given."
        )


def refuse_missing(tasks: Collection[Task], there: Collection[int]) -> None:
    """Raise ``RuntimeError`` if results of tasks are not among those that are there, by slot."""
    missing = [task for task in tasks if task.slot not in there]
    if missing:
        raise RuntimeError(
            f"The executor handed in no result for {len(missing)} of {len(tasks)} tasks of the round. It must call "
            "`algorithm.receive` once for each of the tasks that it was given."
        )
