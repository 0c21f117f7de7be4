"""Log lines of a fit stand above the progress bars of a terminal."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator

import pytest
from rich.console import Console
from rich.progress import Progress
from tqdm import tqdm

from fl_lightning.algorithms.log_lines import log_above_bars, log_as_before


class Terminal(io.StringIO):
    """Keeps what a terminal is sent."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def log() -> Iterator[logging.Logger]:
    logger = logging.getLogger("a library that logs")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield logger
    log_as_before()
    logger.handlers.clear()


def test_a_line_is_printed_above_the_bar_of_rich(log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    log.addHandler(logging.StreamHandler(terminal))
    log_above_bars()
    with Progress(console=Console(file=terminal, force_terminal=True, width=60), auto_refresh=False) as progress:
        progress.add_task("Round 1", total=2)
        progress.refresh()
        before = len(terminal.getvalue())
        log.info("a line")
        sent = terminal.getvalue()[before:]
    # the bar's line is cleared, the text takes its place, and the bar is drawn again below
    assert sent.startswith("\r\x1b[2K")
    assert sent.index("a line\n") < sent.index("Round 1")


def test_a_line_is_printed_above_the_bar_of_tqdm(log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    log.addHandler(logging.StreamHandler(terminal))
    log_above_bars()
    with tqdm(total=2, desc="Round 1", file=terminal):
        before = len(terminal.getvalue())
        log.info("a line")
        sent = terminal.getvalue()[before:]
    assert sent.startswith("\r ")
    assert sent.index("a line\n") < sent.index("Round 1")


def test_handlers_get_their_streams_back(log: logging.Logger) -> None:
    terminal, file = Terminal(), io.StringIO()
    handlers = [logging.StreamHandler(terminal), logging.StreamHandler(file)]
    for handler in handlers:
        log.addHandler(handler)
    log_above_bars()
    log_above_bars()
    assert handlers[0].stream is not terminal
    assert handlers[1].stream is file  # no bar is drawn into a file
    log_as_before()
    assert [handler.stream for handler in handlers] == [terminal, file]
