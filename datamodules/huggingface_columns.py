"""Columns of a Hugging Face data set as arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

if TYPE_CHECKING:
    import datasets

Convert = Callable[[Any], np.ndarray]

_ROWS = 1000  # rows that are decoded at a time


def read_column(content: datasets.Dataset, column: str) -> np.ndarray:
    """Return a column of numbers or texts, shape (N,).

    Raises:
        ValueError: If a value is missing, or the column holds something else.
    """
    _check_complete(content, column)
    values = list(content.select_columns([column])[column][:])
    if not all(isinstance(value, (str, int, float)) for value in values):
        raise ValueError(f"Column {column!r} must hold numbers or texts, got {content.features[column]}.")
    return np.array(values)


def converter(feature: Any, column: str, transform: Callable[[Any], Any] | None) -> Convert:
    """Return the function that makes an array of one value of a column.

    Args:
        feature: The column's type.
        column: The column's name.
        transform: The user's function, which takes precedence.

    Raises:
        ValueError: If the column needs a transform.
    """
    import datasets

    if transform is not None:
        return partial(_features_by, transform)
    if isinstance(feature, datasets.Image):
        return _image
    while hasattr(feature, "feature"):
        feature = feature.feature
    kind = getattr(feature, "dtype", "")
    if isinstance(feature, datasets.ClassLabel) or kind.startswith(("int", "uint", "bool")):
        return partial(_features_by, partial(_whole_numbers, column))
    if kind.startswith("float"):
        return partial(_features_by, partial(np.asarray, dtype=np.float32))
    raise ValueError(
        f"Column {column!r} holds {kind or type(feature).__name__}, which is not a number. Give a `transform` that "
        "makes numbers of one value, such as a tokeniser: `lambda text: tokenizer(text)['input_ids']`."
    )


def _features_by(transform: Callable[[Any], Any], value: Any) -> np.ndarray:
    return _as_features(transform(value))


def _whole_numbers(column: str, value: Any) -> np.ndarray:
    """Return whole numbers of a value, int64; where one is missing, ``datasets`` gives NaN or ``None``."""
    array = np.asarray(value)
    if array.size and array.dtype.kind not in "iub":
        raise ValueError(
            f"Column {column!r} has a list with a missing number, {value}. Filter such rows out, or give a `transform` "
            "that fills it."
        )
    return array.astype(np.int64)


def stack_columns(
    content: datasets.Dataset, columns: Sequence[str], transform: Callable[[Any], Any] | None, pad_value: float
) -> np.ndarray:
    """Return the values of one column, shape (N, ...), or of several columns of numbers, float32, shape (N, columns).

    Lists of unequal lengths are filled up with ``pad_value``.

    Raises:
        ValueError: If a column's values are no numbers or not of one shape, or several columns hold no single numbers.
    """
    import datasets

    if len(columns) == 1:
        feature = content.features[columns[0]]
        convert = converter(feature, columns[0], transform)
        if transform is None and not isinstance(feature, datasets.Image):
            content = content.with_format("numpy")  # many times faster than Python's numbers
        return _stack(_values(content, columns[0], convert), len(content), pad_value, columns[0])
    parts = [read_column(content, column) for column in columns]
    texts = next((column for column, part in zip(columns, parts, strict=True) if part.dtype.kind not in "biuf"), None)
    if texts is not None:
        raise ValueError(f"Column {texts!r} of several `inputs` must hold numbers, got {content.features[texts]}.")
    return np.stack(parts, axis=1).astype(np.float32)


class LazyRows(Dataset[tuple[Any, Tensor]]):
    """Samples that are converted when they are asked for.

    Args:
        content: The data set.
        column: Its input column.
        convert: Makes an array of one value of it.
        targets: The target of each sample, shape (N,).
    """

    def __init__(self, content: datasets.Dataset, column: str, convert: Convert, targets: Tensor) -> None:
        _check_complete(content, column)
        self.content = content.select_columns([column])
        self.column = column
        self.convert = convert
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        return self.convert(self.content[int(index)][self.column]), self.targets[index]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Tensor]]:
        values = self.content[[int(index) for index in indices]][self.column]
        return [(self.convert(value), self.targets[index]) for value, index in zip(values, indices, strict=True)]


def _as_features(value: Any) -> np.ndarray:
    """Return numbers as an array, floating-point ones as float32; a single number is a vector of one feature."""
    array = np.asarray(value)
    if array.dtype.kind == "f" or (array.ndim == 0 and array.dtype.kind in "biu"):
        array = array.astype(np.float32)
    return array[None] if array.ndim == 0 else array


def _image(value: Any) -> np.ndarray:
    """Return a PIL image as bytes, shape (1, H, W) in shades of grey, (3, H, W) otherwise."""
    if value.mode.startswith(("I", "F")):
        raise ValueError(
            f"Images of mode {value.mode!r} have more than 256 shades of grey, which bytes cannot hold. Give a "
            "`transform` that makes an array of one, such as `lambda image: numpy.array(image) / 65535`."
        )
    pixels = np.array(value if value.mode in ("L", "RGB") else value.convert("L" if value.mode == "1" else "RGB"))
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _check_complete(content: datasets.Dataset, column: str) -> None:
    missing = content.select_columns([column]).with_format("arrow")[:][column].is_null().to_numpy()
    if missing.any():
        raise ValueError(
            f"Column {column!r} has no value in row {missing.argmax()}, counted from 0; filter such rows out."
        )


def _values(content: datasets.Dataset, column: str, convert: Convert) -> Iterator[np.ndarray]:
    _check_complete(content, column)
    batches = content.select_columns([column]).iter(batch_size=_ROWS)
    for batch in tqdm(batches, desc=f"Reading {column}", total=-(-len(content) // _ROWS), leave=False):
        yield from map(convert, batch[column])


def _stack(values: Iterator[np.ndarray], count: int, pad_value: float, column: str) -> np.ndarray:
    """Fill one array, which grows with the longest of 1-D values."""
    first = next(values)
    if first.dtype.kind not in "biuf":
        raise ValueError(f"`transform` must make numbers of a value of {column!r}, got {first.dtype}.")
    stacked = np.full((count, *first.shape), pad_value if first.ndim == 1 else 0, dtype=first.dtype)
    stacked[0] = first
    for row, value in enumerate(values, start=1):
        if not np.can_cast(value.dtype, stacked.dtype, "same_kind"):
            raise ValueError(
                f"`transform` must make numbers of one type, but row {row} of {column!r} has {value.dtype}."
            )
        if value.shape == stacked.shape[1:]:
            stacked[row] = value
        elif value.ndim == stacked.ndim - 1 == 1:
            if len(value) > stacked.shape[1]:
                stacked = np.pad(stacked, ((0, 0), (0, len(value) - stacked.shape[1])), constant_values=pad_value)
            stacked[row, : len(value)] = value
        else:
            raise ValueError(
                f"Column {column!r} holds values of different shapes, {stacked.shape[1:]} and {value.shape}. Give a "
                "`transform` that makes them alike, for example by resizing."
            )
    return stacked
