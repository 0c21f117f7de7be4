"""Shared by all programs of the package: help that shows defaults, suggestions for typos, and an end by Ctrl-C."""

from __future__ import annotations

import argparse
import difflib
import itertools
import linecache
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TextIO

# exit statuses
_WRONG_USE = 2
_INTERRUPTED = 130


_COMMENTED = re.compile(r"(?P<indent> +)(?P<command>\S.*?) +# (?P<comment>.+)")


class KeepsExamples(argparse.HelpFormatter):
    """Fits paragraphs to the terminal, and keeps indented lines, such as commands, as they are.

    Where a command and the comment behind it do not fit, the comments of all commands stand above them. Markup of
    docstrings becomes plain text.
    """

    def _split_lines(self, text: str, width: int) -> list[str]:
        return super()._split_lines(without_markup(text), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled: list[str] = []
        paragraphs = without_markup(text).splitlines()
        for is_fixed, group in itertools.groupby(paragraphs, lambda line: not line or line.startswith(" ")):
            lines = list(group)
            filled += _with_comments_above(lines, width) if is_fixed else textwrap.wrap(" ".join(lines), width)
        return "".join(f"{indent}{line}\n" for line in filled)


def without_markup(text: str) -> str:
    """Return a text of a docstring as plain text: ``:func:`~a.b``` is b, and double backticks are left out."""
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", text).replace("``", "")


def _with_comments_above(lines: list[str], width: int) -> list[str]:
    found = [_COMMENTED.fullmatch(line) for line in lines]
    if not any(match and len(line) > width for match, line in zip(found, lines, strict=True)):
        return lines
    moved: list[str] = []
    for match, line in zip(found, lines, strict=True):
        moved += [f"{match['indent']}# {match['comment']}", match["indent"] + match["command"]] if match else [line]
    return moved


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

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the program; a terminal shows the message in whole words."""
        super().exit(status, None if message is None else wrapped(message, sys.stderr))


def print_error(error: BaseException) -> None:
    """Print an error on the standard error output."""
    print(wrapped(f"error: {error}", sys.stderr), file=sys.stderr)


def wrapped(text: str, stream: TextIO) -> str:
    """Return a text whose lines a terminal does not break inside words; as it is if the stream is no terminal."""
    if not stream.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=_indent(line))
        for line in text.split("\n")
    )
    return "\n".join("\n".join(parts) for parts in lines)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


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
        print(wrapped(f"\n{how_to_go_on()}", sys.stderr), file=sys.stderr)
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
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    file = Path(last.tb_frame.f_code.co_filename)
    root = Path(__file__).parents[1]
    is_ours = any(root / folder in file.parents for folder in ("fl_lightning", "datamodules", "recipes"))
    return is_ours and linecache.getline(str(file), last.tb_lineno).strip().startswith("raise ")


def multiple_of(step: int) -> Callable[[str], int]:
    """Return the type of an option whose value is a multiple of a number, and greater than 0."""

    def read(text: str) -> int:
        value = int(text) if text.isdecimal() else 0
        if value == 0 or value % step:
            allowed = f"a multiple of {step}" if step > 1 else "a whole number above 0"
            raise argparse.ArgumentTypeError(f"must be {allowed}, such as {step * 5}, got {text}")
        return value

    return read
