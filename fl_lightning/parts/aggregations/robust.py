"""Aggregations that tolerate some arbitrary updates, and mixtures of updates that may come before them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.messages import ClientResult
from fl_lightning.parts.part import Part
from fl_lightning.seeding import Stream, numpy_generator
from fl_lightning.settings import Count, Natural, NotNegative, Positive
from fl_lightning.vectors import checked_vector, share_of, sum_dtype

#: Parameters that are looked at together: 100 clients' take 50 MiB in float64.
BLOCK = 1 << 16
#: Bytes of rows that are kept for the next look at them.
_KEPT = 256 * 2**20


class Updates:
    """``delta`` of each result, or weighted sums of them, as rows; computed in blocks of columns.

    Besides the results themselves, which hold a model each, only one block is in memory: m times 65,536 numbers. Rows
    of 256 MiB in whole, or less, are kept.

    For example, buckets of two of four clients' updates are ``Updates(results).mixed(matrix)`` with the matrix
    ``[[1/2, 1/2, 0, 0], [0, 0, 1/2, 1/2]]``: two rows, each the mean of two updates.

    Args:
        results: The clients' results, at least one.
        matrix: Row i is ``sum_j matrix[i, j] delta_j``, shape ``(rows, len(results))``; the updates as they are if
            ``None``.

    Attributes:
        results: The clients' results, which are not to be changed.
        size: Number of parameters.
        weights: How much each row counts for the module's buffers, shape ``(rows,)``: alike, unless a rule sets the
            weights that it gives the rows' parameters.
    """

    def __init__(self, results: Sequence[ClientResult], matrix: Tensor | None = None) -> None:
        self.results = list(results)
        self._matrix = matrix
        self._kept: list[Tensor] | None = None
        self.size = len(self.results[0].parameters)
        self.weights = torch.ones(len(self), dtype=torch.float64)

    def __len__(self) -> int:
        return len(self.results) if self._matrix is None else len(self._matrix)

    def mixed(self, matrix: Tensor) -> Updates:
        """Return weighted sums of these rows, ``matrix`` of shape ``(new rows, rows)``."""
        return Updates(self.results, matrix if self._matrix is None else matrix @ self._matrix)

    def blocks(self) -> Iterator[Tensor]:
        """Yield the columns in blocks of shape ``(rows, columns)``, float64; they are not to be changed."""
        if self._kept is None and len(self) * self.size * 8 <= _KEPT:
            self._kept = list(self._computed())
        if self._kept is None:
            yield from self._computed()
        else:
            yield from self._kept

    def zeros(self) -> Tensor:
        """Return a row of zeros, shape ``(size,)``, in the blocks' type and on their device."""
        vector = self.results[0].vector
        return torch.zeros(self.size, dtype=sum_dtype(vector), device=vector.device)

    def _computed(self) -> Iterator[Tensor]:
        kind = sum_dtype(self.results[0].vector)
        for begin in range(0, self.size, BLOCK):
            span = slice(begin, min(begin + BLOCK, self.size))
            rows: list[Tensor] = []
            for result in self.results:
                trained = result.parameters[span].to(kind)
                received = result.received_parameters[span].to(kind)
                rows.append(trained - received)
            block = torch.stack(rows)
            yield block if self._matrix is None else self._matrix.to(block) @ block

    def combined(self, weights: Tensor) -> Tensor:
        """Return ``sum_i weights[i] row_i``, shape ``(size,)``, float64."""
        return torch.cat([weights.to(block) @ block for block in self.blocks()])

    def buffers(self) -> Tensor:
        """Return the mean of the clients' buffers by :attr:`weights`, float64."""
        weights = self.weights.cpu()
        if self._matrix is not None:
            weights = weights @ self._matrix.cpu()
        kind = sum_dtype(self.results[0].vector)
        total = torch.zeros_like(self.results[0].buffers)
        for result, weight in zip(self.results, weights.tolist(), strict=True):
            total = total + weight * result.buffers.to(kind)
        return total / float(weights.sum())

    def distances(self) -> Tensor:
        """Return the squared distances between all pairs of rows, shape ``(rows, rows)``, float64."""
        # Not by way of inner products: one long row would drown the short distances of the others.
        exact = "donot_use_mm_for_euclid_dist"
        squares = [torch.cdist(block, block, compute_mode=exact).square() for block in self.blocks()]
        return torch.stack(squares).sum(0)

    def distances_to(self, center: Tensor) -> Tensor:
        """Return the distance of each row to ``center``, shape ``(rows,)``, float64."""
        parts = zip(self.blocks(), center.split(BLOCK), strict=True)
        squares = [(block - part).square().sum(1) for block, part in parts]
        return torch.stack(squares).sum(0).sqrt()


class PreAggregation(Part, ABC):
    """Replaces the updates by mixtures of them, so that honest ones are more alike before they are aggregated."""

    @abstractmethod
    def mix(self, updates: Updates) -> Updates:
        """Return the mixtures, such as ``updates.mixed(matrix)``."""


