"""Wrong draws of a sampler of a user's own: the error has the hint for the returned value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.toys import Quadratic, clients_that_reach, fit_quadratic

from fl_lightning import FedAvg
from fl_lightning.parts import ClientSampler

CLIENTS = clients_that_reach([[2.0], [4.0]], [1, 1])


class Drawing(ClientSampler):
    """Draws what it is given."""

    def __init__(self, drawn: Any) -> None:
        self.drawn = drawn

    def cohort_size(self, num_clients: int) -> int:
        return 2

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> Any:
        return self.drawn


@pytest.mark.parametrize(
    ("drawn", "way_out"),
    [
        (None, "got None. Is a `return` missing"),
        ({0, 1}, r"got {0, 1}. Make an array of it with `np.array\(sorted\(clients\)\)`"),
        ((client for client in [0, 1]), r"Make an array of it with `np.array\(list\(clients\)\)`"),
        (np.array([True, False]), r"`np.flatnonzero\(mask\)`"),
        (np.array([0.0, 1.0]), r"`clients.astype\(int\)`"),
        (["0", "1"], r"`clients.astype\(int\)`"),
        (1, r"got 1. Give one array with a client after the other"),
        ([[0], [1]], r"Give one array with a client after the other"),
        ([0, 0], r"got \[0, 0\]. Each client trains once in a round"),
        ([0, 2], "clients are numbered by position"),
    ],
)
def test_what_is_no_draw_gets_the_hint_for_it(drawn: Any, way_out: str) -> None:
    text = rf"`Drawing.draw` must return distinct whole numbers from 0 to 1, .*{way_out}"
    with pytest.raises(ValueError, match=text):
        fit_quadratic(FedAvg(sampler=Drawing(drawn)), Quadratic(1.0, [0.0]), CLIENTS, 1)
