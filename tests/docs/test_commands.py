"""Every command on the pages on results is one that its program accepts, with methods and data sets that exist."""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fl_lightning.experiment.table import Table
from fl_lightning_command.__main__ import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*DOCS.glob("reproduction*.md"), *DOCS.glob("reproduction/*.md"), DOCS / "published.md", DOCS / "data-sets.md"]
#: The header of a column whose cells go on with a command.
PREFIX = re.compile(r"^\| command, after `([^`]+)` \|.*\n\| -.*\n((?:\|.*\n)+)", re.MULTILINE)


def commands() -> Iterator[str]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for line in text.splitlines():
            last = ""
            for word in re.findall(r"`([^`]+)`", line):
                if re.match(r"python \S|fl-lightning \S+ \S", word):
                    last = word
                    yield word
                elif word.startswith("--preset ") and last:  # goes on with another preset
                    yield f"{last.partition(' --')[0]} {word}"
        for start, rows in PREFIX.findall(text):
            yield from (f"{start} {cell}" for cell in re.findall(r"^\| `([^`]+)`", rows, re.MULTILINE))


COMMANDS = sorted({each for each in commands() if not each.endswith("--preset") and "NAME" not in each})


class AcceptedError(Exception):
    """The program has read its arguments and would begin to work."""


@pytest.fixture
def reads_arguments_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs stop when they have read their arguments, and tables when their parts are chosen."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> argparse.Namespace:
        options = parse(parser, *given, **named)
        for value in vars(options).values():
            assert not isinstance(value, Path) or value.suffix != ".yaml" or value.is_file(), value
        if {"preset", "methods", "data"} <= set(vars(options)):  # a recipe of tables: its parts are chosen next
            return options
        raise AcceptedError

    only = Table.only

    def choose_and_stop(table: Table, *given: Any) -> None:
        only(table, *given)
        raise AcceptedError

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(Table, "only", choose_and_stop)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(ROOT)


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_accepted(
    command: str, reads_arguments_only: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(command)
    if program == "python" and arguments[:2] == ["-m", "pytest"]:
        assert all((ROOT / path).is_file() for path in arguments[2:])
        return
    try:
        with pytest.raises(AcceptedError):
            if program == "fl-lightning":
                main(arguments)
            elif arguments[0] == "-m":
                monkeypatch.setattr(sys, "argv", arguments[1:])
                runpy.run_module(arguments[1], run_name="__main__")
            else:
                monkeypatch.setattr(sys, "argv", arguments)
                runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit:
        pytest.fail(capsys.readouterr().err)
