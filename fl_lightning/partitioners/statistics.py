"""Statistics of the heterogeneity of a partition: client sizes and class mixes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np

from fl_lightning.notebook import as_table
from fl_lightning.partitioners.base import check_labels
from fl_lightning.partitioners.partition import Partition
from fl_lightning.settings import check
from fl_lightning.vectors import to_array
from fl_lightning.words import short_repr


@dataclass(frozen=True)
class PartitionStatistics:
    """Sizes and class mixes of a partition's clients (Xue et al. 2021, Table I).

    Attributes:
        num_clients: Number of clients.
        num_samples: Samples of all clients together.
        min: Samples of the smallest client.
        max: Samples of the largest client.
        mean: Mean samples of a client.
        std: Population standard deviation of the samples of a client.
        c_score: Class non-IID score, see :func:`c_score`; NaN without classes.
        entropy: Joint entropy of client and class in nats, see :func:`label_entropy`; NaN without classes.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> statistics = partition_statistics(IIDPartitioner(4)(labels), labels)
        >>> statistics.num_clients, statistics.mean, statistics.std
        (4, 15.0, 0.0)
    """

    num_clients: int
    num_samples: int
    min: int
    max: int
    mean: float
    std: float
    c_score: float
    entropy: float

    def as_dict(self) -> dict[str, int | float]:
        """Return the statistics by name, for a logger; without classes neither C-score nor entropy."""
        return {name: value for name, value in asdict(self).items() if not math.isnan(value)}

    def __str__(self) -> str:
        return "\n".join(f"{name:<20}{value:>10}" for name, value in self.rows().items())

    def _repr_html_(self) -> str:
        return as_table(self.rows().items())

    @property
    def has_classes(self) -> bool:
        """Whether the samples have classes."""
        return not math.isnan(self.c_score)

    def rows(self, samples: str = "samples") -> dict[str, str]:
        """Return the table: its strings by name; ``samples`` names the number of samples."""
        rows = {
            "clients": f"{self.num_clients:,}",
            samples: f"{self.num_samples:,}",
            "smallest client": f"{self.min:,}",
            "largest client": f"{self.max:,}",
            "mean size": f"{self.mean:,.1f}",
            "standard deviation": f"{self.std:,.1f}",
        }
        if self.has_classes:
            rows["C-score"] = f"{self.c_score:.3f}"
            rows["joint entropy (nats)"] = f"{self.entropy:.3f}"
        return rows


def label_counts(partition: Partition, labels: np.ndarray) -> np.ndarray:
    """Return the number of samples of each class on each client.

    Args:
        partition: The samples of each client.
        labels: The class of each sample of the data set, integers, shape (num_samples,).

    Returns:
        int64, shape (num_clients, num_classes); the classes are those in ``labels``, ascending.

    Raises:
        TypeError: If the labels are not integers.
        ValueError: If they are not 1-D.
        IndexError: If the partition has samples without a label.
    """
    check("`partition`", partition, Partition)
    values, classes = np.unique(check_labels(labels), return_inverse=True)
    counts = [np.bincount(classes[indices], minlength=len(values)) for indices in partition.indices]
    return np.stack(counts)


def partition_statistics(partition: Partition, labels: np.ndarray | None = None) -> PartitionStatistics:
    """Return the statistics of a partition; arguments and errors as in :func:`label_counts` and :func:`c_score`.

    Without labels, as in a regression, there are sizes alone.
    """
    check("`partition`", partition, Partition)
    score = math.nan
    entropy = math.nan
    if labels is not None:
        counts = label_counts(partition, labels)
        score = c_score(counts)
        entropy = label_entropy(counts)
    sizes = partition.sizes
    return PartitionStatistics(
        num_clients=len(sizes),
        num_samples=int(sizes.sum()),
        min=int(sizes.min()),
        max=int(sizes.max()),
        mean=float(sizes.mean()),
        std=float(sizes.std()),
        c_score=score,
        entropy=entropy,
    )


def c_score(counts: np.ndarray) -> float:
    """Return the class non-IID score (Xue et al. 2021; eq. (52)).

    It is ``1/K sum_k sum_c |r_ck - R_c|``, where r_ck is the share of class c on client k and R_c its share in all
    samples: 0 when all clients have the same mix, and at most 2 (1 - 1/C) with C equally frequent classes.

    Equations are numbered as in ``docs/references.md``.

    Args:
        counts: Samples of each class (columns) on each client (rows), shape (num_clients, num_classes).

    Raises:
        ValueError: If ``counts`` is not 2-D, has a negative entry, or a client without samples.
    """
    counts = _check_counts(counts)
    sizes = counts.sum(axis=1, keepdims=True)
    if np.any(sizes == 0):
        raise ValueError(
            f"`counts` must have samples in every row, but client {int(np.argmin(sizes))} has none, and so no "
            "class mix. Leave such clients out."
        )
    mixes = counts / sizes
    overall = counts.sum(axis=0) / counts.sum()
    distances = np.sum(np.abs(mixes - overall), axis=1)
    return float(np.mean(distances))


def label_entropy(counts: np.ndarray) -> float:
    """Return the joint entropy of client and class in nats (eq. (53)).

    It is ``-sum_ky p_ky log p_ky`` with p_ky = n_ky / n, and grows as samples are spread more evenly: at most
    log(K C) for K clients and C classes.

    Equations are numbered as in ``docs/references.md``.

    Args:
        counts: Samples of each class (columns) on each client (rows), shape (num_clients, num_classes).

    Raises:
        ValueError: If ``counts`` is not 2-D, has a negative entry, or no samples at all.
    """
    counts = _check_counts(counts)
    shares = counts[counts > 0] / counts.sum()
    return float(-np.sum(shares * np.log(shares)))


def _check_counts(counts: np.ndarray) -> np.ndarray:
    counts = to_array("counts", counts)
    is_matrix = counts.ndim == 2 and counts.dtype.kind in "biuf"
    if not is_matrix or not (counts >= 0).all() or not 0 < counts.sum() < np.inf:
        raise ValueError(
            "`counts` must be numbers of samples, shape (num_clients, num_classes), none negative and not all 0, got "
            f"{short_repr(counts)}."
        )
    return counts
