"""The faults of the campaign: each function harms victims in one way, and yields what is wrong, or ``None``, once each.

A victim survives if all its processes end, and the same command goes on to the end that it would have had, bit for bit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from faults.forked import Forked
from faults.victims import VICTIMS, Trials, Victim, train
from faults.writing import Writer
from fl_lightning.checked_file import CheckedFile
from helpers.full_disk import limited_files

Outcomes = Iterator[str | None]
_PATIENCE = 60.0  # seconds in which the processes of a victim end
_TWO = [victim for victim in VICTIMS if victim.devices == 2]
_FILES = ("last.ckpt", "last.previous.ckpt", "last.ckpt.sha256")


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


# ---- checkpoints ----


def writes(trials: Trials) -> Outcomes:
    """Kill a victim inside the write of a checkpoint, on two devices, with temporary files on the other one."""
    devices = [Path(folder) for folder in ("/dev/shm", tempfile.gettempdir()) if os.access(folder, os.W_OK)]
    writer = Writer(devices, trials.rng)
    try:
        while True:
            yield writer.kill_once()
    finally:
        writer.remove()


def damages(trials: Trials) -> Outcomes:
    """Damage one of the files of a killed victim: it is resumed from another, or the error says how."""
    rng = trials.rng
    while True:
        victim, folder = rng.choice([victim for victim in VICTIMS if victim.devices == 1]), trials.new_folder()
        child = trials.start(victim, folder)
        child.wait(trials.whole(victim)[1] * rng.uniform(0.6, 0.9))
        child.kill()
        (folder / "final.pt").unlink(missing_ok=True)
        files = [folder / name for name in _FILES if (folder / name).exists()]
        if not files:
            continue
        file = rng.choice(files)
        how = damage(file, rng)
        problem = trials.finish(victim, folder)
        if problem is not None and file.suffix == ".sha256" and "If only the list of checksums" in problem:
            file.unlink()  # as the error says
            problem = trials.finish(victim, folder)
        yield None if problem is None else f"{how}: {problem}"
        if problem is None:
            trials.remove(folder)


def damage(path: Path, rng: Any) -> str:
    """Flip a bit of a file, cut it, empty it or remove it; return what was done."""
    content = bytearray(path.read_bytes())
    how = rng.choice(["flipped", "flipped", "cut", "emptied", "removed"])
    if how == "flipped":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    if how == "cut":
        del content[rng.randrange(len(content)) :]
    path.unlink()
    if how != "removed":
        path.write_bytes(b"" if how == "emptied" else content)
    return f"{path.name} {how}"


def full_disks(trials: Trials) -> Outcomes:
    """Let no file grow beyond a random length while a victim trains: an error, and nothing is lost."""
    rng = trials.rng
    while True:
        victim, folder = rng.choice([victim for victim in VICTIMS if victim.devices == 1]), trials.new_folder()
        child = trials.start(victim, folder)
        child.wait(trials.whole(victim)[1] * rng.uniform(0.0, 0.9))
        child.kill()
        (folder / "final.pt").unlink(missing_ok=True)
        child = Forked(partial(_train_on_a_full_disk, rng.randrange(60_000), victim, folder), folder / "full")
        status = child.wait(_PATIENCE)
        child.kill()
        if status is None or status < 0:
            yield f"{victim}: with a full disk it {'hangs' if status is None else f'ended with {status}'}"
            continue
        last = CheckedFile(folder / "last.ckpt")
        if last.path.exists() and last.newest_intact() is None:
            yield f"{victim}: after a full disk no checkpoint is whole"
            continue
        problem = trials.finish(victim, folder)
        yield problem
        if problem is None:
            trials.remove(folder)


def _train_on_a_full_disk(size: int, victim: Victim, folder: Path) -> None:
    with limited_files(size):
        train(victim, folder)
