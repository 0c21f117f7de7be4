from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process and its workers import `faulty`."""
    monkeypatch.syspath_prepend(Path(__file__).parent)
