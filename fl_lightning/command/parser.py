"""Shared by the command and the recipes: a parser that names what a typo meant, and ends without a traceback."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import jsonargparse

# Exit statuses.
_WRONG_USE = 2
_INTERRUPTED = 130


class _HelpFormatter(jsonargparse.DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps examples as lines, and shows defaults."""


class Parser(jsonargparse.ArgumentParser):
    """jsonargparse's parser with a usage of one line, which keeps examples as lines and names what a typo meant.

    Args:
        options: The arguments of ``jsonargparse.ArgumentParser``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, "allow_abbrev": False, **options})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """End the program with the message, and with the option or choice that was probably meant."""
        choice = re.search(r"invalid choice: '?([^']*?)'? \(choose from (.*)\)", message)
        if choice:
            words = [choice[1]]
            known = re.findall(r"[\w-]+", choice[2])
        else:
            words = re.findall(r"(?<!\S)--[\w.-]+", message)
            known = list(self._option_string_actions)
        meant = []
        for word in words:
            meant += difflib.get_close_matches(word, known, n=1)
        if meant:
            message += f". Did you mean {' and '.join(meant)}?"
        super().error(message, ex)


def print_error(error: BaseException | str) -> None:
    """Print an error on the standard error output."""
    print(f"error: {error}", file=sys.stderr)


@contextmanager
def ends_by_interrupt(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """End the program without a traceback when Ctrl-C interrupts it.

    Args:
        how_to_go_on: Returns the sentences that are printed then, such as ``"Interrupted in round 5. Resume with:
            ..."``.

    Raises:
        SystemExit: With status 130, after Ctrl-C.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as end:
        if isinstance(end, SystemExit):
            # The Trainer makes a SystemExit of Ctrl-C. That of an inner `ends_by_interrupt` has told how to go on.
            is_of_trainer = isinstance(end.__context__, KeyboardInterrupt) and end.code != _INTERRUPTED
            if not is_of_trainer:
                raise
        print(f"\n{how_to_go_on()}", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None


@contextmanager
def ends_by_error() -> Iterator[None]:
    """End the program with one line instead of a traceback where the package raises an error on what it was given.

    Raises:
        SystemExit: With status 2. Errors that others raise, and mistakes of the package itself, keep their traceback.
    """
    try:
        yield
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        if not _is_raised_by_package(error):
            raise
        print_error(error)
        raise SystemExit(_WRONG_USE) from None


def _is_raised_by_package(error: BaseException) -> bool:
    """Whether the error comes from a statement ``raise`` in this package's files, and not from a call in one."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_ours = Path(last.filename).is_relative_to(Path(__file__).resolve().parents[1])
    return is_ours and (last.line or "").startswith("raise ")
