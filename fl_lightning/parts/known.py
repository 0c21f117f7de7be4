"""A set that keeps nothing alive, and whose members know which client is at work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet


class Known(WeakSet[Any]):
    """Objects that are known as long as somebody else holds them; a pickle or a copy knows none."""

    client_at_work: int | None = None
    """The client for which parts are called now, 0 to K-1; ``None`` if for no single one."""

    @contextmanager
    def at_work(self, client: int) -> Iterator[None]:
        """Let a client be at work inside of the context."""
        before, self.client_at_work = self.client_at_work, client
        try:
            yield
        finally:
            self.client_at_work = before

    def __reduce__(self) -> tuple[Any, ...]:
        return Known, ()
