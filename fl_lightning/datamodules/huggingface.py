"""Any data set of Hugging Face's ``datasets`` library, by name or from local files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, StackDataset, TensorDataset
from tqdm.auto import tqdm

from fl_lightning.data import ImageDataModule, PartitionFunction, Source
from fl_lightning.data.batches import TransformedDataset
from fl_lightning.data.images import channel_numbers
from fl_lightning.datamodules.columns import (
    check_complete,
    check_there,
    clients_of_column,
    encode_classes,
    numbers_to_predict,
)
from fl_lightning.datamodules.files import as_path, reading
from fl_lightning.settings import Finite, check_arguments

if TYPE_CHECKING:
    import datasets

#: The builder of ``datasets`` for each kind of file.
_BUILDERS = {
    ".parquet": "parquet",
    ".json": "json",
    ".jsonl": "json",
    ".csv": "csv",
    ".arrow": "arrow",
}
#: Rows that are decoded at a time.
_ROWS = 1000


class HuggingFaceDataModule(ImageDataModule):
    """Serves ``(x, y)`` from columns of a data set, by its client column or by a partitioner.

    The kind of x depends on the column. Images stay bytes, shape (n, C, H, W), which are scaled to [0, 1] and
    normalised a batch at a time on the device. Numbers and lists of numbers become tensors. Strings need a
    ``transform``.

    Args:
        path: Name on the Hub, such as ``"flwrlabs/femnist"``; a folder that ``save_to_disk`` wrote; a ``.parquet``,
            ``.json``, ``.jsonl``, ``.csv`` or ``.arrow`` file; or one of ``datasets``' builders, with ``data_files``.
        inputs: The input column, or several columns of numbers, which become one vector each.
        label: Column of the target: classes as numbers or strings.
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
        RuntimeError: If the data set cannot be loaded; at set-up, if inputs are not numbers or of several shapes.
        ValueError: At set-up, if a column or split is missing or does not suit, or there is nothing to share samples
            out by.

    Example:
        >>> from fl_lightning.partitioners import DirichletPartitioner
        >>> partitioner = DirichletPartitioner(20, alpha=0.5)
        >>> data = HuggingFaceDataModule("news.parquet", "tokens", label="topic", partitioner=partitioner)
        >>> trainer.fit(module, datamodule=data)  # doctest: +SKIP
    """

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
        pad_value: Finite = 0,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        regression: bool = False,
        in_memory: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, **options)
        # A name on the Hub is no path, so a string stays as it is.
        self.path = path if isinstance(path, str) else os.fspath(as_path("path", path))
        self.inputs = [inputs] if isinstance(inputs, str) else inputs
        self.label = label
        self.client = client
        self.name = name
        self.train_split = train_split
        self.test_split = test_split
        self.data_files = data_files
        self.cache_dir = None if cache_dir is None else os.fspath(as_path("cache_dir", cache_dir))
        self.transform = transform
        self.pad_value = pad_value
        self.regression = regression
        self.in_memory = in_memory
        check_arguments(self)
        self.mean = channel_numbers("mean", mean)  # type: ignore[misc]
        self.std = channel_numbers("std", std)  # type: ignore[misc]
        if not self.inputs or label in self.inputs:
            raise ValueError(f"`inputs` must name one or more columns, and not the `label`, got {self.inputs}.")
        needs_one_column = transform is not None or not in_memory
        if needs_one_column and len(self.inputs) > 1:
            raise ValueError(f"`transform` and `in_memory=False` are for a single input column, got {self.inputs}.")

    def prepare_data(self) -> None:
        """Download the data set, or convert its files, into the cache of ``datasets``."""
        self._read_splits()

    def load(self) -> Source:
        """Read the columns of all samples."""
        import datasets

        parts = self._read_splits()
        for part in parts:
            check_there([*self.inputs, self.label, self.client], part.column_names, self.path)
        whole = datasets.concatenate_datasets(parts)
        clients = clients_of_column(self.client, self.partitioner, partial(_read_column, whole))
        target, names = self._targets(whole)
        labels = None if self.regression else target.numpy()
        test = None
        if self.test_split is not None:
            test = np.arange(len(parts[0]), len(whole))
        samples: Dataset[Any]
        if self.in_memory:
            samples = TensorDataset(self._inputs(whole), target)
        else:
            _check_complete(whole, self.inputs[0])
            inputs = TransformedDataset(whole.select_columns(self.inputs), self._convert_row)
            # A tensor has samples by position, too.
            samples = StackDataset(inputs, target)  # type: ignore[arg-type]
        return Source(samples, labels, test, names, clients=clients)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Scale, normalise and augment images on their device; other inputs stay as they are."""
        x = batch[0]
        are_images = isinstance(x, Tensor) and x.dtype == torch.uint8 and x.dim() == 4
        return super().on_after_batch_transfer(batch, dataloader_idx) if are_images else batch

    def _targets(self, whole: datasets.Dataset) -> tuple[Tensor, Sequence[str] | None]:
        """Return the targets, shape (N,), and the names of the classes."""
        values = _read_column(whole, self.label)
        name = f"`label` column {self.label!r}"
        if self.regression:
            return torch.from_numpy(numbers_to_predict(values, name)), None
        names = getattr(whole.features[self.label], "names", None)
        if names is None:
            labels, names = encode_classes(values, name)
            return torch.from_numpy(labels), names
        if values.min() < 0:
            raise ValueError(
                f"Column {self.label!r} of {self.path} has samples without a label, such as {int(values.argmin())}. "
                "Read other splits than theirs."
            )
        return torch.from_numpy(values.astype(np.int64)), names

    def _inputs(self, whole: datasets.Dataset) -> Tensor:
        """Return one column's values, shape (N, ...), or several columns of numbers, float32, shape (N, columns)."""
        import datasets

        if len(self.inputs) > 1:
            columns = [_read_column(whole, column) for column in self.inputs]
            return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))
        [column] = self.inputs
        _check_complete(whole, column)
        if self.transform is None and not isinstance(whole.features[column], datasets.Image):
            # This is many times faster than Python's numbers.
            whole = whole.with_format("numpy")
        batches = whole.select_columns([column]).iter(_ROWS)
        values = []
        with reading(f"Column {column!r} of {self.path}", "numbers or images of one shape"):
            for batch in tqdm(batches, f"Reading {column}", leave=False, disable=None):
                for value in batch[column]:
                    values.append(torch.from_numpy(self._convert(value)))
            if len({value.dtype for value in values}) > 1:
                values = [value.float() for value in values]
            if values[0].dim() == 1:
                return pad_sequence(values, batch_first=True, padding_value=self.pad_value)
            return torch.stack(values)

    def _convert(self, value: Any) -> np.ndarray:
        """Return a value of the input column as an array: a single number is a vector of one feature."""
        if self.transform is not None:
            value = self.transform(value)
        elif isinstance(value, Image.Image):
            return _pixels(value)
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise ValueError(
                f"a value is {array.dtype}. Give a `transform` that makes numbers of one value, such as a tokeniser: "
                "`lambda text: tokenizer(text)['input_ids']`."
            )
        if array.dtype.kind == "f" or array.ndim == 0:
            array = array.astype(np.float32)
        elif self.transform is None:
            array = array.astype(np.int64)
        return np.atleast_1d(array)

    def _convert_row(self, row: Mapping[str, Any]) -> np.ndarray:
        return self._convert(row[self.inputs[0]])

    def _read_splits(self) -> list[datasets.Dataset]:
        import datasets

        with reading(self.path, "a data set"):
            content = self._open()
        if isinstance(content, datasets.Dataset):
            content = datasets.DatasetDict({"train": content})
        splits = [self.train_split]
        if self.test_split is not None:
            splits.append(self.test_split)
        check_there(splits, content, self.path, "split")
        # A saved format, such as "torch", would turn values into tensors.
        return [content[split].with_format(None) for split in splits]

    def _open(self) -> datasets.Dataset | datasets.DatasetDict:
        import datasets

        path = Path(self.path)
        # `save_to_disk` writes the first for one split, and the second for several.
        if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
            return datasets.load_from_disk(self.path)
        if path.suffix in _BUILDERS:
            builder = _BUILDERS[path.suffix]
            return datasets.load_dataset(builder, data_files={"train": self.path}, cache_dir=self.cache_dir)
        return datasets.load_dataset(self.path, self.name, data_files=self.data_files, cache_dir=self.cache_dir)


def _check_complete(content: datasets.Dataset, column: str) -> None:
    values = content.select_columns([column]).with_format("arrow")[:][column]
    check_complete(values.is_null().to_numpy(), column)


def _read_column(content: datasets.Dataset, column: str) -> np.ndarray:
    """Return a column of numbers or strings, shape (N,)."""
    _check_complete(content, column)
    return np.array(content.select_columns([column])[column][:])


def _pixels(image: Image.Image) -> np.ndarray:
    """Return an image as bytes, shape (1, H, W) in shades of grey, (3, H, W) otherwise."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(
            f"Images of mode {image.mode!r} have more than 256 shades of grey, which bytes cannot hold. Give a "
            "`transform` that makes an array of one, such as `lambda image: numpy.array(image) / 65535`."
        )
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = np.array(image)
    if pixels.ndim == 2:
        return pixels[None]
    return pixels.transpose(2, 0, 1)
