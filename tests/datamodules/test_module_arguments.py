"""Nonsense given to every data module: the error names the argument, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from datamodules import (
    CIFAR10DataModule,
    CovertypeDataModule,
    DMOZDataModule,
    EICUDataModule,
    HuggingFaceDataModule,
    MNISTDataModule,
    ShakespeareDataModule,
    TableDataModule,
)

table = partial(TableDataModule, "t.csv", "label", "site")
columns = partial(HuggingFaceDataModule, "t.parquet", "a", "label", "site")


@pytest.mark.parametrize("value", [0, 1.5, True])
@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (CIFAR10DataModule, "data_dir"),
        (MNISTDataModule, "data_dir"),
        (CovertypeDataModule, "data_dir"),
        (ShakespeareDataModule, "data_dir"),
        (EICUDataModule, "data_dir"),
        (DMOZDataModule, "data_dir"),
        (DMOZDataModule, "cache_dir"),
        (partial(TableDataModule, label="y"), "path"),
        (table, "test_path"),
        (partial(HuggingFaceDataModule, inputs="x", label="y"), "path"),
        (columns, "cache_dir"),
    ],
)
def test_paths(make: Callable[..., Any], argument: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"`{argument}` must be a path, as text or pathlib.Path, got {value}"):
        make(**{argument: value})


@pytest.mark.parametrize(
    ("make", "arguments", "error", "message"),
    [
        (CovertypeDataModule, {"class_counts": 5}, ValueError, "`class_counts` must be two numbers, .* got 5. None"),
        (CovertypeDataModule, {"class_counts": (5,)}, ValueError, r"`class_counts` must be two numbers, .* got \(5,\)"),
        (CovertypeDataModule, {"class_counts": (5, -1)}, ValueError, "`class_counts` must be a whole number"),
        (ShakespeareDataModule, {"fraction": "a"}, ValueError, r"`fraction` must be a number in \(0, 1\], got 'a'"),
        (ShakespeareDataModule, {"fraction": None}, ValueError, r"`fraction` must be a number in \(0, 1\], got None"),
        (
            DMOZDataModule,
            {"exclude": "News"},
            ValueError,
            r"`exclude` must be a sequence of names, got 'News'. Give \[",
        ),
        (DMOZDataModule, {"exclude": None}, ValueError, "`exclude` must be a sequence of names, got None"),
        (table, {"features": 5}, ValueError, "`features` must be a sequence of names, got 5"),
        (table, {"categorical": [1]}, ValueError, r"`categorical` must be a sequence of names, got \[1\]"),
        (columns, {"inputs": 5}, ValueError, "`inputs` must be a sequence of names, got 5"),
        (columns, {"inputs": []}, ValueError, r"`inputs` must name one or more columns, and not the `label`, got \[\]"),
        (
            columns,
            {"inputs": ["a", "label"]},
            ValueError,
            "`inputs` must name one or more columns, and not the `label`",
        ),
        (columns, {"mean": 0.5}, ValueError, "`mean` must be a sequence, a number for each channel .* got 0.5"),
        (columns, {"mean": ["a"]}, ValueError, "`mean` must hold finite numbers, got 'a'"),
        (columns, {"std": [float("nan")]}, ValueError, "`std` must hold finite numbers, got nan"),
        (columns, {"std": [0.0]}, ValueError, r"`std` must be greater than 0, got \[0.0\]"),
        (columns, {"pad_value": None}, ValueError, "`pad_value` must be a number, got None"),
        (columns, {"transform": 5}, TypeError, "`transform` must be a function of one value, got 5"),
    ],
)
def test_other_arguments(
    make: Callable[..., Any], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    options = {"path": "t.parquet", "label": "label", **arguments} if "inputs" in arguments else arguments
    with pytest.raises(error, match=message):
        (HuggingFaceDataModule if "inputs" in arguments else make)(**options)
