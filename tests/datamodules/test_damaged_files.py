"""Every file of every data module, missing, cut off, with wrong bytes or of another kind: an error that helps."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import tiny_modules
from helpers.tiny_modules import CASES

DAMAGES: dict[str, Callable[[bytes], bytes] | None] = {
    "missing": None,
    "cut": lambda content: content[: len(content) // 2],
    "bytes": lambda content: content[: len(content) // 2] + b"\xff" * 20 + content[len(content) // 2 + 20 :],
    "page": lambda content: b"<html>Not found</html>",
    "empty": lambda content: b"",
}
WITH_FILES = [
    "cifar10", "cifar100", "mnist", "fashion-mnist", "emnist", "covcls-g", "gutenberg-roles", "markdown-roles",
    "leaf-roles", "eicu", "dmoz", "hugging-face", "hugging-face-images", "csv", "parquet",
]  # fmt: skip
UNDETECTED = {
    ("emnist", "images", "bytes"),  # no checksums are published
    ("gutenberg-roles", "100.txt", "cut"),  # whatever is there is a text
    ("gutenberg-roles", "100.txt", "bytes"),
    ("markdown-roles", ".md", "missing"),  # one play less
    ("markdown-roles", ".md", "cut"),
    ("markdown-roles", ".md", "bytes"),
    ("eicu", "apachePatientResult", "bytes"),  # in a column that is not read
    ("dmoz", "structure", "bytes"),  # the real dumps have bytes that are no UTF-8
    ("hugging-face", "t.parquet", "bytes"),  # other numbers
    ("hugging-face-images", "state.json", "missing"),  # the folder is then read as one of Arrow files
    ("csv", "t.csv", "cut"),  # a file of a user's own need not end with a line break
    ("parquet", "t.parquet", "bytes"),
}
WAY_OUT = re.compile(r"\b(Put|Delete|Fetch|Give|Make|Check|fetch)\b")


def is_undetected(case: str, name: str, damage: str) -> bool:
    return any(case == c and part in name and damage == d for c, part, d in UNDETECTED)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", WITH_FILES)
def test_damaged_files(name: str, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = CASES[name].make(tmp_path, monkeypatch)
    change = DAMAGES[damage]
    for path in [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]:
        if is_undetected(name, path.name, damage):
            continue
        content = path.read_bytes()
        path.unlink()
        if change is not None:
            path.write_bytes(change(content))
        with warnings.catch_warnings(), pytest.raises((FileNotFoundError, RuntimeError, ValueError)) as raised:
            warnings.simplefilter("ignore")  # of pages that are cut
            tiny_modules.ready(copy.copy(data))
        message = str(raised.value)
        # a file, or the folder that it belongs into
        assert any(str(place) in message for place in (path, *path.parents) if tmp_path in place.parents), message
        assert WAY_OUT.search(message), message
        assert len(message) < 1000
        path.write_bytes(content)
