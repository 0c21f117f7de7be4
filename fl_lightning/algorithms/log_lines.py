"""Log lines of a fit: printed above the progress bars of a terminal, not into them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import TextIO

from tqdm import tqdm


def log_above_bars() -> None:
    """Let every handler of the log that writes to a terminal write above the progress bars there.

    A handler keeps the stream that it was made with. With that stream it would write into the line of a bar, and the
    bar would wipe the text out when it is drawn again.
    """
    for handler in _handlers():
        # A user-defined stream need not know whether it is a terminal.
        isatty = getattr(handler.stream, "isatty", None)
        if isatty is None or getattr(handler.stream, "closed", False):
            continue
        if isatty() and not isinstance(handler.stream, _AboveBars):
            # It has all that a handler uses of a stream.
            handler.setStream(_AboveBars(handler.stream))  # type: ignore[arg-type]


def log_as_before() -> None:
    """Give the handlers their own streams back."""
    for handler in _handlers():
        if isinstance(handler.stream, _AboveBars):
            handler.setStream(handler.stream.terminal)


def _handlers() -> Iterator[logging.StreamHandler[TextIO]]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        # A placeholder has no handlers, and some handlers look their stream up whenever they write.
        for handler in getattr(logger, "handlers", []):
            if isinstance(handler, logging.StreamHandler) and vars(handler).get("stream") is not None:
                yield handler


class _AboveBars:
    """What a handler writes to in place of the terminal."""

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def write(self, text: str) -> int:
        """Print the text above the bars of rich or of tqdm, if there are any."""
        # While rich shows bars, its own stand-in for the terminal prints above them.
        if getattr(sys.stderr, "rich_proxied_file", None) is self.terminal:
            return sys.stderr.write(text)
        with tqdm.external_write_mode(file=self.terminal):
            return self.terminal.write(text)

    def flush(self) -> None:
        """Flush the terminal."""
        self.terminal.flush()

    def isatty(self) -> bool:
        """Return True: the text goes to a terminal."""
        return True
