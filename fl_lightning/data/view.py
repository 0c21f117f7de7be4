"""What a data module knows and says of its clients: who holds, trains on and evaluates which samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

import lightning as L
import numpy as np
from lightning.pytorch.utilities.rank_zero import rank_zero_info, rank_zero_warn

from fl_lightning.checks import quantity
from fl_lightning.data.federated_split import GLOBAL, FederatedSplit
from fl_lightning.data.source import Source
from fl_lightning.partitioners import LabelPlot, Partition, Partitioner, PartitionStatistics
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.parts.samplers.uniform import Arrivals, BernoulliSampler

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Stage = Literal["train", "val", "test"]


class FederationView(L.LightningDataModule):
    """A data module's source and split, and what follows from them; known after the set-up."""

    validates_on_test: bool = False
    """Whether the validation set is the test set, as in papers without a validation set."""

    client_ids: list[int]
    """The training clients' ids in the partition, by position."""

    client_sizes: np.ndarray
    """Number of samples of each training client, shape (K,)."""

    federated_split: FederatedSplit
    """The samples on which each client trains, validates and tests."""

    _source: Source

    found_by_setup: ClassVar[tuple[str, ...]] = ("client_ids", "client_sizes", "federated_split", "_source")
    """Attributes that are known after the set-up; before it they raise ``RuntimeError``."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in self.found_by_setup:
                raise RuntimeError(
                    f"The clients of {type(self).__name__} are known after `setup()`. The Trainer calls it; outside a "
                    "Trainer call `data.prepare_data()` and `data.setup()` first."
                )
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    @property
    def num_clients(self) -> int:
        """Number of training clients K."""
        return len(self.client_ids)

    @property
    def partition(self) -> Partition:
        """The samples of each client, over all clients: those that it trains, validates and tests on.

        Samples of a validation or test set that belongs to no client are left out.
        """
        return self.federated_split.partition

    @property
    def labels(self) -> np.ndarray | None:
        """Class of each sample of the source, shape (N,), if there are classes."""
        return self._source.labels

    @property
    def client_names(self) -> list[str] | None:
        """Names of all clients, in the order of their ids in the partition; ``None`` where clients have no names."""
        return None

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, if they are known."""
        names = self._source.class_names
        return None if names is None else list(names)

    @property
    def present_class_names(self) -> list[str] | None:
        """Names of the classes of which there are samples, in ascending order of the class, if they are known."""
        names, labels = self.class_names, self.labels
        return None if names is None or labels is None else [names[label] for label in np.unique(labels)]

    def eval_client_ids(self, stage: Literal["val", "test"]) -> np.ndarray | None:
        """Return the client of each sample of the validation or test loader, shape (n,), in the loader's order.

        ``None`` if there is no such set, or it belongs to no client.
        """
        parts = self._parts(stage)
        if not parts or GLOBAL in parts:
            return None
        return np.repeat(list(parts), [len(indices) for indices in parts.values()])

    def _parts(self, stage: Stage) -> dict[int, np.ndarray]:
        """Return the samples of each client that is in a stage."""
        split = self.federated_split
        return {"train": split.train, "val": split.val, "test": split.test}[self._set_of(stage)]

    def _set_of(self, stage: Stage) -> Stage:
        """Return the set that a stage is served from."""
        return "test" if stage == "val" and self.validates_on_test else stage

    def describe_clients(self) -> str:
        """Return how many clients train, validate and test, in words."""
        split = self.federated_split
        number, samples = len(split.train), sum(map(len, split.train.values()))
        whole = split.partition.num_clients
        clients = f"{number:,} of {whole:,} clients" if number < whole else quantity(number, "client")
        val, test = _evaluators(self._parts("val"), "validate"), _evaluators(split.test, "test")
        return f"{clients} train{'s' * (number == 1)} ({quantity(samples, 'sample')}), {val} and {test}"

    @property
    def num_unused(self) -> int:
        """Number of samples of the source that are in no set, because a partitioner or a split leaves them out."""
        split = self.federated_split
        given = sum(len(indices) for sets in (split.train, split.val, split.test) for indices in sets.values())
        return max(0, len(self._source) - given)

    def describe_unused(self) -> str:
        """Return in a sentence how many samples belong to no client; an empty text if all belong to one."""
        unused, source = self.num_unused, self._source
        if unused == 0:
            return ""
        partitioner = getattr(self, "partitioner", None)
        cause = f" ({type(partitioner).__name__} leaves them out)" if isinstance(partitioner, Partitioner) else ""
        return f"{unused:,} of {quantity(len(source), 'sample')} belong{'s' * (unused == 1)} to no client{cause}."

    def statistics(self) -> PartitionStatistics:
        """Return sizes and heterogeneity over all clients and their samples, those that validate and test too.

        Without classes, as in a regression, there are sizes alone. Clients without any sample do not count.
        """
        from fl_lightning.partitioners import partition_statistics

        holders = Partition(tuple(indices for indices in self.partition.indices if len(indices)))
        return partition_statistics(holders, self.labels)

    def plot(self, axes: Axes | None = None) -> LabelPlot:
        """Plot the clients' label distributions, with the sets in which they are; a notebook shows the picture.

        Without classes, as in a regression, it has each client's number of samples.

        Args:
            axes: Axes to draw on; a new figure if ``None``.

        Returns:
            ``(figure, axes, table)``.
        """
        from fl_lightning.partitioners import plot_label_distributions

        names, sets = self.present_class_names, self._sets_of_clients()
        return plot_label_distributions(
            self.partition, self.labels, class_names=names, client_names=self.client_names, sets=sets, axes=axes
        )

    def _sets_of_clients(self) -> dict[str, list[int]] | None:
        """Return the clients of each set; ``None`` where a client may be in more than one, or all are in one."""
        split = self.federated_split
        sets = {"train": list(split.train), "validation": list(split.val), "test": list(split.test)}
        known = [client for clients in sets.values() for client in clients if client != GLOBAL]
        several = sum(bool(set(clients) - {GLOBAL}) for clients in sets.values()) > 1
        return sets if several and len(known) == len(set(known)) else None


