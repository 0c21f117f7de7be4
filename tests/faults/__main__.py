"""The campaign of faults: ``python -m tests.faults --kills 1000 --signals 100 --minutes 60``.

Each kind of fault harms victims at random moments. A victim survives if all its processes end, and the same command
goes on to the end that it would have had, bit for bit. It prints what was tried and what survived, and what did not,
and ends with status 1 if anything did not.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import logging
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from faults.victims import EXECUTORS, VICTIMS, Trials

Outcomes = Iterator[str | None]  # once each, what is wrong, or ``None``
_PATIENCE = 60.0  # seconds in which the processes of a victim end
_TWO = [victim for victim in VICTIMS if victim.devices == 2]


def kill_all(trials: Trials) -> Outcomes:
    """Kill all processes of a victim at a random moment, one to three times, and finish it."""
    while True:
        victim, folder, times = trials.rng.choice(VICTIMS), None, 0
        seconds = trials.whole(victim)[1]
        for _ in range(trials.rng.randint(1, 3)):
            child, folder = trials.start(victim, folder=folder)
            times += child.wait(trials.rng.uniform(0.0, seconds)) is None
            child.kill()
        yield from [trials.finish(victim, folder)] * times  # type: ignore[arg-type]


def signal_some(trials: Trials, signum: int, both: bool) -> Outcomes:
    """Signal one of two processes, or both, at a random moment; all must end, and the job is finished."""
    while True:
        victim = trials.rng.choice(_TWO)
        seconds = trials.whole(victim)[1]
        child, folder = trials.start(victim)
        while child.wait(0.002) is None and len(list(folder.glob("ready-*"))) < 2:
            pass
        if child.wait(trials.rng.uniform(0.0, 0.6 * seconds)) is not None:
            continue  # it was faster
        ranks = child.children()
        targets = trials.rng.choice([ranks[:1], ranks[1:], *[ranks] * both])
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        if child.wait_for_all(_PATIENCE):
            yield trials.finish(victim, folder)
            continue
        where = child.where()
        child.kill()
        yield f"{victim}: processes {targets} of {ranks} were signalled, and some hang\n{where}"


KINDS: dict[str, tuple[Callable[[Trials], Outcomes], int, str]] = {
    "kills": (kill_all, 100, "SIGKILLs of a whole job at random moments"),
    "signals": (partial(signal_some, signum=signal.SIGTERM, both=True), 20, "SIGTERMs of one or two processes"),
    "ranks": (partial(signal_some, signum=signal.SIGKILL, both=False), 20, "SIGKILLs of one of two processes"),
}


def main(argv: list[str] | None = None) -> list[int]:
    """Return the numbers of faults tried, by kind, and, last, of those that were not survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="draws victims and moments; default: 0")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no new fault begins; default: 60")
    for name, (_, count, text) in KINDS.items():
        parser.add_argument(f"--{name}", type=int, default=count, help=f"{text}; default: {count}")
    options = vars(parser.parse_args(argv))
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    algorithms = len(VICTIMS) // 2 // len(EXECUTORS)
    print(f"{algorithms} algorithms x {len(EXECUTORS)} executors x {{1, 2}} processes; seed {options['seed']}")
    problems: list[str] = []
    counts = []
    until = time.monotonic() + 60 * options["minutes"]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, warnings.catch_warnings(action="ignore"):
        for place, (name, (harm, _, text)) in enumerate(KINDS.items()):
            trials = Trials(Path(folder) / name, random.Random(1000 * options["seed"] + place))
            begin, tried, lost = time.monotonic(), 0, len(problems)
            for problem in itertools.islice(harm(trials), options[name]):
                tried += 1
                problems += [] if problem is None else [f"{name}: {problem}"]
                if time.monotonic() > until:
                    break
            survived = tried - (len(problems) - lost)
            print(f"{text}: {tried} tried, {survived} survived, {time.monotonic() - begin:.0f} s", flush=True)
            counts.append(tried)
    print(*problems, sep="\n")
    return [*counts, len(problems)]


if __name__ == "__main__":
    sys.exit(int(main()[-1] > 0))
