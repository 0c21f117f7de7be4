"""What can be told of clients and classes: names, numbers in words, statistics, a picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.data.federated_split import GLOBAL, FederatedSplit, Stage
from fl_lightning.data.samples import FederatedSamples
from fl_lightning.partitioners import (
    LabelPlot,
    Partition,
    Partitioner,
    PartitionStatistics,
    partition_statistics,
    plot_label_distributions,
)
from fl_lightning.partitioners.base import PartitionFunction
from fl_lightning.words import quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class ClientDescriptions:
    """Tells of the clients of a data module.

    Args:
        samples: All samples, and who trains and evaluates on them.
        partitioner: What has distributed the samples; ``None`` where they come from clients.
    """

    def __init__(self, samples: FederatedSamples, partitioner: PartitionFunction | None) -> None:
        self._split = samples.split
        self._source = samples.source
        self._num_unused = samples.num_unused
        self._partitioner = partitioner

    @property
    def client_names(self) -> list[str] | None:
        """Names of all clients, in the order of their ids in the partition; ``None`` where clients have no names."""
        names = self._source.clients
        if self._partitioner is not None or names is None:
            return None
        return [str(names[indices[0]]) for indices in self._split.partition.indices]

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, if they are known."""
        names = self._source.class_names
        return None if names is None else list(names)

    @property
    def present_class_names(self) -> list[str] | None:
        """Names of the classes of which there are samples, in ascending order of the class, if they are known."""
        names = self.class_names
        if names is None or self._source.labels is None:
            return None
        return [names[label] for label in np.unique(self._source.labels)]

    def in_words(self, validation: Stage) -> str:
        """Return how many clients train, validate and test.

        Args:
            validation: The set that validates: its own, or the test set.
        """
        split = self._split
        number = len(split.train)
        samples = sum(len(indices) for indices in split.train.values())
        clients = quantity(number, "client")
        if number < split.partition.num_clients:
            clients = f"{number:,} of {split.partition.num_clients:,} clients"
        train = "trains" if number == 1 else "train"
        validate = _evaluators(split.of(validation), "validate")
        test = _evaluators(split.test, "test")
        return f"{clients} {train} ({quantity(samples, 'sample')}), {validate} and {test}"

    def unused_in_words(self) -> str:
        """Return in a sentence how many samples belong to no client; an empty string if all belong to one."""
        unused = self._num_unused
        if unused == 0:
            return ""
        all_samples = quantity(len(self._source), "sample")
        belong = "belongs" if unused == 1 else "belong"
        cause = ""
        # A user's function has no name that would help.
        if isinstance(self._partitioner, Partitioner):
            cause = f" ({type(self._partitioner).__name__} leaves them out)"
        return f"{unused:,} of {all_samples} {belong} to no client{cause}."

    def statistics(self) -> PartitionStatistics:
        """Return sizes and heterogeneity over all clients that have samples."""
        held = [indices for indices in self._split.partition.indices if len(indices)]
        return partition_statistics(Partition(tuple(held)), self._source.labels)

    def plot(self, axes: Axes | None = None) -> LabelPlot:
        """Plot the clients' label distributions, with the sets in which they are.

        Args:
            axes: Axes to draw on; a new figure if ``None``.
        """
        return plot_label_distributions(
            self._split.partition,
            self._source.labels,
            class_names=self.present_class_names,
            client_names=self.client_names,
            sets=_sets_of_clients(self._split),
            axes=axes,
        )


def _evaluators(parts: Mapping[int, np.ndarray], verb: str) -> str:
    """Return how many clients do something, or on how many samples of no client the server does."""
    if GLOBAL in parts:
        return f"the server {verb}s on {quantity(len(parts[GLOBAL]), 'sample')}"
    if not parts:
        return f"none {verb}s"
    return f"{len(parts):,} {verb}s" if len(parts) == 1 else f"{len(parts):,} {verb}"


def _sets_of_clients(split: FederatedSplit) -> dict[str, list[int]] | None:
    """Return the clients of each set; ``None`` where a client may be in more than one set, or all are in one."""
    sets = {
        "train": list(split.train),
        "validation": list(split.val),
        "test": list(split.test),
    }
    sets_with_clients = 0
    seen: set[int] = set()
    for ids in sets.values():
        clients = set(ids) - {GLOBAL}
        if clients & seen:
            return None
        seen |= clients
        if clients:
            sets_with_clients += 1
    return sets if sets_with_clients > 1 else None
