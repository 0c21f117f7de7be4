"""Clients that hold a few classes only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fl_lightning.partitioners.base import Partitioner, deal
from fl_lightning.partitioners.dirichlet import DirichletPartitioner
from fl_lightning.partitioners.iid import IIDPartitioner
from fl_lightning.settings import Count, Natural, NotNegative, check, check_fields

ClassAssignment = Literal["first-deterministic", "random", "deterministic"]
DeviceExperiment = Literal["1.1", "1.2", "1.3", "1.4"]


@dataclass(eq=False)
class PathologicalPartitioner(Partitioner):
    """Each client holds samples of exactly k classes (Li et al. 2022, quantity-based label imbalance).

    Each class is divided equally among the clients that hold it. A class that no client holds is left out.

    Args:
        num_clients: Number of clients, K.
        num_classes_per_partition: Classes of a client, k.
        class_assignment_mode: ``"first-deterministic"`` gives client i class i modulo C and draws its other classes, so
            that with K >= C clients every class is held. ``"random"`` draws all of them. ``"deterministic"`` gives
            client i the classes i, i + 1, ..., i + k - 1 modulo C.
        seed: Seed of classes and samples.

    Raises:
        ValueError: If an argument is out of range; on call, if there are fewer than k classes, or a class has fewer
            samples than holders.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> partition = PathologicalPartitioner(3, num_classes_per_partition=1)(labels)
        >>> [np.unique(labels[indices]).tolist() for indices in partition.indices]
        [[0], [1], [2]]
    """

    num_clients: Count
    num_classes_per_partition: Count
    class_assignment_mode: ClassAssignment = "first-deterministic"
    seed: Natural = 0

    needs_classes = True

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        totals = np.bincount(classes)
        _check_classes(self.num_classes_per_partition, len(totals))
        holders = np.zeros((self.num_clients, len(totals)), dtype=bool)
        for client in range(self.num_clients):
            holders[client, self._classes_of(client, len(totals), rng)] = True
        scarce = np.flatnonzero(holders.sum(axis=0) > totals)
        if len(scarce):
            raise ValueError(
                f"{holders[:, scarce[0]].sum()} clients hold a class that has only {totals[scarce[0]]} samples, and "
                "each needs one. Lower `num_clients` or `num_classes_per_partition`, or try another seed."
            )
        return deal(classes, share_equally(holders, totals), rng)

    def _classes_of(self, client: int, num_classes: int, rng: np.random.Generator) -> np.ndarray:
        if self.class_assignment_mode == "random":
            return rng.permutation(num_classes)[: self.num_classes_per_partition]
        if self.class_assignment_mode == "deterministic":
            return successive(client, self.num_classes_per_partition, num_classes)
        first = client % num_classes
        others = rng.permutation(np.delete(np.arange(num_classes), first))
        return np.append(others[: self.num_classes_per_partition - 1], first)


@dataclass(eq=False)
class LimitedClassesPartitioner(Partitioner):
    """Fast and slow devices differ in the classes they hold (Gao et al. 2024, experiments 1.2 and 1.3).

    A client with all classes takes floor(N_c / K) samples of each class c. The j-th limited client holds the classes
    kj, kj + 1, ..., kj + k - 1 modulo C, and the rest of a class is shared equally among the limited clients that hold
    it, or among all others if none does. All samples are used.

    Args:
        num_clients: Number of clients, K.
        limited_clients: The clients with few classes; at least one, and not all.
        num_classes_per_partition: Classes of a limited client, k.
        seed: Seed of the samples.

    Raises:
        ValueError: If an argument is out of range; on call, if there are fewer than k classes, or a client gets no
            samples.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> partition = LimitedClassesPartitioner(4, [0, 1], num_classes_per_partition=1, seed=0)(labels)
        >>> [len(np.unique(labels[indices])) for indices in partition.indices]
        [1, 1, 3, 3]
    """

    num_clients: Count
    limited_clients: Sequence[Natural]
    num_classes_per_partition: Count = 3
    seed: Natural = 0

    needs_classes = True

    def __post_init__(self) -> None:
        check_fields(self)
        given = self.limited_clients
        self.limited_clients = sorted(set(given))
        is_repeated = len(self.limited_clients) < len(given)
        is_none_or_all = len(self.limited_clients) in (0, self.num_clients)
        if is_repeated or is_none_or_all or self.limited_clients[-1] >= self.num_clients:
            raise ValueError(
                f"`limited_clients` must name at least one client and not all, each once, of 0 to "
                f"{self.num_clients - 1}, got {given}. For all use `PathologicalPartitioner`, for none "
                "`IIDPartitioner`."
            )

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        counts = self._counts(np.bincount(classes))
        return deal(classes, counts, self.generator())

    def _counts(self, totals: np.ndarray) -> np.ndarray:
        k = self.num_classes_per_partition
        num_classes = len(totals)
        _check_classes(k, num_classes)
        full = np.ones((self.num_clients, num_classes), dtype=bool)
        full[self.limited_clients] = False
        limited = np.zeros_like(full)
        for position, client in enumerate(self.limited_clients):
            limited[client, successive(k * position, k, num_classes)] = True
        counts: np.ndarray = full * (totals // self.num_clients)
        rest = np.where(limited.any(axis=0), limited, full)
        counts += share_equally(rest, totals - counts.sum(axis=0))
        return counts


def _check_classes(k: int, num_classes: int) -> None:
    if k > num_classes:
        raise ValueError(f"`num_classes_per_partition` is {k}, but there are only {num_classes} classes. Lower it.")


@dataclass(eq=False)
class PowerLawPartitioner(Partitioner):
    """Clients hold few classes, and their sizes are lognormal (Li et al. 2020, FedProx, MNIST).

    Client i holds the classes i, i + 1, ..., i + k - 1 modulo C. It gets a few samples of each, and then a share of the
    rest of the class, in proportion to numbers drawn from a lognormal distribution, rounded down. The samples that
    rounding leaves belong to nobody.

    Args:
        num_clients: Number of clients, K.
        num_classes_per_partition: Classes of a client, k.
        least_per_class: Samples of each of its classes that every client gets.
        sigma: Standard deviation of the logarithm of the drawn numbers.
        seed: Seed of sizes and samples.

    Raises:
        ValueError: If an argument is out of range; on call, if there are fewer than k classes, or a class has too few
            samples for its holders.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(600) % 3
        >>> partition = PowerLawPartitioner(6, num_classes_per_partition=1, seed=0)(labels)
        >>> [np.unique(labels[indices]).tolist() for indices in partition.indices]
        [[0], [1], [2], [0], [1], [2]]
    """

    num_clients: Count
    num_classes_per_partition: Count = 2
    least_per_class: Count = 5
    sigma: NotNegative = 2.0
    seed: Natural = 0

    needs_classes = True

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        totals = np.bincount(classes)
        _check_classes(self.num_classes_per_partition, len(totals))
        holders = np.zeros((self.num_clients, len(totals)), dtype=bool)
        for client in range(self.num_clients):
            holders[client, successive(client, self.num_classes_per_partition, len(totals))] = True
        rest = totals - self.least_per_class * holders.sum(axis=0)
        if (rest < 0).any():
            scarce = int(np.argmax(rest < 0))
            raise ValueError(
                f"{holders[:, scarce].sum()} clients hold a class that has only {totals[scarce]} samples, and each "
                f"needs {self.least_per_class}. Lower `num_clients` or `least_per_class`."
            )
        draws = holders * rng.lognormal(0.0, self.sigma, holders.shape)
        shares = draws / np.maximum(draws.sum(axis=0), 1e-300)
        counts = holders * self.least_per_class + np.floor(shares * rest).astype(np.int64)
        return deal(classes, counts, rng)


def successive(first: int, number: int, num_classes: int) -> np.ndarray:
    """Return so many classes from a first one on; after the last class comes class 0."""
    return (first + np.arange(number)) % num_classes


def share_equally(holders: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Divide each class among its holders in whole samples, as equally as possible.

    Args:
        holders: Whether a client (row) holds a class (column), bool, shape (num_clients, num_classes).
        totals: Samples of each class, shape (num_classes,).

    Returns:
        Samples by client and class, int64, shape (num_clients, num_classes): where a class cannot be divided, its first
        holders get one more. A class without holders is left out.
    """
    num_holders = np.maximum(holders.sum(axis=0), 1)
    position = np.cumsum(holders, axis=0) - 1
    gets_one_more = position < totals % num_holders
    counts: np.ndarray = holders * (totals // num_holders + gets_one_more)
    return counts.astype(np.int64)


def device_experiment_partitioner(experiment: DeviceExperiment, seed: int = 0) -> Partitioner:
    """Return the partitioner of an experiment of Gao et al. 2024 on Fashion-MNIST, with 10 clients.

    Clients 0 to 4 are fast devices, 5 to 9 slow ones. The paper's table III and the caption of its figure 4 disagree on
    1.2 and 1.3; this is the caption's reading, which agrees with 1.3 being the hardest. How samples are drawn is not
    stated there.

    Args:
        experiment: ``"1.1"`` IID; ``"1.2"`` slow devices hold 3 of the 10 classes, fast ones all; ``"1.3"`` the other
            way round; ``"1.4"`` 4 to 5 classes each on average and never all of them, by a prior Dir(0.02) for each
            client and equal sizes.
        seed: Seed of the partitioner.

    Raises:
        ValueError: If there is no such experiment.
    """
    check("`experiment`", experiment, DeviceExperiment)
    if experiment == "1.1":
        return IIDPartitioner(10, seed=seed)
    if experiment == "1.4":
        return DirichletPartitioner(10, alpha=0.02, max_classes_per_partition=9, seed=seed)
    fast = range(5)
    slow = range(5, 10)
    return LimitedClassesPartitioner(10, slow if experiment == "1.2" else fast, seed=seed)
