"""Any data set of Hugging Face's ``datasets`` library, by name or from local files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fl_lightning.checks import check_arguments, is_number
from fl_lightning.data import ImageDataModule, PartitionFunction, Source
from fl_lightning.data.images import channel_numbers
from fl_lightning.datamodules.columns import check_columns, encode_classes, regression_targets
from fl_lightning.datamodules.files import as_path
from fl_lightning.datamodules.huggingface_columns import LazyRows, converter, read_column, stack_columns
from fl_lightning.datamodules.natural import NaturalDataModule

if TYPE_CHECKING:
    import datasets

_BUILDERS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv", ".arrow": "arrow"}


class HuggingFaceDataModule(NaturalDataModule, ImageDataModule):
    """Serves ``(x, y)`` from columns of a data set, by its client column or by a partitioner.

    The kind of x depends on the column: images stay bytes, shape (n, C, H, W), which are scaled to [0, 1] and
    normalised a batch at a time on the device; numbers and lists of numbers become tensors; texts need a ``transform``.

    Args:
        path: Name on the Hub, such as ``"flwrlabs/femnist"``; a folder that ``save_to_disk`` wrote; a ``.parquet``,
            ``.json``, ``.jsonl``, ``.csv`` or ``.arrow`` file; or one of ``datasets``' builders, with ``data_files``.
        inputs: The input column, or several columns of numbers, which become one vector each.
        label: Column of the target: classes as numbers or texts.
        client: Column of each sample's client, such as ``writer_id``; not needed with a partitioner.
        partitioner: Shares the samples out in place of the client column, which is then not used.
        name: Configuration of the data set.
        train_split: The split of the data set to read.
        test_split: The split of the data set that is the test set, whatever ``split``: none of it trains, and each
            sample belongs to its client.
        data_files: Files by split, as ``datasets.load_dataset`` takes them.
        cache_dir: Folder of downloads and converted files; that of ``datasets`` if ``None``.
        transform: Makes an array of one value of the input column, for example the token ids of a text.
        pad_value: Fills up lists of numbers and 1-D results of ``transform`` to the longest, if ``in_memory``.
        mean: Mean of each channel of images after division by 255, or one for all.
        std: Standard deviation of each channel, or one for all.
        regression: Whether the target is a number, float32, instead of a class.
        in_memory: Whether all samples are converted at once. Otherwise each is converted when it is asked for, which is
            slow but needs little memory.
        **options: Further arguments of :class:`~fl_lightning.data.ImageDataModule`.

    Raises:
        FileNotFoundError: If ``path`` names a file that is not there.
        RuntimeError: If the data set cannot be loaded.
        ValueError: At set-up, if a column or split is missing or does not suit, or there is nothing to share samples
            out by.
    """

    always_images = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        inputs: str | Sequence[str],
        label: str,
        client: str | None = None,
        *,
        partitioner: PartitionFunction | None = None,
        name: str | None = None,
        train_split: str = "train",
        test_split: str | None = None,
        data_files: str | Sequence[str] | Mapping[str, Any] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        pad_value: float = 0,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        regression: bool = False,
        in_memory: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, **options)
        self.path = os.fspath(as_path("path", path)) if not isinstance(path, str) else path
        self.inputs = [inputs] if isinstance(inputs, str) else inputs
        self.label, self.client, self.name = label, client, name
        self.train_split, self.test_split, self.data_files = train_split, test_split, data_files
        self.cache_dir = None if cache_dir is None else os.fspath(as_path("cache_dir", cache_dir))
        self.transform, self.pad_value, self.regression, self.in_memory = transform, pad_value, regression, in_memory
        check_arguments(self)
        self.mean = channel_numbers("mean", mean)  # type: ignore[misc]
        self.std = channel_numbers("std", std)  # type: ignore[misc]
        if not self.inputs or label in self.inputs:
            raise ValueError(f"`inputs` must name one or more columns, and not the `label`, got {self.inputs}.")
        if not is_number(pad_value):
            raise ValueError(f"`pad_value` must be a number, got {pad_value!r}. 0 is the default.")
        if len(self.inputs) > 1 and (transform is not None or not in_memory):
            raise ValueError(f"`transform` and `in_memory=False` are for a single input column, got {self.inputs}.")

    def prepare_data(self) -> None:
        """Download the data set, or convert its files, into the cache of ``datasets``."""
        self._read_splits()

    def load(self) -> Source:
        """Read the columns of all samples."""
        import datasets

        parts = self._read_splits()
        for part in parts:
            check_columns([*self.inputs, self.label, self.client], part.column_names, self.path)
        whole = datasets.concatenate_datasets(parts)
        self._set_clients_by(self.client, partial(read_column, whole))
        target, names = self._targets(whole)
        test = None if len(parts) == 1 else np.arange(len(parts[0]), len(whole))
        labels = None if self.regression else target.numpy()
        if not self.in_memory:
            convert = converter(whole.features[self.inputs[0]], self.inputs[0], self.transform)
            return Source(LazyRows(whole, self.inputs[0], convert, target), labels, test, names)
        try:
            x = torch.from_numpy(stack_columns(whole, self.inputs, self.transform, self.pad_value))
        except (OSError, SyntaxError) as error:  # PIL's errors at a broken image
            raise RuntimeError(
                f"A value in column {self.inputs[0]!r} of {self.path} cannot be decoded ({error}). Delete the data "
                "set and fetch it again."
            ) from error
        return Source(TensorDataset(x, target), labels, test, names)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale, normalise and augment images on their device; other inputs stay as they are."""
        x = batch[0]
        is_images = isinstance(x, Tensor) and x.dtype == torch.uint8 and x.dim() == 4
        return super().on_after_batch_transfer(batch, dataloader_idx) if is_images else batch

    def _targets(self, whole: datasets.Dataset) -> tuple[Tensor, Sequence[str] | None]:
        """Return the targets, shape (N,), and the names of the classes."""
        values = read_column(whole, self.label)
        if self.regression:
            return torch.from_numpy(regression_targets(values, f"Column {self.label!r} of {self.path}")), None
        names = getattr(whole.features[self.label], "names", None)
        if names is None:
            labels, names = encode_classes(values, f"`label` column {self.label!r}")
            return torch.from_numpy(labels), names
        if values.min() < 0:
            raise ValueError(
                f"Column {self.label!r} of {self.path} has unlabelled samples, such as {int(values.argmin())}; do not "
                "read the split that they are in."
            )
        return torch.from_numpy(values.astype(np.int64)), names

    def _read_splits(self) -> list[datasets.Dataset]:
        import datasets

        try:
            content = self._open()
        except (
            OSError,
            ValueError,
            IndexError,
            datasets.exceptions.DatasetsError,
        ) as error:  # IndexError: an empty one
            if isinstance(error, FileNotFoundError) and Path(self.path).suffix in _BUILDERS:
                raise
            raise RuntimeError(
                f"The data set {self.path} could not be loaded ({error}). Give a name on the Hub, with network access "
                "for the first time, a folder that `save_to_disk` wrote, or a file that ends in "
                f"{', '.join(_BUILDERS)}."
            ) from None
        if isinstance(content, datasets.Dataset):
            content = datasets.DatasetDict({"train": content})
        splits = [split for split in (self.train_split, self.test_split) if split is not None]
        missing = [split for split in splits if split not in content]
        if missing:
            raise ValueError(
                f"{self.path} has no split {missing[0]!r}; its splits are {', '.join(map(repr, content))}."
            )
        # a saved format, such as "torch", would turn values into tensors
        return [content[split].with_format(None) for split in splits]

    def _open(self) -> datasets.Dataset | datasets.DatasetDict:
        import datasets

        path = Path(self.path)
        if path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
            return datasets.load_from_disk(self.path)
        builder = _BUILDERS.get(path.suffix)
        if builder is None:
            return datasets.load_dataset(self.path, self.name, data_files=self.data_files, cache_dir=self.cache_dir)
        if not path.is_file():
            raise FileNotFoundError(f"There is no file {self.path}. Put it there, or give another `path`.")
        return datasets.load_dataset(builder, data_files={"train": self.path}, cache_dir=self.cache_dir)
