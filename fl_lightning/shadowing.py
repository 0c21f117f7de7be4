"""A guard for the packages that stand beside this one, which a folder of the user's may hide."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path


def warn_of_shadow(name: str) -> None:
    """Warn if ``import name`` finds something other than the package of that name beside this library.

    Args:
        name: A package that is installed with this library.
    """
    ours = Path(__file__).parents[1] / name
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # it is being imported, or is no package at all
        return
    if spec is None or not ours.is_dir():
        return
    found = list(spec.submodule_search_locations or ()) or [str(spec.origin)]
    if not any(Path(place).resolve() == ours.resolve() for place in found):
        warnings.warn(
            f"`import {name}` finds {found[0]}, which hides the package `{name}` of fl-lightning in {ours}. Rename "
            "your folder or file to use that package, or start Python in another folder.",
            stacklevel=3,
        )
