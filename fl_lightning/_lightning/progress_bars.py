"""The progress of a fit in words beside the progress of the round: "Round 20 of 60, about 4 min left"."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks.progress import RichProgressBar, TQDMProgressBar
from tqdm.auto import tqdm

from fl_lightning.checks import counted, duration

_LATEST = 20  # rounds whose mean duration is that of the rounds to come


class RoundBars:
    """Shows a line on all rounds below the trainer's bar, which shows one round.

    It draws nothing where the trainer has no bar of Lightning's own kinds.

    Args:
        trainer: The trainer.
        first_round: Number of the first round of this fit, from 1.
    """

    def __init__(self, trainer: pl.Trainer, first_round: int) -> None:
        self._trainer = trainer
        bar = trainer.progress_bar_callback
        shown = bar is not None and bar.is_enabled and trainer.is_global_zero
        self._bar = bar if shown and isinstance(bar, (RichProgressBar, TQDMProgressBar)) else None
        self._begun, self._finished_before = time.monotonic(), first_round - 1
        self._ends: deque[float] = deque([self._begun], maxlen=_LATEST + 1)
        self._line: tqdm[Any] | None = None
        self._text = ""
        if isinstance(self._bar, TQDMProgressBar):
            total = trainer.max_epochs if (trainer.max_epochs or -1) > 0 else None
            form = "{desc} |{bar}|" if total else "{desc}"
            self._line = tqdm(
                total=total, initial=first_round - 1, position=1, leave=False, bar_format=form, dynamic_ncols=True
            )

    def on_round_start(self, number: int) -> None:
        """Name the round.

        Args:
            number: Its number, from 1.
        """
        if self._bar is None:
            return
        self._text = self._describe(number)
        if self._line is not None and isinstance(self._bar, TQDMProgressBar):
            self._bar.train_progress_bar.set_description_str(f"Round {number}")
            self._line.set_description_str(self._text)
        elif isinstance(self._bar, RichProgressBar) and self._bar.progress is not None:
            self._show_in_rich(self._bar.progress)
            if self._bar.train_progress_bar_id is not None:
                name = f"Round {number}"
                width = len(self._bar.validation_description)
                self._bar.progress.update(self._bar.train_progress_bar_id, description=f"{name:{width}}")

    def on_round_end(self, batches: int) -> None:
        """Fill the round's bar, and note how long the round took.

        Args:
            batches: As many as were trained, on which an asynchronous round can only guess before.
        """
        self._ends.append(time.monotonic())
        if self._bar is None:
            return
        set_total(self._bar, batches)
        if self._line is not None:
            self._line.update()

    def close(self, finished: int) -> None:
        """End the line: rich bars say how long all rounds took, as they are not redrawn with one line less.

        Args:
            finished: Rounds that are finished, those before this fit among them.
        """
        if self._line is not None:
            self._line.close()
        self._text = (
            f"{counted(finished - self._finished_before, 'round')} in {duration(time.monotonic() - self._begun)}"
        )

    def _describe(self, number: int) -> str:
        rounds = self._trainer.max_epochs
        if rounds is None or rounds < 0:
            return f"Round {number}"
        if len(self._ends) == 1:
            return f"Round {number} of {rounds}"
        pace = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return f"Round {number} of {rounds}, about {duration(pace * (rounds - number + 1))} left"

    def _show_in_rich(self, progress: Any) -> None:
        """Put the line under the table of bars, where it takes no width from their columns."""
        if "get_renderables" in progress.__dict__:
            return
        stock = type(progress).get_renderables

        def get_renderables() -> Any:
            yield from stock(progress)
            yield self._text

        progress.get_renderables = get_renderables


def with_progress(trainer: pl.Trainer, items: list[int], what: str) -> Iterator[int]:
    """Yield the items, under a bar of their own if the trainer shows one."""
    shown = trainer.progress_bar_callback is not None and trainer.is_global_zero
    yield from tqdm(items, desc=what, disable=not shown, leave=False)


def set_total(bar: RichProgressBar | TQDMProgressBar, batches: int) -> None:
    """Make a number of batches the whole of the round's bar."""
    if isinstance(bar, TQDMProgressBar):
        bar.train_progress_bar.n = bar.train_progress_bar.total = batches
        bar.train_progress_bar.refresh()
    elif bar.progress is not None and bar.train_progress_bar_id is not None:
        bar.progress.update(bar.train_progress_bar_id, total=batches, completed=batches)