@dataclass(eq=False, repr=False)
class RobustAggregation(Aggregation):
    """Merges updates by a rule that tolerates some arbitrary ones; the server moves by the result.

    The module's buffers become the mean of the clients', with the weights that the rule gives their parameters, or the
    plain one of a rule without weights. It does not tolerate arbitrary ones; ``buffers="server"`` keeps them out.

    All clients have the same weight, because a client could lie about its size. A stale result of an asynchronous
    algorithm counts like a fresh one. The results of a round are kept until the server moves: m models of P parameters
    take ``4 m P`` bytes in single precision, 4 GB for 100 clients of 10^7 parameters.

    Attributes:
        before: A step before the rule: :class:`Bucketing`, :class:`NearestNeighborMixing` or :class:`NormBounding`.

    Raises:
        TypeError: If ``before`` is none of these.
    """

    _: KW_ONLY
    before: PreAggregation | None = None
    merges_buffers = True

    @override
    def merge(self, model: Tensor, results: Sequence[ClientResult]) -> Tensor:
        """Return the server's parameters moved by the rule, and the clients' buffers, float64 of shape ``(size,)``."""
        updates = Updates(results)
        if self.before is not None:
            updates = self.before.mix(updates)
        current = model[: updates.size].to(sum_dtype(model))
        step = checked_vector(self, "rule", self.rule(updates), current)
        return torch.cat([current + step, updates.buffers()])

    @abstractmethod
    def rule(self, updates: Updates) -> Tensor:
        """Return the server's step, float64 of shape ``(num_parameters,)``."""


def _check_enough(updates: Updates, needed: int, who: object) -> None:
    """Raise ``ValueError`` if a round has fewer updates, or mixtures of them, than a rule needs."""
    if len(updates) < needed:
        raise ValueError(
            f"{who} needs {needed} updates, or mixtures of them, got {len(updates)}. Let more clients train in a round."
        )


def _trimmed_means(updates: Updates, trim: int) -> Tensor:
    """Return the mean of each column without its ``trim`` largest and smallest values, shape ``(size,)``."""
    end = len(updates) - trim
    means: list[Tensor] = []
    for block in updates.blocks():
        ascending = block.sort(0).values
        means.append(ascending[trim:end].mean(0))
    return torch.cat(means)


