"""Any map-style PyTorch data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from fl_lightning.checks import check_arguments, to_array
from fl_lightning.data import PartitionFunction, Source
from fl_lightning.data.batches import Collate, length, tensors_of
from fl_lightning.data.source import as_dataset
from fl_lightning.data.targets import concatenate, find_targets
from fl_lightning.datamodules.natural import NaturalDataModule
from fl_lightning.partitioners.base import check_labels

Values = Sequence[int] | np.ndarray | Tensor


class TorchDatasetDataModule(NaturalDataModule):
    """Federates a data set with ``__len__`` and ``__getitem__``, such as torchvision's.

    Samples are fetched one at a time, unless the data set is a ``TensorDataset`` or made of such by ``Subset`` and
    ``ConcatDataset``. Classes are taken from the data set's ``targets``, ``labels``, ``_labels`` or ``y``, or from the
    second of two tensors of a ``TensorDataset``, or the one that ``target`` names; a ``Subset`` or ``ConcatDataset``
    takes them from the data sets within. A data set's ``target_transform`` is applied to them.

    Args:
        dataset: The samples.
        partitioner: Shares the samples out among clients by their classes; not together with ``clients``.
        targets: The class of each sample, whole numbers, shape (N,), where none are found.
        clients: The client of each sample, numbers or texts, shape (N,), in place of a partitioner.
        test_dataset: The test set, of no client, whatever the split; no sample of it trains.
        test_targets: The class of each sample of ``test_dataset``, where none are found.
        collate_fn: Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        TypeError: If a data set is not map-style, or targets are no whole numbers.
        ValueError: If a data set is empty; if targets or clients are not one per sample; if there are ``clients`` and
            a ``partitioner``; at set-up, if a partitioner that goes by classes finds none.
    """

    tests_clients = False
    _hidden = ("targets", "test_targets", "clients")

    def __init__(
        self,
        dataset: Dataset[Any],
        partitioner: PartitionFunction | None = None,
        *,
        targets: Values | None = None,
        clients: Sequence[Any] | np.ndarray | Tensor | None = None,
        test_dataset: Dataset[Any] | None = None,
        test_targets: Values | None = None,
        collate_fn: Collate | None = None,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, **options)
        if partitioner is not None and clients is not None:
            raise ValueError(
                "Give `partitioner` or `clients`, not both: a partitioner shares the samples out without regard to "
                "their clients."
            )
        self.parts = [as_dataset("dataset", dataset)]
        self.targets = [_check_targets("targets", targets, self.parts[0])]
        if test_dataset is not None:
            self.parts.append(as_dataset("test_dataset", test_dataset))
            self.targets.append(_check_targets("test_targets", test_targets, self.parts[1]))
        elif test_targets is not None:
            raise ValueError("`test_targets` are of `test_dataset`, which is None. Give both or neither.")
        self.clients = None if clients is None else _check_clients(clients, self.parts[0])
        self.collate_fn = collate_fn
        check_arguments(self, {"collate_fn": collate_fn})

    def _facts(self) -> list[str]:
        return super()._facts() or [f"{type(self.parts[0]).__name__} of {length(self.parts[0])} samples"]

    def load(self) -> Source:
        """Put the data sets together; only tensors are copied."""
        if self.clients is not None:
            # a test set is set aside before clients are looked at
            self._set_clients(np.pad(self.clients, (0, sum(map(length, self.parts[1:]))), mode="edge"))
        found = [
            find_targets(part, self.outputs_and_targets) if given is None else given
            for part, given in zip(self.parts, self.targets, strict=True)
        ]
        labels = concatenate(found)
        whole = self.parts[0] if len(self.parts) == 1 else ConcatDataset(self.parts)
        tensors = tensors_of(whole)
        names = getattr(self.parts[0], "classes", None)
        return Source(
            whole if tensors is None else TensorDataset(*tensors),
            labels,
            None if len(self.parts) == 1 else np.arange(length(self.parts[0]), length(whole)),
            _names_of(labels, names),
            self.collate_fn,
        )


def _names_of(labels: np.ndarray | None, names: Sequence[Any] | None) -> list[str] | None:
    """Return the names of the classes as texts; ``None`` if a class, such as -1 for "unlabelled", has no name."""
    if labels is None or names is None or labels.min(initial=0) < 0 or labels.max(initial=0) >= len(names):
        return None
    return [str(name) for name in names]


def _one_per_sample(name: str, array: np.ndarray, dataset: Dataset[Any]) -> np.ndarray:
    if array.shape != (length(dataset),):
        raise ValueError(f"`{name}` must have one entry per sample, shape ({length(dataset)},), got {array.shape}.")
    return array


def _check_clients(values: Any, dataset: Dataset[Any]) -> np.ndarray:
    array = _one_per_sample("clients", to_array("clients", values), dataset)
    if array.dtype == object and all(isinstance(value, str) for value in array):
        array = array.astype(np.str_)
    missing = array.dtype.kind == "f" and not np.isfinite(array).all()
    if missing or array.dtype.kind not in "biufU":
        raise TypeError(
            f"`clients` must be numbers or texts, and none missing, got {array.dtype}{' with NaN' if missing else ''}. "
            "Fill in missing ones, and turn others into texts."
        )
    return array


def _check_targets(name: str, values: Any, dataset: Dataset[Any]) -> np.ndarray | None:
    return None if values is None else _one_per_sample(name, check_labels(values, name).astype(np.int64), dataset)
