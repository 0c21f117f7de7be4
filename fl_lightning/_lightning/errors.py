"""The error of work that needs one client at a time; executors catch it."""

from __future__ import annotations


class CannotVectorize(Exception):
    """Something needs one model at a time; the message names it, and says what to do where something can be done."""


def describe_error(error: Exception) -> str:
    """Return an exception's kind and the first line of its message."""
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}{': ' if first else ''}{first}"
