"""Text, JSON and CSV files that appear whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_lightning.atomic_file import atomic_file


def write_text(path: Path, text: str) -> None:
    """Write a text file; no reader ever sees half of it, and a power cut leaves the old file or the new one."""
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the plain data of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as CSV; a cell is empty if its row lacks the column, and numbers keep all their digits."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, buffer.getvalue())


def columns_of(rows: Sequence[Mapping[str, Any]], first: Sequence[str] = ()) -> list[str]:
    """Return the columns of rows: first the given ones, then the others in alphabetical order."""
    return [*first, *sorted(set().union(*rows) - set(first))] if rows else list(first)
