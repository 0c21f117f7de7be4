from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from datamodules.options import add_options, given_options, is_describable


class Everything:
    def __init__(
        self,
        count: int,
        rate: float = 0.5,
        name: str = "x",
        folder: str | os.PathLike[str] | None = None,
        stop: float | None = 1.0,
        rule: Literal["relative", "absolute"] = "relative",
        test: float | Literal["official"] = 0.1,
        sizes: Sequence[int] = (1,),
        pair: tuple[int, int] | None = None,
        path: Path = Path("."),
        flag: bool = False,
        maybe: bool | None = None,
        function: Callable[[int], int] = abs,
        function_or_none: Callable[[int], int] | None = None,
        **options: Any,
    ) -> None: ...


class Other:
    def __init__(self, count: int = 1, seed: int = 0) -> None: ...


class NeedsAnObject:
    def __init__(self, dataset: list[object]) -> None: ...


def parse(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_options(parser, "all", Everything)
    return given_options(parser.parse_args(["--count", "3", *arguments]), "all")


def test_texts_become_what_the_annotation_says() -> None:
    expected: dict[str, Any] = {
        "": {},
        "--rate 2": {"rate": 2.0},
        "--name 12": {"name": "12"},
        "--folder some/where": {"folder": "some/where"},
        "--folder none": {"folder": None},
        "--stop 1.5": {"stop": 1.5},
        "--stop None": {"stop": None},
        "--rule absolute": {"rule": "absolute"},
        "--test 0.2": {"test": 0.2},
        "--test official": {"test": "official"},
        "--sizes 4,5,6": {"sizes": [4, 5, 6]},
        "--pair 4,5": {"pair": (4, 5)},
        "--path a/b": {"path": Path("a/b")},
        "--flag": {"flag": True},
        "--no-flag": {"flag": False},
        "--maybe true": {"maybe": True},
    }
    assert {text: parse(*text.split()) for text in expected} == {
        text: {"count": 3, **values} for text, values in expected.items()
    }


def test_wrong_texts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("--rate fast", "--rule both", "--test all", "--stop never", "--sizes 1,x", "--function abs"):
        with pytest.raises(SystemExit):
            parse(*text.split())
        assert text.split()[0] in capsys.readouterr().err.splitlines()[-1]


def test_arguments_without_a_default_are_required(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, "all", Everything)
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert "the following arguments are required: --count" in capsys.readouterr().err


def test_options_of_the_same_name_get_a_prefix() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser, "all", Everything)
    add_options(parser, "other", Other)
    add_options(parser, "third", Other, prefix=True)
    found = parser.parse_args(["--count", "1", "--other-count", "2", "--seed", "3", "--third-seed", "4"])
    assert given_options(found, "all") == {"count": 1}
    assert given_options(found, "other") == {"count": 2, "seed": 3}
    assert given_options(found, "third") == {"seed": 4}


def test_what_needs_objects_cannot_be_made_of_texts() -> None:
    assert is_describable(Everything)
    assert not is_describable(NeedsAnObject)
