"""The versions of the code and of the packages that made a result."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path


def code_version() -> str:
    """Return the version of the package, with the commit if it is a git checkout: ``0.1.0+g1a2b3c4d5e``.

    The version of a changed checkout ends with ``-dirty``.
    """
    import fl_lightning

    folder = Path(fl_lightning.__file__).parent
    commit = _git(folder, "rev-parse", "--short=10", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return fl_lightning.__version__  # a package that is installed inside of another checkout
    dirty = "-dirty" if _git(folder, "status", "--porcelain", "--untracked-files=no") else ""
    return f"{fl_lightning.__version__}+g{commit}{dirty}"


def package_versions() -> dict[str, str]:
    """Return the versions of Python, torch, Lightning and NumPy."""
    import lightning
    import numpy
    import torch

    packages = {package.__name__: str(package.__version__) for package in (torch, lightning, numpy)}
    return {"python": platform.python_version(), **packages}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
