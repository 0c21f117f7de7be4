"""The base class of splits and their result: the samples on which each client trains, validates and tests."""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from fl_lightning.partitioners import Partition
from fl_lightning.partitioners.base import PartitionFunction, check_partitioner, partition_by
from fl_lightning.signatures import ShowsArguments
from fl_lightning.vectors import to_array
from fl_lightning.words import short_repr

GLOBAL = -1
"""Client id of a set that belongs to no client."""

Stage = Literal["train", "val", "test"]


@dataclass(frozen=True, eq=False, repr=False)
class FederatedSplit:
    """The training, validation and test samples of each client.

    Each set maps a client id to int64 sample indices; a global set has the client id -1. No sample is in two sets.
    Clients without samples in a set are not in its map.

    Attributes:
        train: Training samples by client.
        val: Validation samples by client.
        test: Test samples by client.
        partition: All samples of all clients, in whichever set.

    Example:
        >>> from fl_lightning.data import WithinClientSplit
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> split = WithinClientSplit(val=0.2, test=0.2).apply(20, IIDPartitioner(2))
        >>> len(split.train[0]), len(split.of("val")[1])
        (6, 2)
    """

    train: dict[int, np.ndarray]
    val: dict[int, np.ndarray]
    test: dict[int, np.ndarray]
    partition: Partition

    def __repr__(self) -> str:
        train = _describe(self.train)
        val = _describe(self.val)
        test = _describe(self.test)
        return f"FederatedSplit(train: {train}, val: {val}, test: {test})"

    def of(self, stage: Stage) -> dict[int, np.ndarray]:
        """Return the samples of each client that is in a stage."""
        if stage == "train":
            return self.train
        return self.val if stage == "val" else self.test

    def clients_of_samples(self, stage: Stage) -> np.ndarray | None:
        """Return the client of each sample of a stage, one client after the other, shape (n,).

        ``None`` if the stage has no samples, or they belong to no client.
        """
        parts = self.of(stage)
        if not parts or GLOBAL in parts:
            return None
        sizes = [len(indices) for indices in parts.values()]
        return np.repeat(list(parts), sizes)


class Split(ShowsArguments, ABC):
    """A way to split a federated data set; a pure function of the labels and its seed.

    To write one, define :meth:`split`.

    Example:
        >>> import numpy as np
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> class OnlyTraining(Split):
        ...     def split(self, labels, partitioner, test_indices):
        ...         partition = partitioner(labels)
        ...         return FederatedSplit(dict(enumerate(partition.indices)), {}, {}, partition)
        >>> OnlyTraining().apply(12, IIDPartitioner(3))
        FederatedSplit(train: 12 samples of 3 clients, val: 0 samples, test: 0 samples)
    """

    shown_always: ClassVar[tuple[str, ...]] = ("num_folds", "fold", "val", "test", "seed")
    #: Whether every class is drawn in proportion, which needs the class of each sample.
    stratify: bool = False

    def apply(
        self,
        labels_or_num_samples: Any,
        partitioner: PartitionFunction,
        test_indices: np.ndarray | None = None,
    ) -> FederatedSplit:
        """Partition a data set and split it.

        Args:
            labels_or_num_samples: The class of each sample, integers, shape (num_samples,): an array, a list or a
                tensor. A number of samples N does for partitioners that do not look at labels; any other sees N samples
                of one class.
            partitioner: A partitioner, or any function from labels to a partition or to the sample indices of each
                client.
            test_indices: The samples that the data set itself declares to be its test part. Only ``test="official"``
                of :class:`SampleSplit` honours it; all other splits pool training and test part.

        Raises:
            TypeError: If the partitioner is not a function of labels.
            ValueError: If there are no samples, the split does not fit the numbers of samples and clients, or the
                partitioner returns no valid partition.
        """
        check_partitioner(partitioner)
        if isinstance(labels_or_num_samples, numbers.Integral):
            if self.stratify:
                raise ValueError(
                    "`stratify=True` draws every class in proportion, but no classes were found. Leave it out, or give "
                    "the class of each sample. For a regression, `np.digitize(y, np.quantile(y, [0.25, 0.5, 0.75]))` "
                    "makes classes."
                )
            labels = np.zeros(int(labels_or_num_samples), dtype=np.int64)
        else:
            labels = to_array("labels_or_num_samples", labels_or_num_samples)
        if labels.ndim != 1 or len(labels) == 0:
            raise ValueError(
                "`labels_or_num_samples` must be the class of each sample, 1-D, or a number of samples, and not empty, "
                f"got {short_repr(labels_or_num_samples)}."
            )
        return self.split(labels, partial(partition_by, partitioner), test_indices)

    @abstractmethod
    def split(
        self, labels: np.ndarray, partitioner: PartitionFunction, test_indices: np.ndarray | None
    ) -> FederatedSplit:
        """Partition and split.

        Args:
            labels: The class of each sample, shape (num_samples,).
            partitioner: Returns the partition of the samples with the labels that it is given. A split that sets
                samples aside first gives it the labels of the others, and its indices then count those.
            test_indices: The samples of the data set's own test part, if it has one; none of them if they are set aside
                already, so that no others need be drawn.

        Returns:
            Who holds which samples. Sets without samples, and clients without samples in a set, are left out.
        """


def _describe(parts: dict[int, np.ndarray]) -> str:
    samples = sum(len(indices) for indices in parts.values())
    if not parts or GLOBAL in parts:
        return f"{samples} samples"
    return f"{samples} samples of {len(parts)} clients"