@dataclass(eq=False, repr=False)
class Median(RobustAggregation):
    """The median of each parameter's updates (Yin et al. 2018); of an even number, the mean of the middle two.

    As long as fewer than half of the updates are arbitrary, each parameter moves within the range of the honest ones.

    Args:
        before: A step before the rule; see :class:`RobustAggregation`.
    """

    @override
    def rule(self, updates: Updates) -> Tensor:
        return _trimmed_means(updates, (len(updates) - 1) // 2)


@dataclass(eq=False, repr=False)
class TrimmedMean(RobustAggregation):
    """The mean of each parameter's updates without the ``trim`` largest and the ``trim`` smallest (Yin et al. 2018).

    Up to ``trim`` updates may be arbitrary.

    Args:
        trim: How many are left out at each end: a whole number, or a share of the updates in [0, 0.5), rounded down.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If ``trim`` is out of its range; in a round, if nothing would be left.
    """

    trim: Natural | Annotated[float, "[0, 0.5)"]

    @override
    def rule(self, updates: Updates) -> Tensor:
        trim = self.trim
        if not isinstance(trim, Integral):
            trim = share_of(trim, len(updates))
        trim = int(trim)
        _check_enough(updates, 2 * trim + 1, self)
        return _trimmed_means(updates, trim)


@dataclass(eq=False, repr=False)
class Krum(RobustAggregation):
    """The update closest to its ``m - f - 2`` nearest others (Blanchard et al. 2017); multi-Krum averages several.

    The score of an update is the sum of its squared distances to these others. m is the number of updates.

    Args:
        num_byzantine: f, how many of the updates may be arbitrary; ``m >= 2 f + 3`` is needed.
        num_selected: How many updates of the smallest scores are averaged: 1 is Krum, more is multi-Krum; at most
            ``m - f``.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If an argument is out of its range; in a round, if there are too few updates.
    """

    num_byzantine: Natural
    num_selected: Count = 1

    @override
    def rule(self, updates: Updates) -> Tensor:
        needed = max(2 * self.num_byzantine + 3, self.num_selected + self.num_byzantine)
        _check_enough(updates, needed, self)
        ascending = updates.distances().sort(1).values
        # The first of a row's sorted distances is the one to itself, 0.
        nearest = ascending[:, 1 : len(updates) - self.num_byzantine - 1]
        scores = nearest.sum(1)
        chosen = scores.sort(stable=True).indices[: self.num_selected]
        weights = torch.zeros(len(updates), dtype=nearest.dtype, device=nearest.device)
        updates.weights = weights.index_fill(0, chosen, 1 / self.num_selected)
        return updates.combined(updates.weights)


@dataclass(eq=False, repr=False)
class GeometricMedian(RobustAggregation):
    """The point with the smallest sum of distances to the updates (Pillutla et al. 2022, RFA).

    It is found by the smoothed Weiszfeld algorithm, which starts at 0 and repeatedly takes the mean with the weights
    ``1 / max(smoothing, distance)``. Fewer than half of the updates may be arbitrary.

    Args:
        smoothing: nu, greater than 0, in the units of the updates: below this distance an update's weight no longer
            grows.
        max_iterations: Largest number of steps; each reads all updates once.
        tolerance: The algorithm stops when a step is shorter than this share of the way so far.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    smoothing: Positive = 1e-6
    max_iterations: Count = 100
    tolerance: NotNegative = 1e-6

    @override
    def rule(self, updates: Updates) -> Tensor:
        center = updates.zeros()
        for _ in range(self.max_iterations):
            weights = 1 / updates.distances_to(center).clamp(min=self.smoothing)
            updates.weights = weights / weights.sum()
            moved = updates.combined(updates.weights)
            step = torch.linalg.vector_norm(moved - center)
            center = moved
            if step <= self.tolerance * torch.linalg.vector_norm(center):
                break
        return center


@dataclass(eq=False, repr=False)
class CenteredClipping(RobustAggregation):
    """``v <- v + mean_i (x_i - v) min(1, radius / |x_i - v|)``, from the last round's v (Karimireddy et al. 2021).

    Args:
        radius: tau, greater than 0: the distance from which an update's influence no longer grows.
        iterations: Steps of a round.
        before: A step before the rule; see :class:`RobustAggregation`.

    Raises:
        ValueError: If an argument is out of its range.
    """

    radius: Positive
    iterations: Count = 1

    @override
    def setup(self, federation: Federation) -> None:
        self.center: Tensor | None
        self.add_state("center", None)

    @override
    def rule(self, updates: Updates) -> Tensor:
        center = updates.zeros()
        if self.center is not None:
            center = self.center.to(center)
        for _ in range(self.iterations):
            updates.weights = (self.radius / updates.distances_to(center)).clamp(max=1.0) / len(updates)
            center = center * (1 - updates.weights.sum()) + updates.combined(updates.weights)
        self.center = center
        return center


@dataclass(eq=False, repr=False)
class Bucketing(PreAggregation):
    """Means of ``size`` updates drawn at random; the last bucket may have fewer (Karimireddy et al. 2022).

    One arbitrary update spoils a whole bucket. The rule that follows must tolerate as many bad buckets as there are bad
    updates, out of ``m / size`` buckets.

    Args:
        size: Updates in a bucket, at least 1; 2 is usual.

    Raises:
        ValueError: If ``size`` is below 1.
    """

    size: Count = 2

    @override
    def on_round_start(self, round_index: int) -> None:
        """Draw other buckets than in the last round."""
        self._merges = 0

    @override
    def mix(self, updates: Updates) -> Updates:
        rows = len(updates)
        rng = numpy_generator(self.federation.seed, Stream.BUCKETS, self.round, self._merges)
        # An asynchronous server may move several times in a round.
        self._merges += 1
        places = np.empty(rows, dtype=np.int64)
        places[rng.permutation(rows)] = np.arange(rows) // self.size
        buckets = math.ceil(rows / self.size)
        matrix = torch.zeros(buckets, rows, dtype=torch.float64)
        matrix[torch.from_numpy(places), torch.arange(rows)] = 1.0
        return updates.mixed(matrix / matrix.sum(1, keepdim=True))


@dataclass(eq=False, repr=False)
class NormBounding(PreAggregation):
    """Updates longer than ``norm`` are scaled down to it by the server (Sun et al. 2019).

    Args:
        norm: Largest L2 norm, greater than 0.

    Raises:
        ValueError: If ``norm`` is not a finite number greater than 0.
    """

    norm: Positive

    @override
    def mix(self, updates: Updates) -> Updates:
        lengths = updates.distances_to(updates.zeros())
        shares = (self.norm / lengths).clamp(max=1.0)
        return updates.mixed(torch.diag(shares))


@dataclass(eq=False, repr=False)
class NearestNeighborMixing(PreAggregation):
    """Each update becomes the mean of the ``m - f`` updates nearest to it, itself included (Allouah et al. 2023).

    Args:
        num_byzantine: f, how many of the updates may be arbitrary.

    Raises:
        ValueError: If it is negative; in a round, if there are no more updates than that.
    """

    num_byzantine: Natural

    @override
    def mix(self, updates: Updates) -> Updates:
        _check_enough(updates, self.num_byzantine + 1, self)
        near = len(updates) - self.num_byzantine
        nearest = updates.distances().sort(dim=1, stable=True).indices[:, :near]
        matrix = torch.zeros(len(updates), len(updates), dtype=torch.float64, device=nearest.device)
        return updates.mixed(matrix.scatter(1, nearest, 1 / near))
