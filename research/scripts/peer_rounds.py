"""Times another framework's rounds beside those of the plain loop."""

from __future__ import annotations

import time

from plain_loop import LoopProcess


class Rounds:
    """Notes the seconds of another framework's rounds, each with those of a plain round that runs after it."""

    def __init__(self, plain: LoopProcess) -> None:
        self.pairs: list[tuple[float, float]] = []
        self._plain = plain
        self._begun = time.perf_counter()

    def end(self) -> None:
        """A round has ended; the next begins when the plain one has been run."""
        seconds = time.perf_counter() - self._begun
        self.pairs.append((seconds, self._plain.round()))
        self._begun = time.perf_counter()
