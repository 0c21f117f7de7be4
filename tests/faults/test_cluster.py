"""A short campaign of what clusters do loses nothing."""

from __future__ import annotations

import pytest
from faults.cluster import KINDS, main


@pytest.mark.long
def test_a_few_attempts_of_each_kind_are_survived() -> None:
    few = [word for name in KINDS for word in (f"--{name}", "2")]
    assert main(few) == {name: (2, 0) for name in KINDS}
