"""Text, JSON and CSV files that appear whole or not at all."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fl_lightning.files import atomic_file

_CHECKSUM = "checksum"


def write_text(path: Path, text: str) -> None:
    """Write a text file; no reader ever sees half of it, and a power cut leaves the old file or the new one."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write plain data as JSON, with a checksum; see :func:`read_json`."""
    write_text(path, json_text(content))


def json_text(content: Mapping[str, Any]) -> str:
    """Return the text of a JSON file that :func:`read_json` reads."""
    # As it will be read: names are strings, and tuples are lists.
    plain = json.loads(json.dumps(content))
    return json.dumps({**plain, _CHECKSUM: _checksum(plain)}, indent=1, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Return the plain data of a JSON file.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is not what :func:`write_json` has written.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_whole = isinstance(content, dict) and content.pop(_CHECKSUM, None) == _checksum(content)
    except ValueError:
        # It is not JSON, or not UTF-8.
        is_whole = False
    if not is_whole:
        raise ValueError(f"{path} is damaged: its content does not agree with its checksum.")
    return dict(content)


def read_json_if_there(path: Path) -> dict[str, Any] | None:
    """Return the plain data of a JSON file; ``None`` if there is no file, or it is damaged, of which it warns."""
    try:
        return read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        warnings.warn(f"{error} It counts as missing.", stacklevel=2)
        return None


def _checksum(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; a cell is empty if its row lacks the column, and numbers keep all their digits.

    pandas would write whole numbers of a column with gaps as ``4.0``, and NaN as nothing.

    Raises:
        ValueError: If a row has another column.
    """
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, buffer.getvalue())


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file that :func:`write_csv` has written.

    Raises:
        ValueError: If a row is not whole.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if not lines:
        return []
    return [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]


def columns_of(rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ()) -> list[str]:
    """Return the columns of rows: first the given ones, then the others in alphabetical order."""
    others = set().union(*rows) - set(first)
    return [*first, *sorted(others)]


def remove_files(folder: Path, *patterns: str) -> None:
    """Remove the files of a folder whose names match one of some patterns."""
    # The folder is listed once, as tables have thousands of them.
    names = os.listdir(folder) if folder.is_dir() else []
    for name in names:
        if any(fnmatchcase(name, pattern) for pattern in patterns):
            (folder / name).unlink(missing_ok=True)
