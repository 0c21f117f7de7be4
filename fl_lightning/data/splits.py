"""Splits into training, validation and test sets: by client, by sample before the partition, or within each client."""

from __future__ import annotations

import warnings
from collections.abc import Sequence, Sized
from typing import Annotated, Literal

import numpy as np

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Split
from fl_lightning.partitioners import Partition
from fl_lightning.partitioners.base import PartitionFunction
from fl_lightning.settings import Fraction, Natural, check_arguments
from fl_lightning.vectors import to_indices
from fl_lightning.words import quantity

Folds = Annotated[int, "[3, inf)"]
"""Training, validation and test set each need one."""


class ClientSplit(Split):
    """Whole clients are held out, by cross-validation over clients (Xue et al. 2021, section IV-B).

    Client ids are permuted and cut into folds. Fold ``fold`` is the test set; of the remaining ids, in permuted order,
    as many as fold 0 has are the validation set, and the rest train. With 5 folds, 100 clients give 60 for training, 20
    for validation and 20 for testing. ``val_fold`` chooses another validation fold. The paper tunes on each fold except
    the test fold in turn, which makes 20 pairs of 5 folds.

    Without ``val_fold``, folds 0 and 1 have the same training clients if they are of the same size: the validation
    clients of one are the test clients of the other. A run of one cannot be resumed with the other.

    Args:
        num_folds: Number of folds, at least 3.
        fold: The test fold, 0 to num_folds - 1.
        val_fold: The validation fold, not the test fold; ``None`` takes the first of the remaining ids.
        seed: Seed of the permutation; one seed's test folds together hold every client once.

    Raises:
        ValueError: If an argument is out of range; on ``apply``, if there are fewer clients than folds.

    Example:
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> split = ClientSplit(num_folds=5, fold=0).apply(100, IIDPartitioner(10))
        >>> len(split.train), len(split.val), len(split.test)
        (6, 2, 2)
    """

    def __init__(
        self, num_folds: Folds = 5, fold: Natural = 0, seed: Natural = 0, *, val_fold: Natural | None = None
    ) -> None:
        self.num_folds = num_folds
        self.fold = fold
        self.val_fold = val_fold
        self.seed = seed
        check_arguments(self)
        given = [fold] if val_fold is None else [fold, val_fold]
        if max(given) >= num_folds or val_fold == fold:
            raise ValueError(
                f"`fold` and `val_fold` must be two folds below `num_folds`, which is {num_folds}, got {fold} and "
                f"{val_fold}."
            )

    def split(
        self, labels: np.ndarray, partitioner: PartitionFunction, test_indices: np.ndarray | None
    ) -> FederatedSplit:
        """Partition, then hold out whole clients; see :meth:`Split.split`."""
        partition = partitioner(labels)
        number = partition.num_clients
        if number < self.num_folds:
            raise ValueError(
                f"`num_folds` is {self.num_folds}, but only {quantity(number, 'client')} can be held out. Give fewer "
                "folds or more clients, or SampleSplit() or WithinClientSplit(), which hold out samples."
            )
        clients = np.random.default_rng(self.seed).permutation(number)
        folds = np.array_split(clients, self.num_folds)
        test = folds[self.fold]
        others = [folds[fold] for fold in range(self.num_folds) if fold not in (self.fold, self.val_fold)]
        train = np.concatenate(others)
        if self.val_fold is None:
            val, train = np.split(train, [len(folds[0])])
        else:
            val = folds[self.val_fold]

        def select(ids: np.ndarray) -> dict[int, np.ndarray]:
            return {client: partition.indices[client] for client in sorted(ids.tolist())}

        return FederatedSplit(select(train), select(val), select(test), partition)


class SampleSplit(Split):
    """A global validation and a global test set are set aside before the partition; all clients train.

    Args:
        val: Fraction of the samples that is drawn uniformly for validation; 0 for no validation set.
        test: Fraction for testing, or ``"official"`` for the data set's own test part; ``val`` then is a fraction of
            the others.
        seed: Seed of the draw.
        stratify: Whether every class is drawn in proportion, up to rounding. The classes are the labels that
            the partitioner gets.

    Raises:
        ValueError: If an argument is out of range; on ``apply``, if there is no official test part, or it holds indices
            that are not samples, or if there are no classes to stratify by.

    Example:
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> SampleSplit(val=0.1, test=0.2).apply(100, IIDPartitioner(10))
        FederatedSplit(train: 70 samples of 10 clients, val: 10 samples, test: 20 samples)
    """

    def __init__(
        self,
        val: Fraction = 0.1,
        test: Fraction | Literal["official"] = 0.1,
        seed: Natural = 0,
        *,
        stratify: bool = False,
    ) -> None:
        self.val = val
        self.test = test
        self.seed = seed
        self.stratify = stratify
        check_arguments(self)
        check_sum(val, test)

    def split(
        self, labels: np.ndarray, partitioner: PartitionFunction, test_indices: np.ndarray | None
    ) -> FederatedSplit:
        """Set samples aside, then partition the others; see :meth:`Split.split`."""
        samples = np.arange(len(labels))
        test = samples[:0]
        share = 0.0
        if isinstance(self.test, str):
            test = check_test_indices(test_indices, len(labels))
        elif test_indices is None or len(test_indices):
            share = self.test
        rng = np.random.default_rng(self.seed)
        order = rng.permutation(np.setdiff1d(samples, test))
        # If all samples are of one class, `_draw` takes the first ones.
        classes = labels if self.stratify else np.zeros_like(labels)
        val, rest = _draw(order, round(self.val * len(order)), classes, rng)
        if share:
            test, rest = _draw(rest, round(share * len(order)), classes, rng)
        few = f"there are {quantity(len(order), 'sample')}"
        _warn_of_none(self, few, val=(self.val, val), test=(share, test))
        # Some partitioners follow the order of the data set.
        rest = np.sort(rest)
        partition = in_samples(rest, partitioner(labels[rest]))
        return FederatedSplit(by_client(partition.indices), _global(val), _global(test), partition)


