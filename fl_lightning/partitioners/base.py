"""The base class of partitioners: a user-defined one needs one method."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from fl_lightning.partitioners.partition import Partition
from fl_lightning.settings import Count, Natural, check_fields
from fl_lightning.vectors import to_array
from fl_lightning.words import short_repr

Assignment = Sequence[np.ndarray] | Sequence[Sequence[int]]
"""The sample indices of each client, client 0 first."""

_MAX_DRAWS = 1000


class Partitioner(ABC):
    """Distributes samples among clients, by their labels.

    A partitioner is a pure function of the labels and its seed: it has its own random generator. To write one, define
    :meth:`assign`::

        class RoundRobinPartitioner(Partitioner):
            def assign(self, classes):
                return [np.arange(client, len(classes), self.num_clients) for client in range(self.num_clients)]

        data = CIFAR10DataModule("data", partitioner=RoundRobinPartitioner(num_clients=100))

    One with settings is a dataclass whose fields have their limits in their types, ``num_clients`` and ``seed`` among
    them, or defines a constructor.

    Args:
        num_clients: Number of clients, K.
        seed: Seed of the partitioner's generator.

    Raises:
        ValueError: If ``num_clients`` is below 1 or ``seed`` below 0.

    Example:
        >>> import numpy as np
        >>> class Halves(Partitioner):
        ...     def assign(self, classes):
        ...         return np.array_split(np.arange(len(classes)), self.num_clients)
        >>> Halves(2)(np.array([0, 1, 0, 1])).indices
        (array([0, 1]), array([2, 3]))
    """

    num_clients: Count
    seed: Natural
    #: Whether samples must have classes.
    needs_classes: ClassVar[bool] = False

    def __init__(self, num_clients: int, seed: int = 0) -> None:
        self.num_clients = num_clients
        self.seed = seed
        check_fields(self)

    def __post_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_clients={self.num_clients}, seed={self.seed})"

    def __call__(self, labels: Any) -> Partition:
        """Return the partition of a data set; every client gets at least one sample.

        Args:
            labels: The class of each sample, integers or booleans, shape (num_samples,): an array, a list or a tensor.

        Raises:
            TypeError: If the labels are not integers.
            ValueError: If they are not 1-D, or fewer than clients; if :meth:`assign` returns no valid partition.
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


PartitionFunction = Partitioner | Callable[[np.ndarray], Partition]
"""A partitioner, which a ``config.yaml`` may name in short, or any function from labels to a partition."""


def check_partitioner(partitioner: Any) -> None:
    """Raise ``TypeError`` unless the argument can be called with labels."""
    if inspect.isclass(partitioner) or not callable(partitioner):
        raise TypeError(
            "`partitioner` must be a partitioner, such as IIDPartitioner(num_clients=100), or a function from labels "
            f"to a partition, got {short_repr(partitioner)}. For sample indices of each client, a Partition or its "
            "file: ExplicitPartitioner(...). For a data set of each client: ClientDatasetsModule(...)."
        )


def partition_by(partitioner: Callable[[np.ndarray], Any], labels: np.ndarray) -> Partition:
    """Return the partition that a partitioner, or a user's function, makes of labels.

    Args:
        partitioner: Takes labels, and returns a partition or the sample indices of each client.
        labels: The class of each sample, shape (num_samples,).

    Raises:
        TypeError: If it cannot be called with labels, or returns neither of the two.
        ValueError: If it returns something that is not a partition of them, or leaves a client without any.
    """
    check_partitioner(partitioner)
    return as_partition("partitioner", partitioner(labels), len(labels))


def check_labels(labels: Any, name: str = "labels") -> np.ndarray:
    """Return labels as an array of integers.

    Args:
        labels: The class of each sample: an array, a list, a tuple or a tensor of whole numbers or booleans, shape
            (num_samples,).
        name: The name of the argument, for errors.

    Raises:
        TypeError: If they are not integers.
        ValueError: If they are not 1-D.
    """
    array = to_array(name, labels)
    if array.dtype == bool:
        array = array.astype(np.int64)
    if array.ndim == 1 and array.dtype.kind in "iu":
        return array
    error = TypeError if array.ndim == 1 else ValueError
    raise error(
        f"`{name}` must be whole numbers, 1-D, one for each sample, got {array.dtype} of shape {array.shape}. Make "
        "classes for instance by `numpy.unique(y, return_inverse=True)[1]` or `numpy.digitize(y, bins)`."
    )


