"""The classes of a data set's samples, found without reading the samples."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fl_lightning.arguments import is_sequence, to_array
from fl_lightning.data.arrays import why_no_classes
from fl_lightning.data.batches import subset_indices

TARGET_ATTRIBUTES = ("targets", "labels", "_labels", "y")
"""Attributes that hold the classes of torchvision's data sets and others."""


def find_targets(dataset: Dataset[Any]) -> np.ndarray | None:
    """Return the class of each sample, int64, shape (N,), or ``None`` if the data set does not say.

    It looks for whole numbers, one for each sample, in the attributes ``targets``, ``labels``, ``_labels`` and ``y``,
    and in the last tensor of a ``TensorDataset``; a ``Subset`` or ``ConcatDataset`` takes them from the data sets
    within.
    """
    return _find(dataset, {})


def _find(dataset: Dataset[Any], known: dict[int, np.ndarray | None]) -> np.ndarray | None:
    """Find classes; ``known`` has those of data sets that many subsets share."""
    if id(dataset) not in known:
        known[id(dataset)] = _find_within(dataset, known)
    return known[id(dataset)]


def _find_within(dataset: Dataset[Any], known: dict[int, np.ndarray | None]) -> np.ndarray | None:
    if isinstance(dataset, Subset):
        within = _find(dataset.dataset, known)
        return None if within is None else within[subset_indices(dataset)]
    if isinstance(dataset, ConcatDataset):
        return concatenate(_find(part, known) for part in dataset.datasets)
    for candidate in _candidates(dataset):
        with suppress(TypeError):  # no array, but rows of unequal lengths
            values = to_array("targets", candidate)
            if values.shape == (len(dataset),) and values.dtype.kind in "iub":  # type: ignore[arg-type]
                return values.astype(np.int64)
    return None


def _candidates(dataset: Dataset[Any]) -> list[Any]:
    """Return what may be the targets of a data set."""
    candidates = [getattr(dataset, name, None) for name in TARGET_ATTRIBUTES]
    if isinstance(dataset, TensorDataset):
        candidates.append(dataset.tensors[-1])
    return [each for each in candidates if _has_values(each)]


def _has_values(candidate: Any) -> bool:
    """Return whether an attribute holds values in a row: a list, an array, a tensor or a column of a table."""
    if isinstance(candidate, type):
        return False
    return is_sequence(candidate) or hasattr(candidate, "__array__")


def why_no_targets(dataset: Dataset[Any]) -> str | None:
    """Return in a sentence why the targets of a data set are no classes; ``None`` if none are found."""
    while isinstance(dataset, (Subset, ConcatDataset)):
        dataset = dataset.dataset if isinstance(dataset, Subset) else dataset.datasets[0]
    number = len(dataset)  # type: ignore[arg-type]
    reasons = (why_no_classes(candidate, number) for candidate in _candidates(dataset))
    return next((reason for reason in reasons if reason is not None), None)


def concatenate(parts: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Return the parts as one array, or ``None`` if one is missing."""
    known: list[np.ndarray] = []
    for part in parts:
        if part is None:
            return None
        known.append(part)
    return np.concatenate(known)
