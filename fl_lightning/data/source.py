"""The data that a data module reads: the samples and their labels."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fl_lightning.arguments import to_array
from fl_lightning.data.batches import Collate
from fl_lightning.representation import ShowsArguments


@dataclass(frozen=True, repr=False)
class Source(ShowsArguments):
    """All samples that are shared out among clients.

    Attributes:
        dataset: The samples, training and evaluation data together; fastest as a ``TensorDataset(x, y)``.
        labels: Class of each sample, whole numbers, shape (N,), by which a partitioner shares them out. With
            ``None`` a partitioner gets a single class.
        test_indices: The samples of the official test set, for ``SampleSplit(test="official")``.
        class_names: Names of the classes.
        collate_fn: Makes a batch of a list of samples; PyTorch's ``default_collate`` if ``None``.

    Raises:
        TypeError: If ``labels`` or ``test_indices`` are no array, list or tensor.
        ValueError: If ``labels`` are not one per sample.
    """

    dataset: Dataset[Any]
    labels: np.ndarray | None
    test_indices: np.ndarray | None = None
    class_names: Sequence[str] | None = None
    collate_fn: Collate | None = None

    def __post_init__(self) -> None:
        """Check the labels and turn lists and tensors into arrays."""
        samples = len(self)
        if self.labels is not None:
            object.__setattr__(self, "labels", to_array("labels", self.labels))
            if self.labels.shape != (samples,):
                raise ValueError(
                    f"`labels` must have one entry per sample, shape ({samples},), got shape {self.labels.shape}."
                )
        if self.test_indices is not None:
            object.__setattr__(self, "test_indices", to_array("test_indices", self.test_indices))

    def __len__(self) -> int:
        """Return the number of samples N."""
        return len(self.dataset)  # type: ignore[arg-type]


def fingerprint(tensors: Sequence[Tensor]) -> str:
    """Return a text of 32 hexadecimal digits that changes with shape, type or content of any tensor."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
