"""The version of the code that made a result."""

from __future__ import annotations

import subprocess
from pathlib import Path

from fl_lightning.algorithms.versions import __version__


def code_version() -> str:
    """Return the version of the package, with the commit if it is a git checkout: ``0.1.0+g1a2b3c4d5e``.

    The version of a changed checkout ends with ``-dirty``.
    """
    folder = Path(__file__).parents[1]
    commit = _git(folder, "rev-parse", "--short=10", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return __version__  # a package that is installed inside of another checkout
    dirty = "-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else ""
    return f"{__version__}+g{commit}{dirty}"


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
