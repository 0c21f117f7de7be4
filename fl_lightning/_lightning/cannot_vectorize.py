"""The error of what cannot be done for several clients at once, and what may have caught it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CannotVectorize(Exception):
    """Something needs one model at a time; the message names it, and the way out where there is one."""

    def __init__(self, *message: object) -> None:
        super().__init__(*message)
        _raised.last = type(self), message  # the exception itself would hold what its functions held


class ChangesModule(CannotVectorize):
    """Training changes the module beside its federated state, or what it can reach."""


_raised = threading.local()  # `last`: kind and message of this thread's last :class:`CannotVectorize`


def describe_error(error: Exception) -> str:
    """Return an exception's kind and the first line of its message."""
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}{': ' if first else ''}{first}"


@contextmanager
def nothing_caught() -> Iterator[None]:
    """Raise again what code of the user's own, such as ``except Exception``, has caught of :class:`CannotVectorize`."""
    _raised.last = None
    yield
    if _raised.last is not None:
        kind, message = _raised.last
        raise kind(*message)
