"""A catalogue of wrong values, and whether each is refused by an error that names the argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fl_lightning.data import ClientSplit
from fl_lightning.partitioners import IIDPartitioner, Partition, TopicGraph

X, Y = torch.arange(120.0).view(40, 3), torch.arange(40) % 4
IID = IIDPartitioner(5)
PARTITION = Partition((np.arange(5), np.arange(5, 9)))
GRAPH = TopicGraph(("Top/A", "Top/B"), np.array([[0, 1]]))

VALUES: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "np.True_": np.True_,
    "0": 0,
    "-1": -1,
    "3": 3,
    "10**30": 10**30,
    "np.int64(3)": np.int64(3),
    "0.5": 0.5,
    "2.0": 2.0,
    "np.float32(0.5)": np.float32(0.5),
    "nan": float("nan"),
    "inf": float("inf"),
    "-inf": -float("inf"),
    "1j": 1j,
    "np.array(3)": np.array(3),
    "tensor(3)": torch.tensor(3),
    "''": "",
    "'classifier'": "classifier",
    "b'x'": b"x",
    "[]": [],
    "[True, False]": [True, False],
    "[0.5]": [0.5],
    "['a']": ["a"],
    "[None]": [None],
    "[[1], [1, 2]]": [[1], [1, 2]],
    "{}": {},
    "{1, 2}": {1, 2},
    "numbers": np.arange(40),
    "mask": np.arange(40) % 2 == 0,
    "nans": np.full(40, np.nan),
    "inputs": X,
    "object": object(),
    "class": dict,
    "function": lambda value: None,
    "partitioner": IID,
    "partition": PARTITION,
    "split": ClientSplit(),
    "graph": GRAPH,
}

CALLABLE = {"class", "function", "partitioner"}
KINDS: dict[str, set[str]] = {
    "count": {"3", "np.int64(3)", "10**30"},
    "count or 0": {"0", "3", "np.int64(3)", "10**30"},
    "size of a tensor": {"3", "np.int64(3)"},
    "index": {"0", "3", "np.int64(3)"},
    "positive": {"3", "0.5", "2.0", "np.int64(3)", "np.float32(0.5)", "10**30"},
    "not negative": {"0", "3", "0.5", "2.0", "np.int64(3)", "np.float32(0.5)", "10**30"},
    "any number": {"0", "-1", "3", "10**30", "np.int64(3)", "0.5", "2.0", "np.float32(0.5)", "nan", "inf", "-inf"},
    "finite number": {"0", "-1", "3", "10**30", "np.int64(3)", "0.5", "2.0", "np.float32(0.5)"},
    "share": {"0", "0.5", "np.float32(0.5)"},
    "positive share": {"0.5", "np.float32(0.5)"},
    "above 1": {"3", "2.0", "np.int64(3)", "10**30", "inf"},
    "bool": {"True", "False", "np.True_"},
    "choice": set(),
    "text": {"'classifier'"},
    "texts": {"[]", "['a']"},
    "some texts": {"['a']", "'classifier'"},
    "path": {"'classifier'"},
    "partitioner": {"function", "partitioner"},
    "callable": CALLABLE,
    "callable with three arguments": {"class"},
    "split": {"split"},
    "graph": {"graph"},
    "partition": {"partition"},
    "inputs": {"inputs"},
    "labels": {"numbers", "mask"},
    "keys": {"numbers", "mask"},
    "numbers": {"numbers"},
    "some numbers": {"numbers", "[]", "[0.5]"},
    "indices": {"numbers", "[]"},
    "data set": {"numbers", "mask", "nans", "inputs"},
    "any data set": {"[True, False]", "[0.5]", "['a']", "[None]", "[[1], [1, 2]]", "numbers", "mask", "nans"}
    | {"inputs"},
    "file of a partition": {"partition"},
    "edges": {"[]"},
    "evaluation set": {"[]", "[None]"},
    "lists of samples": {"[[1], [1, 2]]"},
    "sets by client": {"[]", "[None]", "[[1], [1, 2]]"},
    "channels": {"[0.5]", "numbers"},
    "positive channels": {"[0.5]"},
    "data files": {"'classifier'", "''", "[]", "['a']", "{}"},
}

#: What makes it: arguments that are right, and the kind of each of its own.
Makers = Mapping[Callable[..., Any], tuple[dict[str, Any], dict[str, str]]]


def name_of(make: Callable[..., Any]) -> str:
    return str(getattr(make, "__qualname__", make))


def arguments_of(makers: Makers) -> list[Any]:
    """Return (what makes it, right arguments, argument, kind) of all arguments, as parameters of a test."""
    return [
        pytest.param(make, right, argument, kind, id=f"{name_of(make)}-{argument}")
        for make, (right, kinds) in makers.items()
        for argument, kind in kinds.items()
    ]


def labels_of(kind: str, kinds: Mapping[str, set[str]] = KINDS) -> set[str]:
    """Return the labels of the values that an argument of a kind accepts; a question mark stands for None."""
    return kinds[kind.removesuffix("?")] | ({"None"} if kind.endswith("?") else set())


def problems(
    make: Callable[..., Any],
    right: Mapping[str, Any],
    argument: str,
    accepted: set[str],
    values: Mapping[str, Any] = VALUES,
) -> list[str]:
    """Return the values that are refused although they mean something, accepted although they do not, or not named.

    Args:
        make: What is called with the values.
        right: Its other arguments.
        argument: The argument.
        accepted: The labels of values that mean something.
        values: The values by label.
    """
    found = []
    for label, value in values.items():
        try:
            repr(make(**{**right, argument: value}))
            outcome = "accepted"
        except (TypeError, ValueError, FileNotFoundError) as error:
            named = any(f"`{argument}{end}" in str(error) for end in "`[(=")
            outcome = "refused" if named else f"not named: {error}"
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        if outcome != ("accepted" if label in accepted else "refused"):
            found.append(f"{label}: {outcome}")
    return found