def check_enough(num_clients: int, num_samples: int) -> None:
    """Raise ``ValueError`` unless there is a sample for each client."""
    if num_samples < num_clients:
        raise ValueError(
            f"`num_clients` is {num_clients:,}, but `labels` has only {num_samples:,} samples, and each client needs "
            "one. Give fewer clients, or check the data set and a split that sets samples aside first."
        )


def as_partition(name: str, result: Any, num_samples: int, num_clients: int | None = None) -> Partition:
    """Return the sample indices that a function has returned as a partition.

    Args:
        name: The function, for errors.
        result: What it returned: a partition, or the sample indices of each client.
        num_samples: Number of samples, N.
        num_clients: How many clients there must be; any number if ``None``.

    Raises:
        TypeError: If it is not one array of integers for each client.
        ValueError: If a sample does not exist or is given twice, a client has none, or the number of clients is wrong.
    """
    try:
        partition = result if isinstance(result, Partition) else Partition(tuple(result))
    except (TypeError, ValueError) as error:
        raise type(error)(f"`{name}` must return the sample indices of each client, one list each: {error}") from error
    if num_clients is not None and partition.num_clients != num_clients:
        raise ValueError(
            f"`{name}` must return the sample indices of {num_clients} clients, which is `num_clients`, got "
            f"{partition.num_clients}."
        )
    check_samples(name, partition, num_samples)
    return partition


def check_samples(name: str, partition: Partition, num_samples: int) -> None:
    """Raise ``ValueError`` if a client of a partition has a sample that does not exist, or none."""
    for client, indices in enumerate(partition.indices):
        if indices.max(initial=-1) >= num_samples:
            raise ValueError(
                f"`{name}` gives sample {indices.max():,} to client {client}, but there are only {num_samples:,} "
                "samples. Indices count the samples of this data set without those that a split sets aside first."
            )
    empty = np.flatnonzero(partition.sizes == 0).tolist()
    if empty:
        raise ValueError(
            f"`{name}` must give each client a sample, but {len(empty)} of {partition.num_clients} have none, such as "
            f"{empty[:5]}. Leave them out, or give them some."
        )


class DrawnFromDirichlet(Protocol):
    """A partitioner that draws shares from a Dirichlet distribution."""

    num_clients: int
    alpha: float
    min_partition_size: int


def draw_enough(partitioner: DrawnFromDirichlet, draw: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the first draw in which each client has ``min_partition_size`` samples.

    Args:
        partitioner: The partitioner.
        draw: Draws the samples of each client and class, shape (num_clients, num_classes).

    Raises:
        ValueError: If there is none among 1000 draws.
    """
    for _ in range(_MAX_DRAWS):
        counts = draw()
        if counts.sum(axis=1).min() >= partitioner.min_partition_size:
            return counts
    raise ValueError(
        f"In {_MAX_DRAWS} draws from Dir(alpha={partitioner.alpha}) some of the {partitioner.num_clients} clients "
        f"always had fewer of the {counts.sum():,} samples than `min_partition_size`, "
        f"{partitioner.min_partition_size}. Raise `alpha`, or lower `min_partition_size` or `num_clients`."
    )


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
    order = np.arange(len(groups))
    if mix:
        order = rng.permutation(len(groups))
    order = order[np.argsort(groups[order], kind="stable")]
    # In `order` one group follows the other. `next_of_group` is the place of the first sample of each group that no
    # client has yet.
    group_sizes = np.bincount(groups, minlength=counts.shape[1])
    next_of_group = np.cumsum(group_sizes) - group_sizes
    samples = []
    for numbers in counts:
        ends = next_of_group + numbers
        of_client = [order[start:end] for start, end in zip(next_of_group, ends, strict=True)]
        samples.append(rng.permutation(np.concatenate(of_client)))
        next_of_group = ends
    return samples