def _evaluators(parts: dict[int, np.ndarray], what: str) -> str:
    """Return how many clients do something, or on how many samples of no client the server does."""
    if GLOBAL in parts:
        return f"the server {what}s on {quantity(len(parts[GLOBAL]), 'sample')}"
    return f"{len(parts):,} {what}{'s' * (len(parts) == 1)}" if parts else f"none {what}s"


def print_clients(data: FederationView, sampler: ClientSampler, name: str) -> None:
    """Say in one line how many clients train, validate and test, and how many train in a round.

    Args:
        data: The data, set up.
        sampler: Draws the clients of a round.
        name: The class of the aggregation callback.
    """
    number, fraction = sampler.cohort_size(data.num_clients), getattr(sampler, "clients_per_round", None)
    each_round = f"{'about ' * isinstance(sampler, BernoulliSampler)}{number:,} train{'s' * (number == 1)}"
    if isinstance(sampler, Arrivals):
        each_round = f"{quantity(number, 'result')} arrive{'s' * (number == 1)}"
    rank_zero_info(f"{data.describe_clients()}; {each_round} in each round. {data.describe_unused()}".rstrip())
    if data.num_clients == 1:
        rank_zero_warn(
            "Only one client trains, so this is not federated learning. Use more clients, or a split that leaves more "
            "for training."
        )
    elif number == 1 and not isinstance(sampler, Arrivals) and isinstance(fraction, float):
        rank_zero_warn(
            f"Only 1 of {data.num_clients} clients trains in each round (`clients_per_round={fraction}` "
            f"is a fraction, rounded), so {name} averages nothing. Give a number of clients, such as "
            "`clients_per_round=2`, or `clients_per_round=1.0` for all."
        )
