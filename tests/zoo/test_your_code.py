"""The examples of docs/your-code.md: one of each pair is stacked, and both train to the same weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from zoo.entry import Entry
from zoo.fitting import Fit, fit
from zoo.outcome import differences

PAGE = Path(__file__).parents[2] / "docs" / "your-code.md"
BEGINNING, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
TITLES = re.findall(r"### (.*)\n\n(?:(?!###)[^`]|`(?!``))*```python", PAGE.read_text(encoding="utf-8"))


def fitted(block: str, name: str, executor: str) -> Fit:
    """Train the module of an example."""
    defined: dict[str, Any] = {}
    exec(BEGINNING + block, defined)
    return fit(Entry(name, defined[name], dtype=torch.float64), executor)


def test_every_example_has_a_title() -> None:
    assert len(TITLES) == len(BLOCKS) >= 9


@pytest.mark.parametrize("block", BLOCKS, ids=TITLES)
def test_examples(block: str) -> None:
    alone, stacked = fitted(block, "OneAfterTheOther", "vectorized"), fitted(block, "Stacked", "vectorized")
    assert alone.cause is not None
    assert stacked.cause is None
    assert not differences(alone.outcome.weights, stacked.outcome.weights, 1e-6)
    assert not differences(fitted(block, "Stacked", "sequential").outcome.weights, stacked.outcome.weights, 1e-6)
