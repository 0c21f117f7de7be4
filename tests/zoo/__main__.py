"""Prints how each entry of the zoo is trained by each executor, and how long that takes.

    PYTHONPATH=.:tests python -m zoo [part of a name ...]

Fifty clients of log-normal sizes around ten samples, two rounds of all of them. Seconds are those of ``Trainer.fit``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import torch

from zoo.entry import Entry
from zoo.fitting import Fit, fit, many
from zoo.modules import ENTRIES

EXECUTORS = ("sequential", "vectorized", "auto")


def main(patterns: list[str]) -> None:
    """Print the table of the entries whose names have one of the patterns in them."""
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    sizes = many(50)
    fit(ENTRIES[0], "auto", sizes)  # what the first fit of a process pays
    print(f"{'entry':<42} {'sequential':>10} {'vectorized':>10} {'auto':>10}  stacked by name / by auto, or why not")
    rows = list(table(ENTRIES, patterns, sizes))
    for executor in EXECUTORS[1:]:
        stacked = sum(said(row[executor]) == "stacked" for row in rows)
        print(f"{executor}: {stacked} of {len(rows)} stacked ({100 * stacked / max(len(rows), 1):.0f} %)")
    for executor in EXECUTORS:
        print(f"{executor}: {sum(done.seconds for row in rows if (done := row[executor])):.1f} s in all")


def table(entries: list[Entry], patterns: list[str], sizes: list[int]) -> Iterator[dict[str, Fit | None]]:
    """Yield the fits of each entry, by executor, after printing its row; a fit that failed is ``None``."""
    for entry in entries:
        if patterns and not any(pattern in entry.name for pattern in patterns):
            continue
        fits = {executor: tried(entry, executor, sizes) for executor in EXECUTORS}
        seconds = "".join(f"{done.seconds:11.2f}" if done else f"{'fails':>11}" for done in fits.values())
        by_name, by_auto = (said(fits[executor]) for executor in EXECUTORS[1:])
        chosen = by_name if by_name == by_auto else f"{by_name} / {by_auto}"
        print(f"{entry.name:<42}{seconds}  {chosen}", flush=True)
        yield fits


def tried(entry: Entry, executor: str, sizes: list[int]) -> Fit | None:
    """Return a fit, ``None`` if it fails."""
    try:
        return fit(entry, executor, sizes)
    except Exception:
        return None


def said(done: Fit | None) -> str:
    """Return how clients were trained, in a few words."""
    if done is None:
        return "fails"
    return "stacked" if done.cause is None else done.cause.split("\n")[0][:90]


if __name__ == "__main__":
    main(sys.argv[1:])
