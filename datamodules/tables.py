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

from datamodules.columns import check_names, encode_classes, regression_targets
from datamodules.files import UNREADABLE, as_path
from datamodules.natural import NaturalDataModule
from fl_lightning.arguments import check_bool, check_choice, check_text
from fl_lightning.data import PartitionFunction, Source
from fl_lightning.data.inputs import Imputation

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_CSV = (".csv", ".csv.gz")


class TableDataModule(NaturalDataModule):
    """Serves the rows of a CSV or Parquet file, ``(x, y)``, by the client column or by a partitioner.

    A sample has the numeric features first, in the given order, then 0/1 indicators of each categorical column's
    values, ascending. ``standardize`` changes only the numeric features.

    Clients, classes and categorical values of a CSV file are numbers if each is written as that number: where one is
    ``001``, in the file or in the test file, all of the column are texts, and ``1`` is another one.

    Args:
        path: The file: ``.csv``, ``.csv.gz``, ``.parquet`` or ``.pq``.
        label: Column of the target. Its distinct values, ascending, are the classes.
        client: Column of each row's client; not needed with a partitioner.
        features: Columns of numbers that are inputs; all other columns if ``None``, which must then have names.
        categorical: Input columns that become indicators, numbers or texts.
        partitioner: Shares the rows out in place of the client column, which is then not used, nor an input.
        test_path: A file of the same columns that is the test set, whatever the split: of no client, and no row trains.
        impute: ``"local"`` fills missing numbers with the client's mean, ``"global"`` with that of all training
            clients; ``None`` refuses missing numbers.
        regression: Whether the target is a number, float32, instead of a class.
        **options: Further arguments of :class:`~fl_lightning.data.FederatedDataModule`.

    Raises:
        FileNotFoundError: At set-up, if there is no such file.
        ValueError: If an argument is unknown; at set-up, if a file is of another kind or unreadable, a column is
            missing, has missing values or no numbers, or nothing says which client holds which row.
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
        if impute is not None:
            check_choice("impute", impute, ("local", "global"), "None refuses missing numbers.")
        super().__init__(partitioner, impute=impute, **options)
        check_text("label", label, "Give the name of a column.")
        if client is not None:
            check_text("client", client, "Give the name of a column.")
        check_bool("regression", regression)
        inputs = [
            *check_names("features", () if features is None else features),
            *check_names("categorical", categorical),
        ]
        wrong = next((name for name in inputs if name == label or inputs.count(name) > 1), None)
        if wrong is not None:
            raise ValueError(
                f"`features` and `categorical` must name each input once, and not the `label`, got {wrong!r} twice."
            )
        self.path = as_path("path", path, _way_to_one_file(client))
        self.label = label
        self.client = client
        self.features = None if features is None else list(features)
        self.categorical = tuple(categorical)
        self.test_path = None if test_path is None else as_path("test_path", test_path)
        self.regression = regression
        self.feature_names: list[str] = []

    def load(self) -> Source:
        """Read the files: float32, shape (N, features)."""
        import pandas

        keys = {*self.categorical, *([] if self.client is None else [self.client])}
        keys |= set() if self.regression else {self.label}
        keys -= set(self.features or ())  # which are numbers
        paths = [path for path in (self.path, self.test_path) if path is not None]
        frames = [_read(path, keys, self.client) for path in paths]
        features = self._numeric_columns(frames[0])
        for frame, path in zip(frames, paths, strict=True):
            self._check_columns(frame, features, str(path))
        if all(map(_is_csv, paths)):  # a value is the same in both files if it is written alike
            frame = _with_numbers(pandas.concat(frames, ignore_index=True), keys)
        else:
            read = [
                _with_numbers(each, keys) if _is_csv(path) else each for each, path in zip(frames, paths, strict=True)
            ]
            frame = pandas.concat(read, ignore_index=True)
        self._set_clients_by(self.client, partial(_complete, frame))
        target = _complete(frame, self.label)
        x = torch.from_numpy(self._inputs(frame, features))
        test = None if self.test_path is None else np.arange(len(frames[0]), len(frame))
        if self.regression:
            numbers = regression_targets(target, f"Column {self.label!r} of {self.path}")
            return Source(TensorDataset(x, torch.from_numpy(numbers)), None, test)
        labels, names = encode_classes(target, f"`label` column {self.label!r}")
        return Source(TensorDataset(x, torch.from_numpy(labels)), labels, test, names)

    def _numeric_columns(self, frame: DataFrame) -> list[str]:
        if self.features is not None:
            return list(self.features)
        used = {self.label, self.client, *self.categorical}
        left = [name for name in frame.columns if name not in used]
        nameless = next((name for name in left if str(name).startswith("Unnamed: ")), None)
        if nameless is not None:
            raise ValueError(
                f"{self.path} has a column without a name, {nameless!r}, most likely the row numbers that `to_csv` "
                "wrote. Write the file with `index=False`, or name the inputs in `features`."
            )
        return left

    def _inputs(self, frame: DataFrame, numeric: list[str]) -> np.ndarray:
        x = _numbers(frame, numeric)
        if np.isinf(x).any():
            raise ValueError(
                f"Column {numeric[int(np.isinf(x).any(axis=0).argmax())]!r} of {self.path} has numbers that are "
                "infinite or too large for float32. Rescale it, or leave it out by `features`."
            )
        if self.impute is None and np.isnan(x).any():
            column = numeric[int(np.isnan(x).any(axis=0).argmax())]
            raise ValueError(
                f"Column {column!r} of {self.path} has missing numbers. Give `impute='local'` or `'global'`, or leave "
                "it out by `features`."
            )
        parts, names = [x], list(numeric)
        for column in self.categorical:
            codes, values = encode_classes(_complete(frame, column), f"Column {column!r}")
            parts.append((codes[:, None] == np.arange(len(values))).astype(np.float32))
            names += [f"{column}={value}" for value in values]
        self.feature_names = names
        self.standardized_features = slice(0, len(numeric))  # type: ignore[misc]
        return np.concatenate(parts, axis=1)

    def _check_columns(self, frame: DataFrame, features: list[str], path: str) -> None:
        needed = [self.label, *([] if self.client is None else [self.client]), *features, *self.categorical]
        missing = [name for name in needed if name not in frame.columns]
        if missing:
            raise ValueError(
                f"{path} has no column {missing[0]!r}; its columns are {', '.join(map(str, frame.columns))}. Give "
                "names of these, or another file."
            )
        if len(frame) == 0:
            raise ValueError(f"{path} has no rows.")
        if not features and not self.categorical:
            raise ValueError(f"{path} has no column left for inputs. Name some in `features` or `categorical`.")


def _way_to_file(client: str | None) -> str:
    column = "..." if client is None else repr(client)
    return (
        'Save it first: frame.to_csv("table.csv", index=False), or give TorchDatasetDataModule(TensorDataset(x, y), '
        f"clients=frame[{column}])."
    )


def _way_to_one_file(client: str | None) -> str:
    column = "client" if client is None else client
    return (
        "`path` is one file, with the rows of all clients. To join several: pandas.concat(pandas.read_csv(path).assign("
        f'**{{{column!r}: Path(path).stem}}) for path in paths).to_csv("table.csv", index=False).'
    )


def _read(path: Path, keys: Set[str], client: str | None) -> DataFrame:
    """Return a file's rows; the columns ``keys`` of a CSV file are texts."""
    import pandas

    readers = dict.fromkeys(_CSV, pandas.read_csv) | dict.fromkeys((".parquet", ".pq"), pandas.read_parquet)
    reader = next((reader for suffix, reader in readers.items() if path.name.lower().endswith(suffix)), None)
    if path.is_dir() or "*" in path.name:
        raise ValueError(f"{path} is not a file. {_way_to_one_file(client)}")
    if reader is None:
        raise ValueError(f"{path} must end in one of {', '.join(readers)}, to say what kind of table it is.")
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}. Give the path of a CSV or Parquet file.")
    try:
        if not _is_csv(path):
            return reader(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            # without `index_col` the first column of rows that are longer than the header would become row numbers
            frame: DataFrame = reader(path, dtype=dict.fromkeys(keys, str), index_col=False)
    except pandas.errors.ParserWarning as error:
        raise ValueError(
            f"{path} has more values in its rows than names in its header, so the columns cannot be matched "
            "to the names. Give each column a name, row numbers too."
        ) from error
    except UNREADABLE as error:
        raise ValueError(
            f"{path} cannot be read as a table ({str(error).strip()}). Give a whole CSV or Parquet file."
        ) from error
    return frame


def _is_csv(path: Path) -> bool:
    return path.name.lower().endswith(_CSV)


def _with_numbers(frame: DataFrame, keys: Set[str]) -> DataFrame:
    """Return rows of CSV files; values of the columns ``keys`` that are written differently differ."""
    for key in keys & set(frame.columns):
        frame[key] = _as_numbers(frame[key])
    return frame


def _as_numbers(texts: Series) -> Series:
    """Return texts as numbers, unless two texts, such as 001 and 1, or 1.0 and 1, would become the same or others.

    Spaces around a number do not count.
    """
    import pandas

    texts, given = texts.str.strip(), texts
    try:
        numbers = pandas.to_numeric(texts)
    except (ValueError, OverflowError):
        return given
    if numbers.dtype.kind in "iu":
        return numbers if (numbers.astype(str) == texts).all() else texts
    return numbers if numbers.nunique() == texts.nunique() else texts


def _complete(frame: DataFrame, column: str) -> np.ndarray:
    """Return a column's values, texts as ``str``; none may be missing."""
    missing = frame[column].isna().to_numpy()
    if missing.any():
        raise ValueError(f"Column {column!r} has no value in row {missing.argmax()}, counted from 0; drop such rows.")
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
    with np.errstate(over="ignore"):  # numbers that are too large become infinite
        values: np.ndarray = frame[list(columns)].to_numpy(dtype=np.float32, na_value=np.nan)
    return values
