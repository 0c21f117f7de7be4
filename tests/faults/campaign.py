"""The faults of the campaign: each function harms victims in one way, and yields what is wrong, or ``None``, once each.

A victim survives if all its processes end, and the same command goes on to the end that it would have had, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from faults.victims import VICTIMS, Trials

Outcomes = Iterator[str | None]
_PATIENCE = 60.0  # seconds in which the processes of a victim end
_TWO = [victim for victim in VICTIMS if victim.devices == 2]


def kills(trials: Trials) -> Outcomes:
    """Kill all processes of a victim at a random moment, one to three times, and finish it."""
    rng = trials.rng
    while True:
        victim, folder = rng.choice(VICTIMS), trials.new_folder()
        seconds, times = trials.whole(victim)[1], 0
        for _ in range(rng.randint(1, 3)):
            child = trials.start(victim, folder)
            if child.wait(rng.uniform(0.0, seconds)) is None:
                times += 1
            child.kill()
        problem = trials.finish(victim, folder)
        yield from [problem] * times
        if problem is None:
            trials.remove(folder)


def signals(trials: Trials, signum: int = signal.SIGTERM) -> Outcomes:
    """Signal one of two processes, or both, at a random moment; all must end, and the job is finished."""
    rng = trials.rng
    while True:
        victim, folder = rng.choice(_TWO), trials.new_folder()
        seconds = trials.whole(victim)[1]
        child = trials.start(victim, folder)
        while child.wait(0.0) is None and not all((folder / f"ready-{rank}").exists() for rank in range(2)):
            time.sleep(0.002)
        if child.wait(rng.uniform(0.0, 0.6 * seconds)) is not None:
            continue  # it was faster
        ranks = child.children()
        targets = rng.choice([ranks[:1], ranks[1:], ranks] if signum == signal.SIGTERM else [ranks[:1], ranks[1:]])
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        if not child.wait_for_all(_PATIENCE):
            where = child.where()
            child.kill()
            yield f"{victim}: processes {targets} of {ranks} were signalled, and some hang\n{where}"
            continue
        problem = trials.finish(victim, folder)
        yield problem
        if problem is None:
            trials.remove(folder)


def dead_ranks(trials: Trials) -> Outcomes:
    """Kill one of two processes at a random moment; the other must end, too."""
    yield from signals(trials, signal.SIGKILL)
