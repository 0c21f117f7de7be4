"""Quadratic-programming partition with client sizes, class mixes and feature mixes drawn independently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fl_lightning.partitioners.base import check_enough, check_labels, deal
from fl_lightning.partitioners.partition import Partition
from fl_lightning.partitioners.quadratic.draws import AboveOne, DrawsRandomSolution, StepRule, draw_sizes, group_sums
from fl_lightning.partitioners.quadratic.rounding import round_margins
from fl_lightning.partitioners.quadratic.solver import solve_grouped_qp
from fl_lightning.settings import Count, Natural, Positive, check
from fl_lightning.vectors import to_array

SampleFeatures = np.ndarray | Mapping[str, np.ndarray]

#: Most entries, which are clients times configurations; the solver takes some minutes and 1 GB for as many.
_MAX_ENTRIES = 200_000


@dataclass(frozen=True, eq=False)
class FeatureQPSolution:
    """The stages of a QP partition by classes and features; all numbers count samples.

    Equations are numbered as in ``docs/references.md``.

    Attributes:
        configurations: The combinations of a class and categories that occur, shape (U, 1 + J).
        target: Drawn sizes times drawn mixes, shape (num_clients, G): first the classes, then the categories of one
            feature after the other.
        optimal: A solution of the QP, float64, shape (num_clients, U).
        chosen: The random solution that Algorithm 3 ended with, float64, shape (num_clients, U).
        counts: ``chosen`` in whole samples, int64, shape (num_clients, U).
        bound: A lower bound of the loss, eq. (51), of all feasible matrices, in samples squared.
        optimal_loss: Loss of ``optimal``.
        chosen_loss: Loss of ``chosen``.
        counts_loss: Loss of ``counts``.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> partitioner = FeatureQPPartitioner(3, num_buckets=2, burn_in=100, search=100)
        >>> solution = partitioner.solve(rng.integers(2, size=60), rng.normal(size=(60, 2)))
        >>> solution.counts.sum().item()
        60
    """

    configurations: np.ndarray
    target: np.ndarray
    optimal: np.ndarray
    chosen: np.ndarray
    counts: np.ndarray
    bound: float
    optimal_loss: float
    chosen_loss: float
    counts_loss: float


@dataclass(eq=False)
class FeatureQPPartitioner(DrawsRandomSolution):
    """The partition of RADFed's COVFEAT experiments (Xue et al. 2021, section IV-A; eq. (44), (45), (47)-(51)).

    Like :class:`QPPartitioner`, but a mix of the categories of each feature is drawn for each client as well. The
    partitioner shares out configurations, the combinations of a class and categories that occur: the quadratic program
    finds the number of samples of each configuration for each client, so that clients have the drawn sizes, all samples
    are used, and the clients' classes and categories are as near to the drawn mixes as possible. That solution is not
    unique; Algorithm 3 moves it at random.

    It takes features in addition to the labels. A split or a data module passes only labels, so bind the features:
    ``functools.partial(partitioner, features=features)``.

    Equations are numbered as in ``docs/references.md``.

    Args:
        num_clients: Number of clients, T in the paper.
        size_alpha: mu, concentration of the client sizes; large values make them equal.
        class_alpha: lambda, concentration of the class mixes; near 0 gives one class to a client.
        feature_alpha: theta, concentration of the mixes of each feature's categories.
        num_buckets: Number of quantile buckets for floating-point features.
        burn_in: P, moves of the burn-in; 0 switches it off.
        search: Q, moves of the search; 0 keeps the result of the burn-in. With both 0 the QP's optimum is taken, as
            the original code does for COVFEAT.
        step: xi, the size of a move.
        step_rule: ``"relative"`` takes ``step`` as a share of the smaller of the two entries that lose, ``"absolute"``
            as a number of samples.
        burn_in_stop: Ends the burn-in once the square root of the loss is this multiple of the optimum's. ``None``
            makes all ``burn_in`` moves.
        seed: Seed of all draws.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> partitioner = FeatureQPPartitioner(3, num_buckets=2, burn_in=100, search=100)
        >>> partitioner(rng.integers(2, size=60), rng.normal(size=(60, 2))).num_clients
        3
    """

    num_clients: Count
    size_alpha: Positive = 1.0
    class_alpha: Positive = 0.1
    feature_alpha: Positive = 0.1
    num_buckets: Count = 10
    burn_in: Natural = 100_000
    search: Natural = 500_000
    step: Positive = 0.002
    step_rule: StepRule = "relative"
    burn_in_stop: AboveOne | None = None
    seed: Natural = 0

    def __call__(self, labels: np.ndarray, features: SampleFeatures) -> Partition:
        """Return the partition of a data set; every sample is given to exactly one client.

        Args:
            labels: The class of each sample, integers, shape (num_samples,).
            features: Categorical features of each sample: shape (num_samples, J), or arrays of shape (num_samples,) by
                name. Whole numbers, booleans and strings are categories as they are. Floating-point numbers are cut
                into buckets; :func:`quantile_buckets` does that for whole numbers. For the original code's
                reading, in which each category is a separate feature, give indicator columns.

        Raises:
            TypeError: If labels are not integers.
            ValueError: If shapes do not match, a feature is not finite, there are fewer samples than clients, too many
                configurations, or no sizes with at least one sample each were drawn.
            RuntimeError: If the QP is not solved.
        """
        codes, of_sample = self._configurations(labels, features)
        rng = np.random.default_rng(self.seed)
        counts = self._solve(codes, np.bincount(of_sample), rng).counts
        return Partition(tuple(deal(of_sample, counts, rng, mix=False)))

    def solve(self, labels: np.ndarray, features: SampleFeatures) -> FeatureQPSolution:
        """Return the number of samples of each configuration for each client, with every stage; as in the call."""
        codes, of_sample = self._configurations(labels, features)
        rng = np.random.default_rng(self.seed)
        return self._solve(codes, np.bincount(of_sample), rng)

    def _configurations(self, labels: np.ndarray, features: SampleFeatures) -> tuple[np.ndarray, np.ndarray]:
        """Return the combinations that occur, ascending, shape (U, 1 + J), and that of each sample."""
        labels = check_labels(labels)
        check_enough(self.num_clients, len(labels))
        _, classes = np.unique(labels, return_inverse=True)
        categories = as_categories(features, len(labels), self.num_buckets)
        columns = np.stack([classes, *categories], axis=1)
        codes, of_sample = np.unique(columns, axis=0, return_inverse=True)
        if self.num_clients * len(codes) > _MAX_ENTRIES:
            raise ValueError(
                f"`features` and classes have {len(codes)} combinations; with {self.num_clients} clients that is more "
                f"than {_MAX_ENTRIES} unknowns. Give fewer features, `num_buckets` or clients."
            )
        return codes, of_sample.ravel()

    def _solve(self, codes: np.ndarray, samples: np.ndarray, rng: np.random.Generator) -> FeatureQPSolution:
        """Return the solution for the samples of each configuration, shape (U,)."""
        num_categories = codes.max(axis=0) + 1
        sizes = draw_sizes(self.num_clients, self.size_alpha, int(samples.sum()), rng)
        # The classes come first, then the categories of one feature after the other.
        mixes = []
        for column, number in enumerate(num_categories):
            concentration = self.class_alpha if column == 0 else self.feature_alpha
            mixes.append(rng.dirichlet(np.full(number, concentration), size=self.num_clients))
        target = np.concatenate(mixes, axis=1) * sizes[:, None]
        groups = codes + np.cumsum(num_categories) - num_categories

        def loss(alpha: np.ndarray) -> float:
            sums = group_sums(alpha, groups, target.shape[1])
            return float(((sums - target) ** 2).sum())

        optimal, bound = solve_grouped_qp(target, groups, sizes, samples)
        optimal_loss = loss(optimal)
        chosen = self.draw_solution(optimal, optimal_loss, target, rng, groups)
        counts = round_margins(chosen)
        return FeatureQPSolution(
            configurations=codes,
            target=target,
            optimal=optimal,
            chosen=chosen,
            counts=counts,
            bound=bound,
            optimal_loss=optimal_loss,
            chosen_loss=loss(chosen),
            counts_loss=loss(counts),
        )


# ---- categories ----


def as_categories(features: SampleFeatures, num_samples: int, num_buckets: int) -> list[np.ndarray]:
    """Return each feature as whole numbers from 0 without gaps; floating-point ones in buckets.

    Raises:
        ValueError: If a feature does not have one value for each sample, or is not finite.
    """
    if not isinstance(features, Mapping):
        array = to_array("features", features)
        if array.ndim == 1:
            array = array[:, None]
        features = {str(number): column for number, column in enumerate(array.T)}
    categories = []
    for name, values in features.items():
        categories.append(_as_category(f"features[{name}]", values, num_samples, num_buckets))
    return categories


def _as_category(name: str, values: np.ndarray, num_samples: int, num_buckets: int) -> np.ndarray:
    values = to_array(name, values)
    if values.shape != (num_samples,):
        raise ValueError(
            f"`{name}` must have one value for each of the {num_samples} samples, got shape {values.shape}. "
            "SampleSplit distributes only some of the samples: use ClientSplit or WithinClientSplit."
        )
    if values.dtype.kind == "f":
        return quantile_buckets(values, num_buckets)
    _, codes = np.unique(values, return_inverse=True)
    return codes


def quantile_buckets(values: np.ndarray, num_buckets: int) -> np.ndarray:
    """Turn a numeric feature into a categorical one, by ranks.

    Equal values share a bucket, so buckets hold equally many samples only where values differ. A value goes to the
    bucket of its mid-rank.

    Args:
        values: Finite numbers, shape (num_samples,).
        num_buckets: Buckets at most, at least 1.

    Returns:
        Bucket of each sample, 0 for the smallest values, int64, without gaps, shape (num_samples,).

    Raises:
        ValueError: If an argument is out of range, or the values are not 1-D or not finite.
    """
    check("`num_buckets`", num_buckets, Count)
    values = to_array("values", values)
    is_numeric = values.ndim == 1 and values.dtype.kind in "iuf"
    if not is_numeric or not np.isfinite(values).all():
        raise ValueError(
            f"`values` must be finite numbers, one for each sample, got {values.dtype} of shape {values.shape}. Fill "
            "in missing ones first."
        )
    _, value_of_sample, counts = np.unique(values, return_inverse=True, return_counts=True)
    # More buckets than samples would stay empty.
    num_buckets = min(num_buckets, len(values))
    # A mid-rank is the mean rank of equal values; twice of it is a whole number.
    twice_mid_rank = 2 * np.cumsum(counts) - counts
    bucket_of_value = twice_mid_rank * num_buckets // (2 * len(values))
    _, without_gaps = np.unique(bucket_of_value, return_inverse=True)
    buckets: np.ndarray = without_gaps[value_of_sample]
    return buckets.astype(np.int64)
