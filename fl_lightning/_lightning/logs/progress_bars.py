"""The progress of a fit in the bar of a round: "Round 20 of 60, 4 min left"."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

import lightning.pytorch as pl
from lightning.pytorch.callbacks.progress import RichProgressBar, TQDMProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import CustomTimeColumn, ProcessingSpeedColumn
from rich.progress import BarColumn, Progress
from tqdm.auto import tqdm

from fl_lightning.words import duration

#: On a terminal of fewer columns the metrics need the room of what the name of a round says too.
_NARROW = 100
_SHORT_BAR = 10
#: So many rounds, the latest, tell how long the rounds to come will take.
_LATEST = 20
Item = TypeVar("Item")


class RoundBar:
    """Names the round and the time that is left in the trainer's bar, if it is of one of Lightning's own kinds.

    Args:
        trainer: The trainer.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        bar = trainer.progress_bar_callback
        self._bar: RichProgressBar | TQDMProgressBar | None = None
        if isinstance(bar, (RichProgressBar, TQDMProgressBar)) and bar.is_enabled and trainer.is_global_zero:
            self._bar = bar
        #: When the fit began, and when the latest rounds ended.
        self._times: deque[float] = deque([time.monotonic()], maxlen=_LATEST + 1)

    def begin_round(self, number: int) -> None:
        """Name a round, counted from 1, and the time that is left when it begins."""
        self._show(self._name(number) + self._time_left(number))

    def end_round(self, number: int, batches: int) -> None:
        """Fill the bar of a round, which tells no time any more, and note how long the round took.

        Args:
            number: The round's number, from 1.
            batches: As many as were trained, on which an asynchronous round can only guess before.
        """
        self._times.append(time.monotonic())
        self._show(self._name(number))
        if self._bar is not None:
            set_total(self._bar, batches)

    def _show(self, text: str) -> None:
        bar = self._bar
        if isinstance(bar, TQDMProgressBar):
            bar.train_progress_bar.set_description_str(text)
        elif bar is not None and bar.progress is not None and bar.train_progress_bar_id is not None:
            _make_room_for_metrics(bar.progress)
            bar.progress.update(bar.train_progress_bar_id, description=text)

    def _name(self, number: int) -> str:
        rounds = self._num_rounds
        return f"Round {number}" if rounds is None else f"Round {number} of {rounds}"

    def _time_left(self, number: int) -> str:
        """Return the words for the time that a round and all after it take, empty if it is not known."""
        rounds = self._num_rounds
        if rounds is None or len(self._times) == 1:
            return ""
        seconds_a_round = (self._times[-1] - self._times[0]) / (len(self._times) - 1)
        return f", {duration(seconds_a_round * (rounds - number + 1))} left"

    @property
    def _num_rounds(self) -> int | None:
        """The number of rounds, ``None`` if it is not limited."""
        rounds = self._trainer.max_epochs
        return None if rounds is None or rounds < 0 else rounds


def set_total(bar: RichProgressBar | TQDMProgressBar, batches: int) -> None:
    """Make a number of batches the whole of the round's bar."""
    if isinstance(bar, TQDMProgressBar):
        bar.train_progress_bar.n = bar.train_progress_bar.total = batches
        bar.train_progress_bar.refresh()
    elif bar.progress is not None and bar.train_progress_bar_id is not None:
        bar.progress.update(bar.train_progress_bar_id, total=batches, completed=batches)


def _make_room_for_metrics(progress: Progress) -> None:
    """Leave out times and speed on a narrow terminal, where the metrics would get 12 of 80 columns."""
    if progress.console.width >= _NARROW:
        return
    kept = []
    for column in progress.columns:
        if isinstance(column, BarColumn):
            column.bar_width = _SHORT_BAR
        if not isinstance(column, (CustomTimeColumn, ProcessingSpeedColumn)):
            kept.append(column)
    progress.columns = tuple(kept)


def with_progress(trainer: pl.Trainer, items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items, under a bar of their own if the trainer shows one."""
    shown = trainer.progress_bar_callback is not None and trainer.is_global_zero
    yield from tqdm(items, desc=what, disable=not shown, leave=False)
