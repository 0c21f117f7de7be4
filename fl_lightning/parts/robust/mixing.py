"""Mixtures of updates, which make honest ones more alike before a robust rule merges them."""

from __future__ import annotations

import numpy as np
import torch

from fl_lightning.arguments import check_count, check_positive
from fl_lightning.parts.robust.base import PreAggregation, check_enough
from fl_lightning.parts.robust.updates import Updates
from fl_lightning.seeding import Stream, numpy_generator


class Bucketing(PreAggregation):
    """Means of ``size`` updates drawn at random; the last bucket may have fewer (Karimireddy et al. 2022).

    One arbitrary update spoils a whole bucket. The rule that follows must tolerate as many bad buckets as there are bad
    updates, out of ``m / size`` buckets.

    Args:
        size: Updates in a bucket, at least 1; 2 is usual.

    Raises:
        ValueError: If ``size`` is below 1.
    """

    def __init__(self, size: int = 2) -> None:
        check_count("size", size)
        self.size = int(size)
        self._round = self._merges = 0

    def on_round_start(self, round_index: int) -> None:
        """Draw other buckets than in the last round."""
        self._round, self._merges = round_index, 0

    def mix(self, updates: Updates) -> Updates:
        """Return the buckets."""
        rows = len(updates)
        rng = numpy_generator(self.federation.seed, Stream.BUCKETS, self._round, self._merges)
        self._merges += 1  # an asynchronous server may move several times in a round
        places = np.empty(rows, dtype=np.int64)
        places[rng.permutation(rows)] = np.arange(rows) // self.size
        matrix = torch.zeros(-(-rows // self.size), rows, dtype=torch.float64)
        matrix[torch.from_numpy(places), torch.arange(rows)] = 1.0
        return updates.mixed(matrix / matrix.sum(1, keepdim=True))


class NormBounding(PreAggregation):
    """Updates longer than ``norm`` are scaled down to it by the server (Sun et al. 2019).

    Args:
        norm: Largest L2 norm, greater than 0.

    Raises:
        ValueError: If ``norm`` is not a finite number greater than 0.
    """

    def __init__(self, norm: float) -> None:
        check_positive("norm", norm)
        self.norm = norm

    def mix(self, updates: Updates) -> Updates:
        """Return the bounded updates."""
        lengths = updates.distances_to(updates.zeros())
        return updates.mixed(torch.diag((self.norm / lengths).clamp(max=1.0)))


class NearestNeighborMixing(PreAggregation):
    """Each update becomes the mean of the ``m - f`` updates nearest to it, itself among them (Allouah et al. 2023).

    Args:
        num_byzantine: f, how many of the updates may be arbitrary.

    Raises:
        ValueError: If it is negative; in a round, if there are no more updates than that.
    """

    def __init__(self, num_byzantine: int) -> None:
        check_count("num_byzantine", num_byzantine, 0, "It is how many of a round's updates may be arbitrary.")
        self.num_byzantine = int(num_byzantine)

    def mix(self, updates: Updates) -> Updates:
        """Return the means."""
        check_enough(updates, self.num_byzantine + 1, self)
        near = len(updates) - self.num_byzantine
        nearest = updates.distances().sort(dim=1, stable=True).indices[:, :near]
        matrix = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=nearest.device)
        return updates.mixed(matrix.scatter(1, nearest, 1 / near))
