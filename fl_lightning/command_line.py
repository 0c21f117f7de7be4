"""Shared by all programs of the package: help that shows defaults, suggestions for typos, and an end by Ctrl-C."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_INTERRUPTED = 130  # the exit status of programs that Ctrl-C ends


class KeepsExamples(argparse.HelpFormatter):
    """Fits paragraphs to the terminal, and keeps indented lines, such as commands, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled: list[str] = []
        for is_fixed, group in itertools.groupby(text.splitlines(), lambda line: not line or line.startswith(" ")):
            lines = list(group)
            filled += lines if is_fixed else textwrap.wrap(" ".join(lines), width)
        return "".join(f"{indent}{line}\n" for line in filled)


class HelpFormatter(KeepsExamples):
    """Also shows the default of every option that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text, default = action.help, action.default
        if (
            text is None
            or "default" in text
            or any(default is without for without in (None, False, argparse.SUPPRESS))
            or not action.option_strings
        ):
            return text
        shown = " ".join(map(str, default)) if isinstance(default, (list, tuple)) else "%(default)s"
        return f"{text} (default: {shown})"


class CommandParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that names the option which a typo meant.

    Args:
        options: The arguments of ``ArgumentParser``.
    """

    def __init__(self, **options: Any) -> None:
        self._words: list[str] = []  # of the command line, for an error
        super().__init__(**{"formatter_class": HelpFormatter, "allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ``ArgumentParser`` does, and keep the words for an error."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """End the program with the message, and with what was probably meant."""
        options = self._option_string_actions
        words = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        unknown = [word for word in words if word not in options]
        if unknown and "are required: -" in message:  # argparse looks for missing options first
            message += f"; unrecognized arguments: {' '.join(unknown)}"
        super().error(message + did_you_mean(message, options))


def did_you_mean(message: str, options: Collection[str]) -> str:
    """Return a sentence with the options, or the choices in the message, that are close to the wrong ones.

    Args:
        message: An error of ``argparse``.
        options: The options that exist, such as ``--output``.
    """
    options = [option for option in options if option not in ("-h", "--help")]  # nobody means that by a typo
    wrong = re.search(r"[Uu]nrecognized arguments: (.*)", message)
    if wrong:
        given = [word.partition("=")[0] for word in wrong[1].split() if word.startswith("-")]
        return _sentence([close for word in given for close in difflib.get_close_matches(word, options, n=1)])
    choice = re.search(r"invalid choice: '?([^']*?)'? \(choose from (.*)\)", message)
    if choice:
        known = [name.strip(" '\"") for name in choice[2].split(",")]
        return _sentence(difflib.get_close_matches(choice[1], known, n=1))
    return ""


def _sentence(names: list[str]) -> str:
    return f". Did you mean {' and '.join(dict.fromkeys(names))}?" if names else ""


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
        # the Trainer makes a SystemExit of Ctrl-C
        if isinstance(end, SystemExit) and not isinstance(end.__context__, KeyboardInterrupt):
            raise
        print(f"\n{how_to_go_on()}", file=sys.stderr)
        raise SystemExit(_INTERRUPTED) from None
