"""Prints the table *methods x set-ups*: ``python -m tests.contracts.setups [part of a method's or set-up's name ...]``.

``.`` is right, ``r`` refused before training, ``X`` wrong; the messages come after the table. Seconds are the
processor's.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["FL_LIGHTNING_EXECUTOR"] = "sequential"
sys.path.insert(0, str(Path(__file__).parents[1]))

from contracts.referee.methods import METHODS
from contracts.referee.setups import SETUPS, Outcome, cells, play

SIGNS = {"right": ".", "refused": "r", "wrong": "X"}


def main() -> int:
    """Play the cells that the arguments name, and return 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.contracts.setups", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of methods or set-ups; all cells if there are none")
    names = parser.parse_args().names
    chosen = [cell for cell in cells() if not names or any(part in text for part in names for text in cell)]
    for number, title in enumerate(SETUPS):
        print(f"{number:3} {title}")
    print(" " * 22 + " ".join(f"{number:2}" for number in range(len(SETUPS))) + "   s")
    outcomes: dict[tuple[str, str], Outcome] = {}
    for name in METHODS:
        row = [cell for cell in chosen if cell[0] == name]
        if not row:
            continue
        for cell in row:
            outcomes[cell] = try_to_play(*cell)
        words = [outcomes[name, title].word if (name, title) in outcomes else "" for title in SETUPS]
        seconds = sum(outcomes[cell].seconds for cell in row)
        print(f"{name:22}" + " ".join(f"{SIGNS.get(word, ' '):>2}" for word in words) + f"{seconds:5.1f}", flush=True)
    for (name, title), outcome in outcomes.items():
        if outcome.word != "right":
            print(f"{outcome.word}: {name}, {title}: {outcome.text}")
    counts = Counter(outcome.word for outcome in outcomes.values())
    seconds = sum(outcome.seconds for outcome in outcomes.values())
    print(f"{counts['right']} right, {counts['refused']} refused, {counts['wrong']} wrong, {seconds:.0f} s")
    return int(counts["wrong"] > 0)


def try_to_play(name: str, title: str) -> Outcome:
    """Play a cell; an error in training is wrong, too."""
    try:
        return play(name, title)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome("wrong", f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})")


if __name__ == "__main__":
    raise SystemExit(main())
