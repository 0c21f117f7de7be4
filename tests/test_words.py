"""Words of messages: numbers with their nouns, lists in a sentence, durations, names of what comes with the package."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fl_lightning.shipped import find_file, no_such, shipped
from fl_lightning.words import duration, enumeration, how_to_install, quantity, short_repr


def test_numbers_and_lists_in_a_sentence() -> None:
    assert [quantity(number, "client") for number in (0, 1, 2000)] == ["0 clients", "1 client", "2,000 clients"]
    assert [enumeration("abcd"[:number]) for number in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert enumeration("abc", by="or", most=1) == "a or 2 more"
    assert (enumeration("abc", most=2), enumeration("abcd", most=2)) == ("a, b and c", "a, b and 2 more")


def test_durations() -> None:
    texts = {
        **{0.0: "0.1 s", 0.94: "0.9 s", 0.95: "1 s", 89.4: "89 s", 90.0: "2 min", 89.9 * 60: "90 min"},
        **{90 * 60.0: "1.5 h", 47.9 * 3600: "47.9 h", 48 * 3600.0: "2.0 days", 60 * 3600.0: "2.5 days"},
    }
    assert {seconds: duration(seconds) for seconds in texts} == texts


class Silent:
    pass


class Talking:
    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown


def test_values_in_short() -> None:
    texts = {
        "<ndarray of shape (3, 4)>": np.zeros((3, 4)),
        "<Tensor of shape (5, 2)>": torch.zeros(5, 2),
        "[<ndarray of shape (2,)>, <Tensor of shape (4,)>, 1.5, <Silent>, ...]": [
            *(np.zeros(2), torch.zeros(4), torch.tensor(1.5), Silent(), Silent)
        ],
        **{"3": np.int64(3), "2": torch.tensor(2), "'data/x'": Path("data/x"), "[[[[...]]]]": [[[[1]]]]},
        **{"Silent": Silent, "len": len, "test_durations": test_durations, "<lambda>": lambda x: x},
        **{"partial(...)": functools.partial(torch.relu, 3), "{'a': 1, 'b': [2.5]}": {"a": 1, "b": [2.5]}},
        **{"(0, 1, 2, 3, ...)": tuple(range(5)), "{0, 1, 2, 3, ...}": set(range(5))},
        **{"frozenset({0, 1, 2, 3, ...})": frozenset(range(5)), "[0, 1, 2, 3, ...]": list(range(5))},
        "{0: None, 1: None, 2: None, 3: None, ...}": dict.fromkeys(range(5)),
        "Sequential(...)": nn.Sequential(nn.Linear(2, 3)),  # its own text has several lines
        "a" * 160: Talking("a" * 160),
    }
    assert {text: short_repr(value) for text, value in texts.items()} == {text: text for text in texts}
    assert [short_repr(Talking(text)) for text in ("a" * 161, "a\nb", "<x at 0x12>")] == 3 * ["Talking(...)"]
    assert len(short_repr("a" * 61)) == len(short_repr(10**60)) == 60


def test_what_an_extra_needs_is_installed_by_a_command() -> None:
    assert how_to_install("slurm").startswith('pip install "submitit>=')
    assert how_to_install("ray").startswith('pip install "ray>=')


def test_files_of_the_package_are_found_by_their_names(tmp_path: Path) -> None:
    tables = shipped("table")
    assert list(tables) == sorted(tables)
    assert {path.parent.name for path in tables.values()} == {"tables"}
    assert "cifar_radfed" in shipped("recipe") and "cifar_fedadam" in shipped("sweep")
    assert find_file("table", "mnist_methods", tmp_path) == tables["mnist_methods"]
    (tmp_path / "mnist_methods").mkdir()
    assert find_file("table", "mnist_methods", tmp_path) == tables["mnist_methods"]
    (tmp_path / "mnist_methods").rmdir()
    (tmp_path / "mnist_methods").touch()
    assert find_file("table", "mnist_methods", tmp_path) == tmp_path / "mnist_methods"
    (tmp_path / "myself.yml").touch()
    with pytest.raises(FileNotFoundError, match=r"^There is no table mysef\.yml\. Did you mean myself\.yml\?$"):
        find_file("table", "mysef.yml", tmp_path)
    assert no_such("sweep", "x", ["abc", "def"]) == "There is no sweep x. There are abc, def."
