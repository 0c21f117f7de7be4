from __future__ import annotations

import pytest

from fl_lightning.executors.stacked.timing import StepTiming


@pytest.fixture(autouse=True)
def stacks_look_fast(auto_chooses_the_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``executor="auto"`` stack whatever it may stack, whatever the clock says."""
    monkeypatch.setattr(StepTiming, "seconds_at_once", lambda self: 0.0)


@pytest.fixture(autouse=True)
def no_search_for_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each trainer the search for plugins in the environment, a third of the time of so small a fit."""
    monkeypatch.setattr("lightning.fabric.utilities.registry.entry_points", lambda **kwargs: [])
