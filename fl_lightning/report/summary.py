"""The facts of a partition, as a table of texts and as numbers for a logger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fl_lightning.arguments import to_array
from fl_lightning.data import ClientDatasetsModule, FederatedDataModule
from fl_lightning.partitioners import (
    Partition,
    PartitionStatistics,
    SampleFeatures,
    c_score,
    label_counts,
)

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class PartitionSummary:
    """The facts of a data module's partition.

    Equations are numbered as in ``docs/references.md``.

    Attributes:
        data: Class name of the data module.
        partitioner: The partitioner with its arguments.
        split: The split with its arguments; "as given" if the user has made the sets.
        sets: Clients and samples of the training, validation and test set, and the samples that are in none, if any.
        statistics: Sizes, C-score and entropy over all clients.
        feature_skew: The C-score of each categorical feature: eq. (52) with the values of the feature as classes.
        fingerprint: SHA-256 of the partition; equal partitions have the same one.
    """

    data: str
    partitioner: str
    split: str
    sets: dict[str, str]
    statistics: PartitionStatistics
    feature_skew: dict[str, float]
    fingerprint: str

    def rows(self) -> dict[str, str]:
        """Return the table: the texts by their names."""
        numbers = self.statistics
        rows = {
            "data": self.data,
            "partitioner": self.partitioner,
            "split": self.split,
            **self.sets,
            "clients": f"{numbers.num_clients:,}",
            "samples of all clients": f"{numbers.num_samples:,}",
            "smallest client": f"{numbers.min:,}",
            "largest client": f"{numbers.max:,}",
            "mean size": f"{numbers.mean:,.1f}",
            "standard deviation": f"{numbers.std:,.1f}",
        }
        if numbers.has_classes:
            rows |= {"C-score": f"{numbers.c_score:.3f}", "joint entropy (nats)": f"{numbers.entropy:.3f}"}
        rows |= {f"feature skew, {name}": f"{value:.3f}" for name, value in self.feature_skew.items()}
        return rows | {"fingerprint": self.fingerprint[:16]}

    def numbers(self) -> dict[str, int | float]:
        """Return the numbers by their names, for a logger."""
        return self.statistics.as_dict() | {f"feature_skew/{name}": value for name, value in self.feature_skew.items()}

    def __str__(self) -> str:
        rows = self.rows()
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


def summarize_partition(datamodule: FederatedDataModule, features: SampleFeatures | None) -> PartitionSummary:
    """Return the summary of a data module's partition.

    The arguments and the errors are those of :func:`~fl_lightning.partition_report`.
    """
    partition = datamodule.partition
    skew = {name: _skew(partition, name, values) for name, values in _columns(datamodule, features).items()}
    return PartitionSummary(
        data=type(datamodule).__name__,
        partitioner=_describe(datamodule.partitioner or getattr(datamodule, "feature_partitioner", None))
        or "the data's own clients",
        split=_describe_split(datamodule),
        sets=_sets(datamodule),
        statistics=datamodule.statistics(),
        feature_skew=skew,
        fingerprint=partition.fingerprint(),
    )


def _columns(datamodule: FederatedDataModule, features: SampleFeatures | None) -> dict[str, np.ndarray]:
    """Return the categorical features by their names."""
    names = None
    if features is None:
        features = getattr(datamodule, "categorical_features", None)
        names = getattr(datamodule, "categorical_names", None)
    if features is None:
        return {}
    if isinstance(features, Mapping):
        return {name: np.asarray(values) for name, values in features.items()}
    features = to_array("features", features)
    if features.ndim != 2:
        raise ValueError(
            f"`features` must have shape (num_samples, num_features), got {features.shape}. Give a single feature "
            "with its name: {'soil': values}."
        )
    return dict(zip(names or map(str, range(features.shape[1])), features.T, strict=True))


def _skew(partition: Partition, name: str, values: np.ndarray) -> float:
    needed = 1 + max(int(indices.max(initial=-1)) for indices in partition.indices)
    if values.ndim != 1 or len(values) < needed:
        raise ValueError(
            f"`features` must have one value per sample of the data set; feature {name!r} has shape {values.shape}, "
            f"and the clients have samples up to number {needed - 1}. Give the values of all samples."
        )
    if values.dtype.kind not in "iub":
        raise ValueError(
            f"`features` must be categories, numbered by integers; feature {name!r} is {values.dtype}. Leave numeric "
            "features out, or put them into buckets first, with numpy.digitize for instance."
        )
    return c_score(label_counts(partition, values.astype(np.int64)))


def _sets(datamodule: FederatedDataModule) -> dict[str, str]:
    sizes, unused = datamodule.client_sizes, datamodule.num_unused
    sets = {
        "training": f"{_number(len(sizes), 'client')}, {_number(int(sizes.sum()), 'sample')}",
        "validation": _evaluation_set(datamodule, "val"),
        "test": _evaluation_set(datamodule, "test"),
    }
    return sets | ({"left out": _number(unused, "sample")} if unused else {})


def _evaluation_set(datamodule: FederatedDataModule, stage: Literal["val", "test"]) -> str:
    loader = datamodule.val_dataloader() if stage == "val" else datamodule.test_dataloader()
    if not loader:
        return "none"
    samples = _number(len(loader.dataset), "sample")
    clients = datamodule.eval_client_ids(stage)
    return (
        f"{samples} that belong to no client"
        if clients is None
        else f"{_number(len(np.unique(clients)), 'client')}, {samples}"
    )


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _describe_split(datamodule: FederatedDataModule) -> str:
    if isinstance(datamodule, ClientDatasetsModule) and not datamodule.splits_clients:
        return "as given"
    return _describe(datamodule.split)


def _describe(part: object) -> str:
    """Return the call that makes an object, with only its plain arguments; the empty string for ``None``."""
    if part is None:
        return ""
    if not hasattr(part, "__dict__") or hasattr(part, "__name__"):
        return str(getattr(part, "__name__", type(part).__name__))  # a function
    plain = {name: value for name, value in vars(part).items() if isinstance(value, _PLAIN) and name[0] != "_"}
    arguments = ", ".join(f"{name}={value!r}" for name, value in plain.items())
    return f"{type(part).__name__}({arguments})"
