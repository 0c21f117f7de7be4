"""Parameters of tests with marks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def with_marks(names: Iterable[str], by_default: Collection[str]) -> list[Any]:
    """Return names as parameters, of which all but some are long tests."""
    return [pytest.param(name, marks=() if name in by_default else pytest.mark.long) for name in names]
