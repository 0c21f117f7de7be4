"""Log lines of a fit stand above the progress bars of a terminal."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

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


@pytest.mark.parametrize("kind", ["rich", "tqdm"])
def test_a_line_is_printed_above_a_bar(kind: str, log: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    # A stream that does not know whether it is a terminal comes before it.
    log.addHandler(logging.StreamHandler(SimpleNamespace(write=str, flush=str)))
    log.addHandler(logging.StreamHandler(terminal))
    log_above_bars()
    console = Console(file=terminal, force_terminal=True, width=60)
    bar: Any = Progress(console=console, auto_refresh=False) if kind == "rich" else tqdm(total=2, file=terminal)
    with bar:
        if kind == "rich":
            bar.add_task("Round 1", total=2)
            bar.refresh()
        else:
            bar.set_description("Round 1")
        before = len(terminal.getvalue())
        log.info("a line")
        sent = terminal.getvalue()[before:]
    # the bar's line is cleared, the text takes its place, and the bar is drawn again below
    assert sent.startswith("\r\x1b[2K" if kind == "rich" else "\r ")
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
