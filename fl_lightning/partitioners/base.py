"""The base class of partitioners: a user's own needs one method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from fl_lightning.arguments import check_count
from fl_lightning.partitioners.assignment import Assignment, as_partition
from fl_lightning.partitioners.labels import check_enough, check_labels
from fl_lightning.partitioners.partition import Partition
from fl_lightning.representation import ShowsArguments


class Partitioner(ShowsArguments, ABC):
    """Distributes samples among clients, by their labels.

    A partitioner is a pure function of the labels and its seed: it has its own random generator. To write one, define
    :meth:`assign`::

        class RoundRobinPartitioner(Partitioner):
            def assign(self, classes):
                return [np.arange(client, len(classes), self.num_clients) for client in range(self.num_clients)]

        data = CIFAR10DataModule("data", partitioner=RoundRobinPartitioner(num_clients=100))

    Args:
        num_clients: Number of clients, K.
        seed: Seed of the partitioner's generator.

    Raises:
        ValueError: If ``num_clients`` is below 1 or ``seed`` below 0.
    """

    shown_always: ClassVar[tuple[str, ...]] = ("seed",)
    #: Whether samples must have classes.
    needs_classes: ClassVar[bool] = False

    def __init__(self, num_clients: int, seed: int = 0) -> None:
        check_count("num_clients", num_clients)
        check_count("seed", seed, minimum=0)
        self.num_clients = int(num_clients)
        self.seed = int(seed)

    def __getattr__(self, name: str) -> Any:
        """Say why an attribute that every partitioner has is missing."""
        if name in ("num_clients", "seed"):
            raise AttributeError(
                f"`{type(self).__name__}.__init__` does not call `super().__init__(num_clients, seed)`, which sets "
                f"`{name}`. Call it."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(self, labels: Any) -> Partition:
        """Return the partition of a data set; every client gets at least one sample.

        Args:
            labels: The class of each sample, integers or booleans, shape (num_samples,): an array, a list or a tensor.

        Raises:
            TypeError: If the labels are no integers.
            ValueError: If they are not 1-D, empty, or fewer than clients; if :meth:`assign` returns no valid partition.
        """
        labels = check_labels(labels)
        check_enough(self.num_clients, len(labels))
        _, classes = np.unique(labels, return_inverse=True)
        return as_partition(f"{type(self).__name__}.assign", self.assign(classes), len(classes), self.num_clients)

    @abstractmethod
    def assign(self, classes: np.ndarray) -> Assignment:
        """Return the samples of each client.

        Args:
            classes: The class of each sample, renumbered to 0, ..., C-1 without gaps: int64, shape (num_samples,).
                There are at least as many samples as clients.

        Returns:
            ``num_clients`` arrays or lists of sample indices, client 0 first. They must be integers from
            0 to num_samples - 1, no sample may occur twice, and each client needs one. Samples may be left out.
        """

    def generator(self) -> np.random.Generator:
        """Return a new generator with the partitioner's seed; draw only from it, so that calls can be repeated."""
        return np.random.default_rng(self.seed)
