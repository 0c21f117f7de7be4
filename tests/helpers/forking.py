"""Runs functions in forked processes."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any


def in_child(work: Callable[..., object], *args: Any, **kwargs: Any) -> int:
    """Run a function in a forked process and return its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(*args, **kwargs)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
