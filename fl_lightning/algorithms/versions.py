"""The versions of this package and of those that results depend on."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version

__version__ = "0.1.0"

#: Without the cache each look-up would read a package's files, which takes milliseconds.
_installed = cache(version)


def package_versions() -> dict[str, str]:
    """Return the versions of Python, torch, Lightning and NumPy."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "lightning", "numpy"):
        versions[name] = _installed(name)
    return versions
