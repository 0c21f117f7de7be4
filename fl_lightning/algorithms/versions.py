"""The versions of this package and of those that results depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

__version__ = "0.1.0"

_installed = cache(version)  # reads a package's files, which takes milliseconds


def package_versions() -> dict[str, str]:
    """Return the versions of Python, torch, Lightning and NumPy."""
    return {"python": platform.python_version(), **{name: _installed(name) for name in ("torch", "lightning", "numpy")}}
