"""Transforms of samples, one at a time, as they are fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import Dataset

from fl_lightning.data.batches import fetch

Transform = Callable[[Any], Any]


class TransformedDataset(Dataset[Any]):
    """A data set whose samples' inputs go through a function when they are fetched.

    Args:
        dataset: The samples.
        transform: Gets the first element of a sample that is a tuple or a list, and the whole of any other, such as a
            dict; its result replaces that.
    """

    def __init__(self, dataset: Dataset[Any], transform: Transform) -> None:
        self.dataset, self.transform = dataset, transform

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        """Return a transformed sample."""
        return self._changed(self.dataset[index])

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return transformed samples."""
        return [self._changed(sample) for sample in fetch(self.dataset, indices)]

    def _changed(self, sample: Any) -> Any:
        if not isinstance(sample, (tuple, list)):
            return self.transform(sample)
        values = [self.transform(sample[0]), *sample[1:]]
        return type(sample)(*values) if hasattr(sample, "_fields") else type(sample)(values)
