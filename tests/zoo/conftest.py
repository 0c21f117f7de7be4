from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def stacks_look_fast(auto_chooses_the_reference: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``executor="auto"`` stack whatever it may stack, whether it is faster or not."""
    monkeypatch.setattr("fl_lightning.executors.auto._loss_of_a_stack", lambda *counts: None)


@pytest.fixture(autouse=True)
def no_search_for_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each trainer the search for plugins in the environment, a third of the time of so small a fit."""
    monkeypatch.setattr("lightning.fabric.utilities.registry.entry_points", lambda **kwargs: [])
