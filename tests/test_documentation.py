"""The example of docs/algorithms.md runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"


def test_an_algorithm_of_ones_own_in_30_lines() -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 30
    names: dict[str, Any] = {}
    exec(code, names)
    # clients of 1 and 3 samples reach 3 and 1 from 0; the first is shortened to 2
    clients = quadratic_clients([1.0, 1.0], [3.0, 1.0], sizes=[1, 3])
    weights = fit_quadratic(names["BoundedFedAvg"](2.0, clients_per_round=1.0), Quadratic(1.0), clients, rounds=1)
    assert float(weights) == pytest.approx((1 * 2.0 + 3 * 1.0) / 4, abs=1e-15)
