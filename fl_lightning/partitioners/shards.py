"""Label skew by shards of the data set sorted by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_lightning.partitioners.base import Partitioner
from fl_lightning.settings import Count, Natural


@dataclass(eq=False)
class ShardPartitioner(Partitioner):
    """The non-IID partition of FedAvg's experiments (McMahan et al. 2017, section 3).

    The samples are sorted by class, in the order of the data set within one, and cut into shards; every client gets
    ``num_shards_per_partition`` of them at random. With 60,000 samples, 100 clients and 2 shards each, there are 200
    shards of 300 samples, and most clients have two classes.

    Args:
        num_clients: Number of clients, K.
        num_shards_per_partition: Shards of a client, s.
        shard_size: Samples of a shard; K s shards are then drawn from all whole ones, and the other samples are left
            out. If ``None`` all samples are cut into K s shards whose sizes differ by one at most.
        seed: Seed of who gets which shard.

    Raises:
        ValueError: If an argument is out of range; on call, if there are too few samples for the shards.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> partition = ShardPartitioner(3, num_shards_per_partition=2, seed=0)(labels)
        >>> partition.sizes.tolist()
        [20, 20, 20]
    """

    num_clients: Count
    num_shards_per_partition: Count = 2
    shard_size: Count | None = None
    seed: Natural = 0

    needs_classes = True

    def assign(self, classes: np.ndarray) -> Sequence[np.ndarray]:
        """Return the samples of each client; see :meth:`Partitioner.assign`."""
        needed = self.num_clients * self.num_shards_per_partition
        available = needed if self.shard_size is None else len(classes) // self.shard_size
        if needed > min(available, len(classes)):
            size = "" if self.shard_size is None else f" of {self.shard_size}"
            raise ValueError(
                f"{self.num_clients:,} clients with `num_shards_per_partition={self.num_shards_per_partition}` need "
                f"{needed:,} shards{size}, more than {len(classes):,} samples give. Lower one of the numbers."
            )
        order = np.argsort(classes, kind="stable")
        if self.shard_size is None:
            shards = np.array_split(order, needed)
        else:
            whole = order[: available * self.shard_size]
            shards = list(whole.reshape(available, self.shard_size))
        drawn = self.generator().permutation(available)[:needed]
        samples = []
        for shards_of_client in drawn.reshape(self.num_clients, -1):
            samples.append(np.concatenate([shards[shard] for shard in shards_of_client]))
        return samples
