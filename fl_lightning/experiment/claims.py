"""Claims: which runner runs a cell, and in which attempt.

The claims of a cell are files ``claim-1``, ``claim-2``, ... in its folder, one for each attempt. The one with the
highest number counts. Its holder touches it every few seconds. Another runner takes the cell over by making the claim
with the next number, once the holder has released the cell, or its process is gone, or nothing has touched the claim
for as long as a lease lasts. That time is the other runner's own, so it does not matter what clocks show.

A claim is written under another name, and then linked. A link fails if its name is there, also on NFS. So a claim is
whole or not there, and two runners never have the same number. A holder that stood still, and goes on after its lease,
finds a higher number: it has lost the cell. It then publishes nothing, and what it has written so far is in files of
its own, whose names have its number.

(``filelock.SoftFileLease`` makes its marker first and writes it later. A kill in between leaves an empty marker, which
nobody takes over. It also gives the marker's name to the next holder, so that the former one cannot tell.)
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fl_lightning.experiment.files import json_text, read_json_if_there, remove_files, write_json
from fl_lightning.files import linked_file

LEASE = 30.0
"""Seconds after which a claim that nobody has touched is taken over."""
_BEAT = 1 / 6
"""Share of a lease between two touches."""
_NAME = re.compile(r"claim-(\d+)")


@dataclass(frozen=True)
class Claim:
    """The right to run a cell, until another runner has a claim with a higher number.

    Attributes:
        folder: Folder of the cell.
        number: Number of the attempt, from 1.
    """

    folder: Path
    number: int

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / f"claim-{self.number}"

    def file(self, name: str) -> Path:
        """Return a file that belongs to this attempt alone: ``last-3.ckpt`` for ``last.ckpt``."""
        return self.folder / f"{Path(name).stem}-{self.number}{Path(name).suffix}"

    def earlier(self) -> Iterator[Claim]:
        """Yield the claims before this one, the newest first."""
        for number in range(self.number - 1, 0, -1):
            yield Claim(self.folder, number)

    def is_lost(self) -> bool:
        """Return whether another runner has taken the cell over, or its folder was removed."""
        return newest_claim(self.folder) != self

    def holder(self) -> dict[str, Any]:
        """Return what the file says of its holder; nothing if it cannot be read."""
        return read_json_if_there(self.path) or {}


class LostClaimError(RuntimeError):
    """Another runner has taken over the cell that this process runs."""

    def __init__(self, claim: Claim) -> None:
        super().__init__(f"Another runner has taken over {claim.folder}, since this one stood still for too long.")


def newest_claim(folder: Path) -> Claim | None:
    """Return the claim of a cell that counts; ``None`` if there never was one."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return None
    numbers = []
    for name in names:
        found = _NAME.fullmatch(name)
        if found:
            numbers.append(int(found[1]))
    return Claim(folder, max(numbers)) if numbers else None


def remove_claims(folder: Path) -> None:
    """Remove the claims of a cell that is finished."""
    # A kill has left those with a dot.
    remove_files(folder, "claim-*", ".claim-*")


class Claims:
    """The claims that a runner holds, and those that it waits for.

    Args:
        on_loss: Called by a thread with the folder of a cell that another runner has taken over.
    """

    def __init__(self, on_loss: Callable[[Path], object]) -> None:
        self._on_loss = on_loss
        self._held: dict[Path, Claim] = {}
        # Of claims that others hold: the time of the last touch, and when this runner first saw it, by its own time.
        self._seen: dict[Claim, tuple[int, float]] = {}
        self._told: set[Claim] = set()
        self._beating: threading.Event | None = None

    def take(self, folder: Path) -> Claim | None:
        """Claim a cell, unless another runner has it."""
        folder.mkdir(parents=True, exist_ok=True)
        newest = newest_claim(folder)
        if newest is not None and not self._is_free(newest):
            return None
        claim = Claim(folder, newest.number + 1 if newest else 1)
        record = {
            "host": socket.gethostname(),
            "machine": _machine(),
            "pid": os.getpid(),
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            with linked_file(claim.path) as temporary:
                temporary.write_text(json_text(record), encoding="utf-8")
        except FileExistsError:
            # Another runner was faster.
            return None
        self._held[folder] = claim
        if self._beating is None:
            self._beating = threading.Event()
            threading.Thread(target=self._beat, args=[self._beating], daemon=True, name="claims").start()
        return claim

    def release(self, folder: Path) -> None:
        """Let others have a cell, or remove its claims if it is finished."""
        claim = self._held.pop(folder)
        if (folder / "result.json").exists():
            remove_claims(folder)
        elif not claim.is_lost():
            write_json(claim.path, {"released": True})

    def close(self) -> None:
        """Release all cells."""
        for folder in list(self._held):
            self.release(folder)
        if self._beating is not None:
            self._beating.set()
            self._beating = None

    def waited_for(self) -> list[tuple[Path, str]]:
        """Return who holds the cells that were not free, and since when; no claim is returned twice."""
        waited_for = []
        for claim in self._seen:
            if claim not in self._told and not claim.is_lost():
                waited_for.append((claim.folder, _describe(claim)))
                self._told.add(claim)
        return waited_for

    def _is_free(self, claim: Claim) -> bool:
        """Return whether a claim may be followed by one of this runner."""
        try:
            touched = claim.path.stat().st_mtime_ns
        except FileNotFoundError:
            # The cell has just been finished.
            return False
        holder = claim.holder()
        if holder.get("released") or _is_gone(holder):
            return True
        before, since = self._seen.get(claim, (None, 0.0))
        if before != touched:
            self._seen[claim] = touched, time.monotonic()
            return False
        return time.monotonic() - since >= LEASE

    def _beat(self, ended: threading.Event) -> None:
        while not ended.wait(LEASE * _BEAT):
            for folder, claim in list(self._held.items()):
                # A file server that is away for a while decides nothing.
                with suppress(OSError):
                    if claim.is_lost():
                        self._on_loss(folder)
                    else:
                        os.utime(claim.path)


def _describe(claim: Claim) -> str:
    holder = claim.holder()
    if "pid" not in holder:
        return f"an unknown runner, whose claim {claim.path} cannot be read"
    return f"process {holder['pid']} on {holder['host']}, since {holder['begun']}"


def _is_gone(holder: dict[str, Any]) -> bool:
    """Return whether a holder's process has ended, as far as this machine can tell."""
    if os.name != "posix" or holder.get("machine") != _machine():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        # The process is there, and of another user.
        return False
    return False


def _machine() -> str:
    """Return the name of a boot of a machine; in a container, of the part of its processes that can be seen."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        # The machine does not run Linux.
        return f"{uuid.getnode()}-{socket.gethostname()}"
