"""Categorical features, and the combinations of them that occur."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fl_lightning.checks import Count, check, to_array

SampleFeatures = np.ndarray | Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Configurations:
    """The combinations of a class and categories that occur in a data set, ascending.

    Attributes:
        codes: Class and category of each combination, numbered from 0 without gaps, shape (U, 1 + J).
        counts: Samples of each combination, B_u, int64, shape (U,).
        of_sample: The combination of each sample, shape (num_samples,).
    """

    codes: np.ndarray
    counts: np.ndarray
    of_sample: np.ndarray

    @property
    def num_categories(self) -> np.ndarray:
        """Number of classes and of each feature's categories, d_j, shape (1 + J,)."""
        categories: np.ndarray = self.codes.max(axis=0) + 1
        return categories


def find_configurations(columns: list[np.ndarray]) -> Configurations:
    """Return the combinations that occur.

    Args:
        columns: Class, then category of each feature: whole numbers from 0 without gaps, each of shape (num_samples,).
    """
    of_sample = columns[0]
    for column in columns[1:]:
        # numbered anew after each feature, so that the products stay small
        of_sample = np.unique(of_sample * (column.max() + 1) + column, return_inverse=True)[1]
    _, first, counts = np.unique(of_sample, return_index=True, return_counts=True)
    return Configurations(np.stack([column[first] for column in columns], axis=1), counts, of_sample)


def as_categories(features: SampleFeatures, num_samples: int, num_buckets: int) -> list[np.ndarray]:
    """Return each feature as whole numbers from 0 without gaps; floating-point ones in buckets.

    Raises:
        TypeError: If a feature is of another type than numbers, booleans and texts.
        ValueError: If a feature does not have one value for each sample, or is not finite.
    """
    if not isinstance(features, Mapping):
        array = to_array("features", features)
        array = array[:, None] if array.ndim == 1 else array
        features = {str(number): column for number, column in enumerate(array.T)} if array.ndim == 2 else {}
    if not features:
        raise ValueError(
            "`features` must have shape (num_samples, J), or be a dict of features. To skew only sizes and classes use "
            "`QPPartitioner`."
        )
    return [_as_category(f"features[{name}]", values, num_samples, num_buckets) for name, values in features.items()]


def _as_category(name: str, values: np.ndarray, num_samples: int, num_buckets: int) -> np.ndarray:
    values = to_array(name, values)
    if values.shape != (num_samples,):
        raise ValueError(
            f"`{name}` must have one value for each of the {num_samples} samples, got shape {values.shape}. "
            "SampleSplit sets samples aside and hands over the others alone: use ClientSplit or WithinClientSplit."
        )
    if values.dtype == object and all(isinstance(value, str) for value in values):
        values = values.astype(np.str_)
    if values.dtype.kind == "f":
        return quantile_buckets(values, num_buckets)
    if values.dtype.kind not in "biuU":
        raise TypeError(
            f"`{name}` must be numbers, booleans or texts, got {values.dtype}. Number its categories, for example with "
            "`pandas.factorize`."
        )
    codes: np.ndarray = np.unique(values, return_inverse=True)[1]
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
    if values.ndim != 1 or values.dtype.kind not in "iuf" or not np.isfinite(values).all():
        raise ValueError(
            f"`values` must be finite numbers, one for each sample, got {values.dtype} of shape {values.shape}. Fill "
            "in missing ones first."
        )
    _, position, counts = np.unique(values, return_inverse=True, return_counts=True)
    num_buckets = min(num_buckets, max(len(values), 1))  # more would stay empty
    # twice the mid-rank, in whole numbers: samples below on the left, above on the right
    mid_ranks = 2 * np.cumsum(counts) - counts
    buckets: np.ndarray = np.unique(mid_ranks * num_buckets // (2 * len(values)), return_inverse=True)[1][position]
    return buckets.astype(np.int64)
