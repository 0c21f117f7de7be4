"""Prints how each entry of the zoo is trained by each executor, how long that takes, and whether they differ.

    PYTHONPATH=.:tests python -m zoo [part of a name ...]

Fifty clients of log-normal sizes around ten samples, two rounds of all of them. Seconds are the processor's, of
``Trainer.fit``.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

import torch

from zoo.entry import Entry
from zoo.fitting import Fit, fit, many
from zoo.modules import ENTRIES
from zoo.outcome import ASPECTS, differences

EXECUTORS = ("sequential", "vectorized", "auto")


@dataclass
class Row:
    """An entry's fits.

    Attributes:
        entry: The entry.
        fits: Its fits by executor; ``None`` for one that failed.
    """

    entry: Entry
    fits: dict[str, Fit | None]

    def __str__(self) -> str:
        seconds = "".join(f"{done.seconds:11.2f}" if done else f"{'fails':>11}" for done in self.fits.values())
        by_name, by_auto = (self.manner(executor) for executor in EXECUTORS[1:])
        manner = by_name if by_name == by_auto else f"{by_name} / {by_auto}"
        return f"{self.entry.name:<46}{seconds}  {'; '.join([manner, *self.different()])}"

    def manner(self, executor: str) -> str:
        """Return how clients were trained, in a few words."""
        done = self.fits[executor]
        if done is None:
            return "fails"
        return "stacked" if done.cause is None else done.cause.split("\n")[0][:90]

    def different(self) -> list[str]:
        """Return in what other executors' fits differ from that of the sequential one."""
        alone = self.fits["sequential"]
        return [
            f"{executor} differs in {aspect}"
            for executor, done in self.fits.items()
            for aspect in (ASPECTS if alone and done else ())
            if differences(
                getattr(alone.everything, aspect), getattr(done.everything, aspect), 10 * self.entry.tolerance
            )
        ]


def main(patterns: list[str]) -> None:
    """Print the table of the entries whose names have one of the patterns in them."""
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sizes = many(50)
    fit(ENTRIES[0], "auto", sizes)  # what the first fit of a process pays
    print(f"{'entry':<46}{'sequential':>11}{'vectorized':>11}{'auto':>11}  by name / by auto")
    rows: list[Row] = []
    for entry in ENTRIES:
        if not patterns or any(pattern in entry.name for pattern in patterns):
            rows.append(Row(entry, {executor: tried(entry, executor, sizes) for executor in EXECUTORS}))
            print(rows[-1], flush=True)
    for executor in EXECUTORS:
        stacked = sum(row.manner(executor) == "stacked" for row in rows)
        seconds = sum(done.seconds for row in rows if (done := row.fits[executor]))
        print(f"{executor}: {stacked} of {len(rows)} stacked, {seconds:.1f} s in all")
    print(f"{sum(bool(row.different()) for row in rows)} of {len(rows)} differ between executors")


def tried(entry: Entry, executor: str, sizes: list[int]) -> Fit | None:
    """Return a fit, ``None`` if it fails."""
    try:
        return fit(entry, executor, sizes)
    except Exception:
        return None


if __name__ == "__main__":
    main(sys.argv[1:])
