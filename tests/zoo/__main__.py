"""Prints how each entry of the zoo is trained by each executor, and how long that takes.

    PYTHONPATH=.:tests python -m zoo [part of a name ...]

Fifty clients of log-normal sizes around ten samples, two rounds of all of them. Seconds are the processor's, of
``Trainer.fit``.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

import torch

from zoo.fitting import fit
from zoo.modules import ENTRIES

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ("lightning.pytorch", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.manual_seed(1)
    sizes = [max(1, int(10 * size)) for size in torch.exp(0.6 * torch.randn(50)).tolist()]
    entries = [
        replace(entry, sizes=sizes)
        for entry in ENTRIES
        if not sys.argv[1:] or any(part in entry.name for part in sys.argv[1:])
    ]
    fit(entries[0], "auto")  # what the first fit of a process pays
    for executor in ("sequential", "vectorized", "auto"):
        fits = []
        for entry in entries:
            fits.append(fit(entry, executor))
            print(f"{executor:12}{entry.name:46}{fits[-1].seconds:8.2f}  {fits[-1].cause or 'stacked'}", flush=True)
        stacked = sum(each.cause is None for each in fits)
        print(f"{executor}: {stacked} of {len(fits)} stacked, {sum(each.seconds for each in fits):.1f} s in all")
