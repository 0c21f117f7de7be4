"""Which element of a batch or of a data set is the input, and which the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from fl_lightning.data.batches import length, subset_indices
from fl_lightning.settings import is_sequence
from fl_lightning.vectors import to_array
from fl_lightning.words import short_repr

TARGET_ATTRIBUTES = ("targets", "labels", "_labels", "y")
"""Attributes that hold the classes of torchvision's data sets and others."""

TARGET_KEYS = ("label", "labels", "target")
"""Keys of the target in a batch that is a dict."""

OutputsAndTargets = Callable[[Any, Any], tuple[Any, Any]]


class UnknownTargetError(TypeError):
    """Nothing says which element of a batch is the target."""


def outputs_and_targets(batch: Any, outputs: Any, place: int | None = None) -> tuple[Any, Any]:
    """Return predictions and targets of a batch; the default of :meth:`FederatedDataModule.outputs_and_targets`.

    Args:
        batch: A tuple or list of inputs and target, or a dict with a ``label``, ``labels`` or ``target``.
        outputs: What ``validation_step`` or ``test_step`` returned, if that is a dict with ``"preds"`` and
            ``"target"``, which are then returned; otherwise what the module returned for :func:`inputs_of` the batch.
        place: The target's place in a tuple or list, which must be given for more than two elements.

    Raises:
        UnknownTargetError: If the batch is of another kind, or has other elements than ``place`` says.
    """
    if gives_targets(outputs):
        return outputs["preds"], outputs["target"]
    if isinstance(batch, Mapping):
        for key in TARGET_KEYS:
            if key in batch:
                return outputs, batch[key]
    elif isinstance(batch, (tuple, list)) and len(batch) > 1:
        number = len(batch)
        if place is None and number > 2:
            raise UnknownTargetError(
                f"Batches have {number} elements, and nothing says which of them is the target. Give `target=` of the "
                f"data module, its place, such as `target=1` for the second; or let `validation_step` and `test_step` "
                'return {"preds": ..., "target": ...}.'
            )
        if place is not None and place >= number:
            raise UnknownTargetError(
                f"`target` of the data module must be the place of an element of a batch, which has {number}, got "
                f"{place}."
            )
        return outputs, batch[-1 if place is None else place]
    raise _unreadable(batch)


def gives_targets(outputs: Any) -> bool:
    """Return whether what a step returned has predictions and targets."""
    return isinstance(outputs, Mapping) and "preds" in outputs and "target" in outputs


def inputs_of(batch: Any) -> Any:
    """Return what a module is called with: the first element of a tuple or list, or a dict's one value but the target.

    Raises:
        TypeError: If the batch is of another kind.
    """
    if isinstance(batch, (tuple, list)) and len(batch) > 1:
        return batch[0]
    if not isinstance(batch, Mapping):
        raise _unreadable(batch)
    inputs = [value for key, value in batch.items() if key not in TARGET_KEYS]
    if len(inputs) != 1:
        raise _unreadable(batch)
    return inputs[0]


def _unreadable(batch: Any) -> UnknownTargetError:
    return UnknownTargetError(
        "Batches must be tuples or lists, inputs first, or dicts of one input and a `label`, `labels` "
        f"or `target`, where predictions are compared with targets, got {short_repr(batch)}. Make such batches by "
        '`collate_fn`, or let `validation_step` and `test_step` return {"preds": ..., "target": ...}.'
    )


def find_targets(dataset: Dataset[Any], rule: OutputsAndTargets = outputs_and_targets) -> np.ndarray | None:
    """Return the class of each sample, int64, shape (N,), or ``None`` if the data set does not say.

    It looks for whole numbers, one for each sample, in the attributes ``targets``, ``labels``, ``_labels`` and ``y``,
    and in the second of two tensors of a ``TensorDataset``; a ``Subset`` or ``ConcatDataset`` takes them from the data
    sets within. Where a data set has a ``target_transform``, as torchvision's have, classes are what it returns. Where
    ``transforms`` change inputs and targets together, nothing is found.

    Args:
        dataset: The data set.
        rule: Says which tensor of a ``TensorDataset`` is the target; its ``outputs`` are ``None``.
    """
    # Many subsets may share a data set, whose classes are looked for once.
    known: dict[int, np.ndarray | None] = {}

    def find(part: Dataset[Any]) -> np.ndarray | None:
        if isinstance(part, ConcatDataset):
            return concatenate(find(each) for each in part.datasets)
        if id(part) not in known:
            candidates = []
            if not isinstance(part, Subset):
                candidates = _candidates(part, rule)
            else:
                within = find(part.dataset)
                if within is not None:
                    candidates = [_transformed(part, within[subset_indices(part)])]
            known[id(part)] = _classes(candidates, length(part))
        return known[id(part)]

    return find(dataset)


def _classes(candidates: list[Any], number: int) -> np.ndarray | None:
    """Return the first candidate that holds whole numbers, one for each of so many samples."""
    for candidate in candidates:
        # Rows of unequal lengths make no array.
        with suppress(TypeError):
            values = to_array("targets", candidate)
            if values.shape == (number,) and values.dtype.kind in "iub":
                return values.astype(np.int64)
    return None


def _candidates(dataset: Any, rule: OutputsAndTargets) -> list[Any]:
    """Return what may be the targets of a data set."""
    if hasattr(dataset, "target_transform"):
        transforms = getattr(dataset, "transforms", None)
        # In a data set of torchvision, one function may change inputs and targets together.
        if transforms is not None and not hasattr(transforms, "target_transform"):
            return []
    candidates = [getattr(dataset, name, None) for name in TARGET_ATTRIBUTES]
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        # Nothing may say which of several tensors is the target. Who needs classes then asks the user for them.
        with suppress(UnknownTargetError):
            _, targets = rule(dataset.tensors, None)
            candidates.append(targets)
    return [_transformed(dataset, each) for each in candidates if _has_values(each)]


def _transformed(dataset: Any, values: Any) -> Any:
    """Return targets as ``target_transform`` of a data set changes them, which gets each value once."""
    transform = getattr(dataset, "target_transform", None)
    if transform is None:
        return values
    array = to_array("targets", values)
    axis = 0 if array.ndim > 1 else None
    unique, places = np.unique(array, axis=axis, return_inverse=True)
    changed = []
    for value in unique:
        # A function for a class expects Python's number.
        target = value.item() if value.ndim == 0 else value
        changed.append(np.asarray(transform(target)))
    return np.stack(changed)[places.reshape(-1)]


def _has_values(candidate: Any) -> bool:
    """Return whether an attribute holds values in a row: a list, an array, a tensor or a column of a table."""
    return is_sequence(candidate) or hasattr(candidate, "__array__")


def concatenate(parts: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Return the parts as one array, or ``None`` if one is missing."""
    known = []
    for array in parts:
        if array is None:
            return None
        known.append(array)
    return np.concatenate(known)
