"""A file that is written again and again, of which a whole one is always left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fl_lightning.atomic_file import atomic_file, checksum, sync, temporary_file


class CheckedFile:
    """A file, the one before it, and the checksums of both.

    Beside ``last.ckpt`` there are ``last.previous.ckpt`` and ``last.ckpt.sha256``, which ``sha256sum -c`` reads. A kill
    at any moment, or a full disk, leaves at least one of the two files whole, and the checksums tell which.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.previous = path.with_name(f"{path.stem}.previous{path.suffix}")
        self.checksums = path.with_name(f"{path.name}.sha256")
        self._written = ""  # checksum of what this object wrote

    def claim(self) -> bool:
        """Take the file's name, if no other run has; return whether this one has it now."""
        if self.path.exists() or self.previous.exists():
            return False
        try:
            self.checksums.open("x").close()
        except FileExistsError:
            return False
        return True

    @contextmanager
    def replaced(self) -> Iterator[Path]:
        """Yield the path of a temporary file, to be written in the block.

        At its end it becomes the file, and the file becomes the previous one. A damaged file does not take the place of
        the previous one. If the block raises, all stays as it was.

        Raises:
            RuntimeError: If somebody else writes or removes one of the files meanwhile.
        """
        with temporary_file(self.path) as temporary:
            yield temporary
            try:
                self._take(temporary)
            except FileNotFoundError as error:
                raise RuntimeError(
                    f"A file vanished while {self.path} was written: {error.filename}. Another run may write into the "
                    "same folder. Give each run a folder of its own, and resume from the last file that is there."
                ) from error

    def _take(self, temporary: Path) -> None:
        """Let a file that is written take the place of the newest one."""
        sync(temporary)
        digest, known = checksum(temporary), self._known() or []
        if self._written and known[:1] != [self._written]:
            raise RuntimeError(
                f"Another run writes {self.path}, too. Its file stays as it is. Give each run a folder of its own."
            )
        before = known[1:]
        is_kept = self.path.exists() and (bool(self._written) or self.is_intact(self.path))
        if is_kept:
            before = [self._written or checksum(self.path)]
        # a file has its name only after its checksum is known
        with atomic_file(self.checksums) as listed:
            rows = zip([digest, *before], (self.path.name, self.previous.name), strict=False)
            listed.write_text("".join(f"{checksum}  {name}\n" for checksum, name in rows))
        if is_kept:
            os.replace(self.path, self.previous)
        os.replace(temporary, self.path)
        sync(self.path.parent)
        self._written = digest

    def is_intact(self, path: Path) -> bool:
        """Return whether a file is as it was written; true if there is no list of checksums."""
        known = self._known()
        return path.exists() and (known is None or checksum(path) in known)

    def newest_intact(self) -> Path | None:
        """Return the file, or the previous one if that is damaged or missing; ``None`` if both are."""
        return next((path for path in (self.path, self.previous) if self.is_intact(path)), None)

    def _known(self) -> list[str] | None:
        """Return the checksums: of the file, and of the previous one if there is one; ``None`` without a list."""
        if not self.checksums.exists():
            return None
        # a list can be damaged, too
        return [line.split()[0] for line in self.checksums.read_text(errors="replace").splitlines() if line.split()]
