"""Parts of a user's own, watched for what they hand from one client to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fl_lightning._lightning.cannot_vectorize import CannotVectorize
from fl_lightning.executors.stacked.trials.order import COUNTED, Readable, names_read
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.federation import Task
from fl_lightning.parts.guards.own_parts import of_users
from fl_lightning.surroundings import is_users

#: Called when a client starts, and when it has been trained.
_AT_START = ("start", "download", "correction")
_AT_END = ("score", "loss_of", "on_client_end", "upload", "receive", "update")


class PartTrial:
    """Looks at what parts change in methods that are called when clients start, and in those when they end.

    In a stack all clients start before the first of them ends. So none of these methods may read what another client's
    call of the others has left.

    Args:
        algorithm: The algorithm.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        own = of_users(algorithm.all_parts)
        starts, ends = _methods(own, _AT_START), _methods(own, _AT_END)
        #: Whether there is anything to look at.
        self.looks = bool(starts and ends)
        if self.looks:
            self._at_start, self._at_end = Readable(own, names_read(starts)), Readable(own, names_read(ends))
            self._counted = sorted(((self._at_start.names or set()) | (self._at_end.names or set())) & COUNTED)
        self._others: list[int] = []  # clients that have started before
        self._found: str | None = None

    @contextmanager
    def starting(self, task: Task, *, notices: bool = False) -> Iterator[None]:
        """Look at what is changed inside this block, in which a client starts.

        What the first one changes may be what all clients of a round have in common.

        Args:
            task: The client's task.
            notices: Whether to notice which dictionaries are read for more than the client's own entry.
        """
        if not self.looks:
            yield
            return
        if self._others:
            self._at_end.look()
        if notices:
            with self._at_start.noticing(task.client):
                yield
        else:
            yield
        if self._others and (name := self._at_end.changed(task.client, fills=False)):
            self._find(f"changes `{name}` when a client starts, which it may read when another one ends")
        self._others.append(task.client)
        self._at_start.look()

    def ended(self) -> None:
        """Look at what the clients have changed that have ended, before another one does or starts."""
        if self.looks and (name := self._at_start.changed(*self._others)):
            self._find(f"changes `{name}` when a client ends, which it may read when the next one starts")

    def _find(self, change: str) -> None:
        self._found = self._found or f"a part of the algorithm {change}"

    def check(self) -> None:
        """Raise ``CannotVectorize`` if clients cannot start together."""
        if self.looks and self._counted:
            raise CannotVectorize(f"a part of the algorithm reads `{self._counted[0]}`, which all clients share")
        if self._found is not None:
            raise CannotVectorize(self._found)

    def check_stack(self) -> None:
        """Raise ``RuntimeError`` if the clients of a stack should not have started together."""
        if self._found is not None:
            raise RuntimeError(
                f"In this round, {self._found}; in the rounds that were tried out, none did. Clients that train at "
                'once start before the first of them ends. Give the aggregation `executor="sequential"`.'
            )


def _methods(parts: Sequence[Any], names: Sequence[str]) -> list[Callable[..., Any]]:
    """Return the methods of these names that a user's own classes define."""
    found = (getattr(part, name, None) for part in parts for name in names)
    return [method for method in found if callable(method) and is_users(getattr(method, "__module__", None))]
