"""Tables of the user's own: CSV or Parquet, a row per sample."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence, Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from fl_lightning.data import FederatedDataModule, PartitionFunction, Source
from fl_lightning.data.inputs import Imputation
from fl_lightning.datamodules.columns import (
    check_complete,
    check_there,
    clients_of_column,
    encode_classes,
    numbers_to_predict,
)
from fl_lightning.datamodules.files import as_path, reading
from fl_lightning.settings import check_arguments

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_PARQUET = (".parquet", ".pq")


class TableDataModule(FederatedDataModule):
    """Serves the rows of a CSV or Parquet file, ``(x, y)``, by the client column or by a partitioner.

    A sample has the numeric features first, in the given order, then 0/1 indicators of each categorical column's
    values, ascending. ``standardize`` changes only the numeric features.

    Clients, classes and categorical values of a CSV file are numbers if each is written as that number: where one is
    ``001``, in the file or in the test file, all of the column are strings, and ``1`` is another one.

    Args:
        path: The file: Parquet if it ends in ``.parquet`` or ``.pq``, else CSV, maybe gzipped (``.csv.gz``).
        label: Column of the target. Its distinct values, ascending, are the classes.
        client: Column of each row's client; not needed with a partitioner.
        features: Columns of numbers that are inputs; all other columns if ``None``, which must then have names.
        categorical: Input columns that become indicators, numbers or strings.
        partitioner: Shares the rows out in place of the client column, which is then not used, nor an input.
        test_path: A file of the same columns that is the test set, whatever the split: no row trains, and each belongs
            to its client.
        impute: ``"local"`` fills missing numbers with the client's mean, ``"global"`` with that of all training
            clients; ``None`` refuses missing numbers.
        regression: Whether the target is a number, float32, instead of a class.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        FileNotFoundError: At set-up, if there is no such file.
        RuntimeError: At set-up, if a file is damaged or of another kind.
        ValueError: If an argument is unknown; at set-up, if a column is missing, has missing values or no numbers, or
            nothing says which client holds which row.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"age": range(30), "died": [0, 1] * 15, "hospital": list("abcde") * 6})
        >>> table.to_csv("stays.csv", index=False)
        >>> data = TableDataModule("stays.csv", label="died", client="hospital", standardize="global")
        >>> data.setup()
        >>> data.client_names
        ['a', 'b', 'c', 'd', 'e']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        label: str,
        client: str | None = None,
        *,
        features: Sequence[str] | None = None,
        categorical: Sequence[str] = (),
        partitioner: PartitionFunction | None = None,
        test_path: str | os.PathLike[str] | None = None,
        impute: Imputation | None = None,
        regression: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(partitioner, impute=impute, **options)
        self.path = as_path("path", path)
        self.test_path = None if test_path is None else as_path("test_path", test_path)
        self.label = label
        self.client = client
        self.features = features
        self.categorical = categorical
        self.regression = regression
        check_arguments(self)
        named = [label, *(features or ()), *categorical]
        for name in named:
            if named.count(name) > 1:
                raise ValueError(
                    f"`features` and `categorical` must name each input once, and not the `label`, got {name!r} twice."
                )
        self.feature_names: list[str] = []

    def load(self) -> Source:
        """Read the files: float32, shape (N, features)."""
        import pandas

        # These columns name classes and clients. The others are numbers.
        keys = set(self.categorical)
        if self.client is not None:
            keys.add(self.client)
        if not self.regression:
            keys.add(self.label)
        keys -= set(self.features or ())
        paths = [self.path]
        if self.test_path is not None:
            paths.append(self.test_path)
        frames = [_read(path, keys) for path in paths]
        features = self._numeric_columns(frames[0])
        for each, path in zip(frames, paths, strict=True):
            check_there([self.label, self.client, *features, *self.categorical], each.columns, path)
        frame = pandas.concat(frames, ignore_index=True)
        # A CSV file has strings. Numbers are made of them now, so that a value that is written alike in both files is
        # the same.
        if not all(_is_parquet(path) for path in paths):
            for key in keys:
                if all(isinstance(value, str) for value in frame[key]):
                    frame[key] = _as_numbers(frame[key])
        clients = clients_of_column(self.client, self.partitioner, partial(_complete, frame))
        target = _complete(frame, self.label)
        name = f"`label` column {self.label!r}"
        x = torch.from_numpy(self._inputs(frame, features))
        test = None
        if self.test_path is not None:
            test = np.arange(len(frames[0]), len(frame))
        if self.regression:
            y = torch.from_numpy(numbers_to_predict(target, name))
            return Source(TensorDataset(x, y), test_indices=test, clients=clients)
        labels, names = encode_classes(target, name)
        return Source(TensorDataset(x, torch.from_numpy(labels)), labels, test, names, clients=clients)

    def _numeric_columns(self, frame: DataFrame) -> list[str]:
        if self.features is not None:
            return list(self.features)
        used = {self.label, self.client, *self.categorical}
        left = [name for name in frame.columns if name not in used]
        for name in left:
            if str(name).startswith("Unnamed: "):
                raise ValueError(
                    f"{self.path} has a column without a name, {name!r}, most likely the row numbers that `to_csv` "
                    "wrote. Write the file with `index=False`, or name the inputs in `features`."
                )
        return left

    def _inputs(self, frame: DataFrame, numeric: list[str]) -> np.ndarray:
        x = _numbers(frame, numeric)
        wrong = ~np.isfinite(x)
        if self.impute is not None:
            wrong &= ~np.isnan(x)
        if wrong.any():
            column = numeric[int(wrong.any(axis=0).argmax())]
            raise ValueError(
                f"Column {column!r} of {self.path} has missing numbers, or some too large for float32. Give "
                "`impute='local'` or `'global'`, rescale it, or leave it out by `features`."
            )
        parts = [x]
        names = list(numeric)
        for column in self.categorical:
            otherwise = "Leave it out of `categorical`."
            codes, values = encode_classes(_complete(frame, column), f"Column {column!r}", otherwise)
            indicators = codes[:, None] == np.arange(len(values))
            parts.append(indicators.astype(np.float32))
            names += [f"{column}={value}" for value in values]
        self.feature_names = names
        self.standardized_features = slice(0, len(numeric))  # type: ignore[misc]
        return np.concatenate(parts, axis=1)


