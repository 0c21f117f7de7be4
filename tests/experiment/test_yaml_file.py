"""Errors of YAML files name the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl_lightning.experiment import read_table
from fl_lightning.experiment.yaml_file import read_yaml


def read(folder: Path, text: str) -> object:
    (folder / "t.yaml").write_text(text, encoding="utf-8")
    return read_yaml(folder / "t.yaml")


def test_ordinary_files(tmp_path: Path) -> None:
    text = 'a: &x {b: 1e-3, c: "1e5"}\nd: {<<: *x, b: 2}\ne: [*x, *x]\nf: $lr\ng: 1e5x\n'
    x = {"b": 0.001, "c": "1e5"}
    assert read(tmp_path, text) == {"a": x, "d": {"b": 2, "c": "1e5"}, "e": [x, x], "f": "$lr", "g": "1e5x"}


WRONG = {
    "a: 1\nb: [1\nc: 2\n": "line 3, column 2",
    "a: 1\n  b: 2\n": "line 2, column 4",
    "a: {b: 1, c: 2}\na: 3\n": "line 2, column 1: 'a'",
    "a: !!python/object:os.system {}\n": "line 1, column 4",
    "a: *x\n": "line 1, column 4: .*'x'",
    "- 1\n": "got list",
    "": "got NoneType",
    "a: \x00\n": "UTF-8",
}


def test_wrong_files_are_named_with_the_line(tmp_path: Path) -> None:
    for text, message in WRONG.items():
        with pytest.raises(ValueError, match=rf"t\.yaml.*{message}"):
            read(tmp_path, text)


def test_tables_that_are_on_top_of_each_other(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("base: b.yaml\n")
    (tmp_path / "b.yaml").write_text("base: a.yaml\n")
    with pytest.raises(ValueError, match=r"a\.yaml is its own `base`: a\.yaml -> b\.yaml -> a\.yaml"):
        read_table(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("text", "entry", "file"),
    [("base: no/pe.yaml\n", "base", "no/pe.yaml"), ("include: {grid: nope.yaml}\n", "include.grid", "nope.yaml")],
)
def test_a_file_that_is_not_there_is_named_with_its_entry(tmp_path: Path, text: str, entry: str, file: str) -> None:
    (tmp_path / "t.yaml").write_text(text)
    with pytest.raises(FileNotFoundError) as raised:
        read_table(tmp_path / "t.yaml")
    assert str(raised.value) == (
        f"{tmp_path}/t.yaml: `{entry}` must be the path of a YAML file, seen from the folder of this one; there is no "
        f"{tmp_path}/{file}."
    )