class WithinClientSplit(Split):
    """Each client's own samples are split; all clients train, and those with enough samples validate and test.

    Args:
        val: Fraction of each client's samples for validation, rounded down.
        test: Fraction of each client's samples for testing, rounded down; at least one sample is left for training.
        seed: Seed of the draw.

    Raises:
        ValueError: If an argument is out of range.

    Example:
        >>> from fl_lightning.partitioners import IIDPartitioner
        >>> WithinClientSplit(val=0.1, test=0.2).apply(100, IIDPartitioner(10))
        FederatedSplit(train: 70 samples of 10 clients, val: 10 samples of 10 clients, test: 20 samples of 10 clients)
    """

    def __init__(self, val: Fraction = 0.1, test: Fraction = 0.1, seed: Natural = 0) -> None:
        self.val = val
        self.test = test
        self.seed = seed
        check_arguments(self)
        check_sum(val, test)

    def split(
        self, labels: np.ndarray, partitioner: PartitionFunction, test_indices: np.ndarray | None
    ) -> FederatedSplit:
        """Partition, then cut each client's samples; see :meth:`Split.split`."""
        rng = np.random.default_rng(self.seed)
        partition = partitioner(labels)
        parts = [self._cut(rng.permutation(indices)) for indices in partition.indices]
        val = by_client([val for val, _, _ in parts])
        test = by_client([test for _, test, _ in parts])
        train = by_client([train for _, _, train in parts])
        few = f"the largest client has {quantity(int(partition.sizes.max()), 'sample')}"
        _warn_of_none(self, few, val=(self.val, val), test=(self.test, test))
        return FederatedSplit(train, val, test, partition)

    def _cut(self, indices: np.ndarray) -> list[np.ndarray]:
        """Cut a client's samples into validation, test and training set."""
        num_val = whole_part(self.val * len(indices))
        num_test = whole_part(self.test * len(indices))
        return np.split(indices, [num_val, num_val + num_test])


def _warn_of_none(split: Split, few: str, **held_out: tuple[float, Sized]) -> None:
    """Warn of sets that were asked for and have no sample, because every share was rounded to none."""
    asked = {name: samples for name, (fraction, samples) in held_out.items() if fraction}
    empty = [name for name, samples in asked.items() if not len(samples)]
    if empty:
        what = "" if len(empty) == len(asked) else f" for `{empty[0]}`"
        warnings.warn(f"{split!r} holds out nothing{what}: {few}. Give larger shares, or ClientSplit().", stacklevel=4)


def _draw(
    order: np.ndarray, number: int, labels: np.ndarray, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the first samples of each class, as many as are its due; return them and the others.

    A class gives its exact share of ``number``, rounded down; the samples then missing come from the classes with the
    largest remainders, at random among equal ones, and from those that would be left without samples at last.
    """
    _, classes = np.unique(labels[order], return_inverse=True)
    counts = np.bincount(classes)
    quotas, remainders = np.divmod(number * counts, max(len(order), 1))
    would_be_empty = counts - quotas == 1
    by_chance = rng.permutation(len(counts))
    # `lexsort` sorts by the last key first.
    order_of_classes = np.lexsort((by_chance, -remainders, would_be_empty))
    missing = number - quotas.sum()
    quotas[order_of_classes[:missing]] += 1
    # The rank of a sample is its place among those of its class.
    by_class = np.argsort(classes, kind="stable")
    first_of_class = np.cumsum(counts) - counts
    rank = np.arange(len(order)) - np.repeat(first_of_class, counts)
    drawn = np.zeros(len(order), dtype=bool)
    drawn[by_class] = rank < np.repeat(quotas, counts)
    return order[drawn], order[~drawn]


def in_samples(samples: np.ndarray, partition: Partition) -> Partition:
    """Return a partition of some samples, counted from 0, as one of all samples."""
    return Partition(tuple(samples[indices] for indices in partition.indices))


def by_client(parts: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """Return the parts by the number of the client; empty ones are left out."""
    return {client: part for client, part in enumerate(parts) if len(part)}


def _global(indices: np.ndarray) -> dict[int, np.ndarray]:
    return {GLOBAL: np.sort(indices)} if len(indices) else {}


def whole_part(value: float) -> int:
    """Return a number rounded down, but 0.3 * 10 = 2.9999999999999996 to 3."""
    return int(value + 1e-9)


def check_sum(val: float, test: float | str) -> None:
    """Raise ``ValueError`` if two shares leave no samples for training."""
    if not isinstance(test, str) and val + test >= 1:
        raise ValueError(f"`val` and `test` must sum to less than 1, to leave training samples; got {val} and {test}.")


def check_test_indices(test_indices: np.ndarray | None, num_samples: int) -> np.ndarray:
    """Return the samples of a test part, ascending.

    Raises:
        TypeError: If they are not whole numbers.
        ValueError: If there is no test part, or an index is not a sample.
    """
    if test_indices is None:
        raise ValueError(
            "`test` is 'official', but this data set comes without a test part: `test_indices` is None. Give `test` "
            "a fraction such as 0.1."
        )
    unique = np.unique(to_indices("test_indices", test_indices))
    if unique.min(initial=0) < 0 or unique.max(initial=-1) >= num_samples:
        raise ValueError(
            f"`test_indices` must be from 0 to {num_samples - 1}, the samples of the data set, got {unique[0]} to "
            f"{unique[-1]}."
        )
    return unique