def _is_parquet(path: Path) -> bool:
    return path.suffix.lower() in _PARQUET


def _read(path: Path, keys: Set[str]) -> DataFrame:
    """Return a file's rows; the columns ``keys`` of a CSV file are strings."""
    import pandas

    with reading(path, "a CSV or Parquet file"), warnings.catch_warnings():
        if _is_parquet(path):
            return pandas.read_parquet(path)
        # pandas warns of rows that are longer than the header.
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        # Without `index_col` the first column of such rows would become row numbers.
        return pandas.read_csv(path, dtype=dict.fromkeys(keys, str), index_col=False)


def _as_numbers(strings: Series) -> Series:
    """Return strings as numbers, unless two strings, such as 001 and 1, would become the same number.

    Whole numbers must be written as Python writes them. Spaces around a number do not count.
    """
    import pandas

    stripped = strings.str.strip()
    try:
        numbers = pandas.to_numeric(stripped)
    except (ValueError, OverflowError):
        return strings
    if numbers.dtype.kind in "iu":
        is_same = bool((numbers.astype(str) == stripped).all())
    else:
        is_same = numbers.nunique() == stripped.nunique()
    return numbers if is_same else stripped


def _complete(frame: DataFrame, column: str) -> np.ndarray:
    """Return a column's values; other values than numbers as strings. None may be missing."""
    check_complete(frame[column].isna().to_numpy(), column)
    values: np.ndarray = frame[column].to_numpy()
    return values if values.dtype.kind in "biuf" else values.astype(str)


def _numbers(frame: DataFrame, columns: Sequence[str]) -> np.ndarray:
    """Return columns of numbers, float32, shape (N, columns), NaN where one is missing."""
    from pandas.api.types import is_numeric_dtype

    for column in columns:
        if not is_numeric_dtype(frame[column]):
            raise ValueError(
                f"Column {column!r} does not hold numbers but {frame[column].dtype}. Name it in `categorical` to make "
                "indicators of its values, or leave it out by `features`."
            )
    # Numbers that are too large for float32 become infinite.
    with np.errstate(over="ignore"):
        values: np.ndarray = frame[list(columns)].to_numpy(dtype=np.float32, na_value=np.nan)
    return values
