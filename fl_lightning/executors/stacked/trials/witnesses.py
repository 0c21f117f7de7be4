"""The choice of the clients that a trial trains both ways."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fl_lightning.parts.messages import Task

WITNESSES = 2  # clients that are trained both ways
_STEPS = 4  # that show whether a later step depends on an earlier one


def first_witnesses(tasks: Sequence[Task], steps: Callable[[Task], Sequence[int]]) -> list[int]:
    """Return the places of the first clients of the first round that make several steps, or of its first ones at all.

    Args:
        tasks: The clients' tasks.
        steps: Returns the batches of each optimizer step of a client.
    """
    numbers = {place: len(steps(task)) for place, task in enumerate(tasks) if task.round == tasks[0].round}
    several = min(_STEPS, max(numbers.values()))
    places = [place for place, number in numbers.items() if number >= several][:WITNESSES]
    return places if len(places) == WITNESSES else sorted({*places, *list(numbers)[:WITNESSES]})


def with_neighbour(tasks: Sequence[Task], place: int) -> list[int]:
    """Return the places of a client and of its neighbour in the same round, if there is one."""
    like = [other for other, task in enumerate(tasks) if task.round == tasks[place].round and other != place]
    other = min(like, key=lambda other: (other < place, abs(other - place)), default=place)
    return sorted({place, other})
