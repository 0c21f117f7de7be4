"""Splits that keep the order of a text and leave a gap between training, validation and test windows."""

from __future__ import annotations

from typing import Literal

import numpy as np

from fl_lightning.data import FederatedSplit, PartitionFunction, Split
from fl_lightning.data.splits import by_client, check_sum, check_test_indices, whole_part
from fl_lightning.partitioners import Partition
from fl_lightning.settings import Count, Fraction, Natural, check_arguments

Parts = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A client's training, validation and test samples."""


class OrderedSplit(Split):
    """Each client's first samples train, the next ones validate, the last ones test; all clients train.

    The defaults are LEAF's ``-t sample --tf 0.8``: training on the first 80 % of each role, rounded down, and testing
    on the rest but its first 79 windows, whose inputs share characters with the training inputs. With LEAF's gap one
    character is still shared: the label of the last training window is the first character of the first test window.
    With ``gap=80`` no character is. Clients that are too short for a sample in each part are left out.

    Args:
        val: Fraction of each client's samples for validation.
        test: Fraction for testing, or ``"official"`` for the test part of the files.
        gap: Samples that are left out before the validation set and before the test set. 79 separates the inputs of
            80 characters, 80 the labels too.

    Raises:
        ValueError: If an argument is out of range; on ``apply``, if no client is long enough or the files have no test
            part.

    Example:
        >>> import numpy as np
        >>> from fl_lightning.partitioners import ExplicitPartitioner
        >>> split = OrderedSplit(test=0.25, gap=1).apply(np.zeros(8), ExplicitPartitioner([list(range(8))]))
        >>> split.train[0].tolist(), split.test[0].tolist()
        ([0, 1, 2, 3, 4, 5], [7])
    """

    def __init__(self, val: Fraction = 0.0, test: Fraction | Literal["official"] = 0.2, gap: Natural = 79) -> None:
        self.val = val
        self.test = test
        self.gap = gap
        check_arguments(self)
        check_sum(val, test)

    def split(
        self, labels: np.ndarray, partitioner: PartitionFunction, test_indices: np.ndarray | None
    ) -> FederatedSplit:
        """Partition, then cut each client's text; see :meth:`~fl_lightning.data.Split.split`."""
        official = None
        if isinstance(self.test, str):
            official = check_test_indices(test_indices, len(labels))
        parts = []
        for indices in partitioner(labels).indices:
            train, val, test = self._cut(indices, official)
            has_val = self.val == 0 or len(val) > 0
            has_test = self.test == 0 or len(test) > 0
            if len(train) > 0 and has_val and has_test:
                parts.append((train, val, test))
        if not parts:
            raise ValueError(
                f"No client is long enough for `val` {self.val}, `test` {self.test} and a `gap` of {self.gap} samples. "
                "Give smaller ones, or clients with more text."
            )
        return _federated(parts)

    def _cut(self, indices: np.ndarray, official: np.ndarray | None) -> Parts:
        if official is not None:
            is_test = np.isin(indices, official)
            test = indices[is_test]
            rest = indices[~is_test]
            end = whole_part((1 - self.val) * len(rest))
            return rest[:end], rest[end + self.gap :], test
        assert not isinstance(self.test, str)
        train_end = whole_part((1 - self.val - self.test) * len(indices))
        val_end = whole_part((1 - self.test) * len(indices))
        train = indices[:train_end]
        val = indices[train_end + self.gap : val_end]
        test = indices[val_end + self.gap :]
        return train, val, test


class CropSplit(Split):
    """Clients of equal size: each has one stretch of its training and one of its test samples (Acar et al. 2021).

    Clients are drawn without replacement among those with more samples than a stretch has. Every start of a stretch is
    equally likely.

    Args:
        num_clients: Number of clients.
        train: Training samples of a client.
        test: Test samples of a client.
        base: Cuts each client's samples into training and test set first; ``OrderedSplit()`` if ``None``. Validation
            samples stay as it cuts them.
        seed: Seed of the draw.

    Raises:
        ValueError: If an argument is out of range; on ``apply``, if too few clients are long enough.

    Example:
        >>> CropSplit(num_clients=10, train=200, test=40, base=OrderedSplit(test=0.2))
        CropSplit(num_clients=10, train=200, test=40, base=OrderedSplit(val=0.0, test=0.2), seed=0)
    """

    def __init__(
        self,
        num_clients: Count = 100,
        train: Count = 2000,
        test: Count = 400,
        base: Split | None = None,
        seed: Natural = 0,
    ) -> None:
        self.num_clients = num_clients
        self.train = train
        self.test = test
        self.seed = seed
        self.base: Split = OrderedSplit() if base is None else base
        check_arguments(self)

    def split(
        self, labels: np.ndarray, partitioner: PartitionFunction, test_indices: np.ndarray | None
    ) -> FederatedSplit:
        """Cut the stretches of the drawn clients; see :meth:`~fl_lightning.data.Split.split`."""
        whole = self.base.apply(labels, partitioner, test_indices)
        clients = []
        for client, test in whole.test.items():
            if len(test) > self.test and len(whole.train[client]) > self.train:
                clients.append(client)
        if len(clients) < self.num_clients:
            raise ValueError(
                f"`num_clients` is {self.num_clients}, but the clients with more than `train` = {self.train} training "
                f"and more than `test` = {self.test} test samples are only {len(clients)}. Give smaller ones."
            )
        rng = np.random.default_rng(self.seed)
        rng_of_ends = np.random.default_rng([self.seed, 3])
        parts = []
        for client in rng.permutation(clients)[: self.num_clients].tolist():
            train = _crop(whole.train[client], self.train, rng, rng_of_ends)
            test = _crop(whole.test[client], self.test, rng, rng_of_ends)
            val = whole.val.get(client, train[:0])
            parts.append((train, val, test))
        return _federated(parts)


def _federated(parts: list[Parts]) -> FederatedSplit:
    """Number the clients again; their samples are those of the three sets."""
    partition = Partition(tuple(np.concatenate(part) for part in parts))
    train = by_client([train for train, _, _ in parts])
    val = by_client([val for _, val, _ in parts])
    test = by_client([test for _, _, test in parts])
    return FederatedSplit(train, val, test, partition)


def _crop(indices: np.ndarray, size: int, rng: np.random.Generator, rng_of_ends: np.random.Generator) -> np.ndarray:
    """Draw a stretch; there are more indices than it has. All starts are equally likely."""
    last = len(indices) - size
    start = int(rng.integers(last))
    if rng_of_ends.integers(last + 1) == last:
        start = last
    return indices[start : start + size]
