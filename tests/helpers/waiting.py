"""Waits for something, with a limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def wait_for(what: Callable[[], object], seconds: float = 180.0, every: float = 0.05) -> bool:
    """Return whether something comes true in time.

    Args:
        what: Asked again and again.
        seconds: For so long, also on a busy machine.
        every: Seconds between two questions.
    """
    until = time.monotonic() + seconds
    while not what():
        if time.monotonic() > until:
            return False
        threading.Event().wait(every)
    return True
