"""The campaign of faults: ``python -m tests.faults --kills 1000 --signals 100 --minutes 60``.

It prints a table of what was tried and what survived, and what did not, and ends with status 1 if anything did not.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from faults import campaign
from faults.victims import EXECUTORS, VICTIMS, Trials

KINDS: dict[str, tuple[Callable[[Trials], Iterator[str | None]], int, str]] = {
    "kills": (campaign.kills, 100, "SIGKILLs of a whole job at random moments"),
    "signals": (campaign.signals, 20, "SIGTERMs of one of two processes, or both"),
    "ranks": (campaign.dead_ranks, 20, "SIGKILLs of one of two processes"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws victims and moments; default: 0")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no new fault begins; default: 60")
    for name, (_, count, text) in KINDS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=f"{text}; default: {count}")
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    algorithms = len(VICTIMS) // 2 // len(EXECUTORS)
    print(f"{algorithms} algorithms x {len(EXECUTORS)} executors x {{1, 2}} processes; seed {options['seed']}")
    print(f"{'':62}{'tried':>8}{'survived':>10}{'seconds':>9}")
    problems: list[str] = []
    until = time.monotonic() + 60 * options["minutes"]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        for place, (name, (harm, _, text)) in enumerate(KINDS.items()):
            trials = Trials(Path(folder) / name, random.Random(1000 * options["seed"] + place))
            begin, tried, lost = time.monotonic(), 0, len(problems)
            for problem in itertools.islice(harm(trials), options[name]):
                tried += 1
                if problem is not None:
                    problems.append(f"{name}: {problem}")
                if time.monotonic() > until:
                    break
            survived = tried - (len(problems) - lost)
            print(f"{text:62}{tried:8}{survived:10}{time.monotonic() - begin:9.0f}", flush=True)
    print(*problems, sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
