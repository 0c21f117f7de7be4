"""Seeds of all that is random."""

from __future__ import annotations

import random

import numpy as np
import torch

from fl_lightning.seeding import Stream, derive_seed, seed_global_generators


def test_seeds_depend_on_every_argument_and_never_change() -> None:
    assert derive_seed(1, Stream.CLIENT, 2, 3) == 3800415822099797715
    seeds = {derive_seed(s, stream, r, k) for s in (0, 1) for stream in Stream for r in (0, 1) for k in (0, 1)}
    assert len(seeds) == 2 * len(Stream) * 2 * 2


def test_global_generators_are_seeded_alike() -> None:
    draws = []
    for _ in range(2):
        seed_global_generators(1, Stream.CLIENT, 5, 6)
        draws.append((random.random(), np.random.rand(), torch.rand(()).item()))
    assert draws[0] == draws[1]
