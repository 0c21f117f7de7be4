"""Label skew by a fixed number of classes for each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fl_lightning.arguments import check_choice, check_count
from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.dealing import deal, share_equally

ClassAssignment = Literal["first-deterministic", "random", "deterministic"]


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
    """

    needs_classes = True

    def __init__(
        self,
        num_clients: int,
        num_classes_per_partition: int,
        class_assignment_mode: ClassAssignment = "first-deterministic",
        seed: int = 0,
    ) -> None:
        super().__init__(num_clients, seed)
        check_count("num_classes_per_partition", num_classes_per_partition)
        modes = ("first-deterministic", "random", "deterministic")
        check_choice("class_assignment_mode", class_assignment_mode, modes)
        self.num_classes_per_partition = num_classes_per_partition
        self.class_assignment_mode = class_assignment_mode

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        rng = self.generator()
        totals = np.bincount(classes)
        if self.num_classes_per_partition > len(totals):
            raise ValueError(
                f"`num_classes_per_partition` is {self.num_classes_per_partition}, but there are only {len(totals)} "
                f"classes. Give at most {len(totals)}."
            )
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
            return (client + np.arange(self.num_classes_per_partition)) % num_classes
        first = client % num_classes
        others = rng.permutation(np.delete(np.arange(num_classes), first))
        return np.append(others[: self.num_classes_per_partition - 1], first)
