"""The data that a data module reads: the samples and their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fl_lightning.data.batches import Collate, length
from fl_lightning.settings import check
from fl_lightning.signatures import ShowsArguments
from fl_lightning.vectors import to_array, to_indices
from fl_lightning.words import short_repr

#: Types whose items are not samples.
_NO_DATASETS = (IterableDataset, DataLoader, tuple, Mapping, str, bytes, type)


@dataclass(frozen=True, repr=False)
class Source(ShowsArguments):
    """All samples that are distributed among clients.

    Attributes:
        dataset: The samples, training and evaluation data together; fastest as a ``TensorDataset(x, y)``, or a tuple of
            its tensors.
        labels: Class of each sample, whole numbers, shape (N,), for partitioners that go by classes; ``None`` if there
            are none, as in a regression.
        test_indices: The samples of the test set, which every split sets aside; ``None`` lets the split draw one.
        class_names: Name of each class, class 0 first.
        collate_fn: Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``.
        pools_test: Whether only splits with ``test="official"`` set ``test_indices`` aside, and all others share them
            out with the other samples, as papers that pool an official training and test part do.
        clients: The client from which each sample comes, such as a writer, a hospital or a device: numbers or strings,
            shape (N,). Without a partitioner, each client then holds its own samples. Clients are numbered in the order
            of their sorted keys.
        tests_clients: Whether the samples of ``test_indices`` belong to their clients, too, and not to the server.

    Raises:
        TypeError: If an attribute is of another type; if ``test_indices`` are a mask; if clients are missing.
        ValueError: If there are no samples, ``labels`` or ``clients`` are not one per sample, or a class has no name
            among ``class_names``.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> y = torch.tensor([0, 1, 1, 0])
        >>> source = Source((torch.randn(4, 2), y), labels=y.numpy(), class_names=["no", "yes"])
        >>> len(source), type(source.dataset).__name__
        (4, 'TensorDataset')
    """

    dataset: Dataset[Any]
    labels: np.ndarray | None = None
    test_indices: np.ndarray | None = None
    class_names: Sequence[str] | None = None
    collate_fn: Collate | None = None
    pools_test: bool = False
    clients: np.ndarray | None = None
    tests_clients: bool = True

    def __post_init__(self) -> None:
        """Check the labels and turn lists and tensors into arrays."""
        object.__setattr__(self, "dataset", as_dataset("dataset", self.dataset))
        check("`class_names`", self.class_names, Sequence[str] | None)
        check("`collate_fn`", self.collate_fn, Collate | None)
        check("`pools_test`", self.pools_test, bool)
        check("`tests_clients`", self.tests_clients, bool)
        if self.labels is not None:
            labels = one_per_sample("labels", to_array("labels", self.labels), len(self))
            object.__setattr__(self, "labels", labels)
            _check_class_names(self.class_names, labels)
        if self.clients is not None:
            clients = client_keys("clients", self.clients, len(self))
            object.__setattr__(self, "clients", clients)
        if self.test_indices is not None:
            test_indices = to_indices("test_indices", self.test_indices)
            object.__setattr__(self, "test_indices", test_indices)

    def __len__(self) -> int:
        """Return the number of samples N."""
        return length(self.dataset)


def _check_class_names(names: Sequence[str] | None, labels: np.ndarray) -> None:
    if names is None or labels.dtype.kind not in "iub":
        return
    low = int(labels.min())
    high = int(labels.max())
    if low < 0 or high >= len(names):
        raise ValueError(
            f"`class_names` must have a name for each class, class 0 first, got {len(names)} names; there are classes "
            f"from {low} to {high}. Name them all, or leave `class_names` out."
        )


def one_per_sample(name: str, array: np.ndarray, samples: int) -> np.ndarray:
    """Return an array as it is; raise ``ValueError`` unless it has one entry for each of so many samples."""
    if array.shape != (samples,):
        raise ValueError(f"`{name}` must have one entry per sample, shape ({samples},), got shape {array.shape}.")
    return array


def client_keys(name: str, values: Any, samples: int) -> np.ndarray:
    """Return the client of each sample, numbers or strings, shape (N,).

    Args:
        name: The argument.
        values: An array, a list or a tensor.
        samples: Number of samples N.

    Raises:
        TypeError: If clients are other than numbers or strings, or one is missing.
        ValueError: If they are not one per sample.
    """
    array = one_per_sample(name, to_array(name, values), samples)
    if array.dtype == object and all(isinstance(value, str) for value in array):
        array = array.astype(np.str_)
    has_missing = array.dtype.kind == "f" and not np.isfinite(array).all()
    if has_missing or array.dtype.kind not in "biufU":
        found = f"{array.dtype} with NaN" if has_missing else str(array.dtype)
        raise TypeError(
            f"`{name}` must be numbers or strings, and none missing, got {found}. Fill in missing ones, and turn "
            "others into strings."
        )
    return array


def as_dataset(name: str, given: Any) -> Dataset[Any]:
    """Return samples by position; a tuple of tensors becomes a ``TensorDataset``.

    Args:
        name: The argument.
        given: A data set with ``__len__`` and ``__getitem__``, or a tuple of tensors.

    Raises:
        TypeError: If it has no samples by position.
        ValueError: If it has no samples, or tensors of unequal first dimensions.
    """
    if isinstance(given, tuple) and given and all(isinstance(tensor, Tensor) for tensor in given):
        tensors: tuple[Tensor, ...] = given
        if len({tensor.shape[:1] for tensor in tensors}) > 1:
            shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors)
            raise ValueError(f"`{name}` must be tensors with a row for each sample, got the shapes {shapes}.")
        given = TensorDataset(*tensors)
    has_positions = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    is_scalar = getattr(given, "shape", None) == ()
    is_table = hasattr(given, "iloc")
    if not has_positions or is_scalar or is_table or isinstance(given, _NO_DATASETS):
        raise TypeError(
            f"`{name}` must be a data set with __len__ and __getitem__, as TensorDataset(x, y) has, got "
            f"{short_repr(given)}. Give the `dataset` of a DataLoader, list(stream) for a stream, or tensors of a "
            "table."
        )
    if len(given) == 0:
        raise ValueError(f"`{name}` has no samples, got {short_repr(given)}. Check how it was read or filtered.")
    return cast("Dataset[Any]", given)
