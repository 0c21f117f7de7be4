"""From counts to samples: every client takes its number of samples of each class."""

from __future__ import annotations

import numpy as np


def deal(groups: np.ndarray, counts: np.ndarray, rng: np.random.Generator, mix: bool = True) -> list[np.ndarray]:
    """Return samples for each client, in random order (eq. (49)).

    Equations are numbered as in ``docs/references.md``.

    Args:
        groups: The class, or another group, of each sample, 0 to G-1, shape (num_samples,).
        counts: Samples of each group that each client gets, shape (num_clients, G); no column sum may exceed the number
            of samples in its group. Samples that no client gets are left out.
        rng: Generator of the shuffles.
        mix: Whether to shuffle the samples of a group first. Otherwise the clients, one after the other, take them in
            the order of the data set.

    Returns:
        int64 sample indices of each client.
    """
    order = rng.permutation(len(groups)) if mix else np.arange(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    group_sizes = np.bincount(groups, minlength=counts.shape[1])
    first = np.cumsum(group_sizes) - group_sizes + np.cumsum(counts, axis=0) - counts
    return [
        rng.permutation(np.concatenate([order[i : i + n] for i, n in zip(starts, numbers, strict=True)]))
        for starts, numbers in zip(first, counts, strict=True)
    ]


def share_equally(holders: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Divide each class among its holders in whole samples, as equally as possible.

    Args:
        holders: Whether a client (row) holds a class (column), bool, shape (num_clients, num_classes).
        totals: Samples of each class, shape (num_classes,).

    Returns:
        Samples by client and class, int64, shape (num_clients, num_classes): where a class cannot be divided, its first
        holders get one more. A class without holders is left out.
    """
    number = np.maximum(holders.sum(axis=0), 1)
    position = np.cumsum(holders, axis=0) - 1
    counts: np.ndarray = holders * (totals // number + (position < totals % number))
    return counts.astype(np.int64)
