"""Any map-style PyTorch data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from fl_lightning.data import FederatedDataModule, PartitionFunction, Source
from fl_lightning.data.batches import Collate, length, tensors_of
from fl_lightning.data.source import as_dataset, client_keys, one_per_sample
from fl_lightning.data.targets import concatenate, find_targets
from fl_lightning.partitioners.base import check_labels
from fl_lightning.settings import check_arguments

Values = Sequence[int] | np.ndarray | Tensor


class TorchDatasetDataModule(FederatedDataModule):
    """Federates a data set with ``__len__`` and ``__getitem__``, such as torchvision's.

    Samples are fetched one at a time, unless the data set is a ``TensorDataset`` or made of such by ``Subset`` and
    ``ConcatDataset``. Classes are taken from the data set's ``targets``, ``labels``, ``_labels`` or ``y``, or from the
    second of two tensors of a ``TensorDataset``, or the one that ``target`` names; a ``Subset`` or ``ConcatDataset``
    takes them from the data sets within. A data set's ``target_transform`` is applied to them.

    Args:
        dataset: The samples.
        partitioner: Shares the samples out among clients by their classes; not together with ``clients``.
        targets: The class of each sample, whole numbers, shape (N,), where none are found.
        clients: The client of each sample, numbers or strings, shape (N,), in place of a partitioner.
        test_dataset: The test set, of no client, whatever the split; no sample of it trains.
        test_targets: The class of each sample of ``test_dataset``, where none are found.
        collate_fn: Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        TypeError: If a data set is not map-style, or targets are not whole numbers.
        ValueError: If a data set is empty; if targets or clients are not one per sample; if there are ``clients`` and
            a ``partitioner``; at set-up, if a partitioner that goes by classes finds none.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from fl_lightning.partitioners import DirichletPartitioner
        >>> dataset = TensorDataset(torch.randn(100, 3), torch.arange(100) % 4)
        >>> data = TorchDatasetDataModule(dataset, DirichletPartitioner(10, alpha=1.0, seed=0))
        >>> data.setup()
        >>> data.num_clients
        6
    """

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
                "Give `partitioner` or `clients`, not both: a partitioner distributes the samples whatever their "
                "clients are."
            )
        self.parts = [as_dataset("dataset", dataset)]
        self.targets = [_check_targets("targets", targets, self.parts[0])]
        if test_dataset is not None:
            self.parts.append(as_dataset("test_dataset", test_dataset))
            self.targets.append(_check_targets("test_targets", test_targets, self.parts[1]))
        elif test_targets is not None:
            raise ValueError("`test_targets` are of `test_dataset`, which is None. Give both or neither.")
        self.clients: np.ndarray | None = None
        if clients is not None:
            self.clients = client_keys("clients", clients, length(self.parts[0]))
        self.collate_fn = collate_fn
        check_arguments(self, {"collate_fn": collate_fn})

    def _facts(self) -> list[str]:
        if self.is_set_up:
            return super()._facts()
        dataset = self.parts[0]
        return [f"{type(dataset).__name__} of {length(dataset)} samples"]

    def load(self) -> Source:
        """Put the data sets together; only tensors are copied."""
        labels_of_parts = []
        for part, targets in zip(self.parts, self.targets, strict=True):
            if targets is None:
                targets = find_targets(part, self.outputs_and_targets)
            labels_of_parts.append(targets)
        labels = concatenate(labels_of_parts)

        dataset, *test_dataset = self.parts
        whole = dataset
        clients = self.clients
        test_indices = None
        if test_dataset:
            whole = ConcatDataset(self.parts)
            test_indices = np.arange(length(dataset), length(whole))
            if clients is not None:
                # Samples of the test set need a client, too; nobody asks for it.
                clients = np.pad(clients, (0, len(test_indices)), mode="edge")
        tensors = tensors_of(whole)
        return Source(
            whole if tensors is None else TensorDataset(*tensors),
            labels,
            test_indices=test_indices,
            class_names=_names_of(labels, getattr(dataset, "classes", None)),
            collate_fn=self.collate_fn,
            clients=clients,
            tests_clients=False,
        )


def _names_of(labels: np.ndarray | None, names: Sequence[Any] | None) -> list[str] | None:
    """Return the names of the classes as strings; ``None`` if a class, such as -1 for "unlabelled", has no name."""
    if labels is None or names is None:
        return None
    if labels.min(initial=0) < 0 or labels.max(initial=0) >= len(names):
        return None
    return [str(name) for name in names]


def _check_targets(name: str, values: Values | None, dataset: Dataset[Any]) -> np.ndarray | None:
    if values is None:
        return None
    labels = check_labels(values, name).astype(np.int64)
    return one_per_sample(name, labels, length(dataset))
