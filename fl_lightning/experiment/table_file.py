"""Reads a table from a YAML file, or from a mapping with the same content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fl_lightning.checks import PathLike, check
from fl_lightning.experiment.table import DataSet, Method, Table, Tuning
from fl_lightning.experiment.yaml_file import read_yaml

_BASELINES = ("Local", "FedAvg", "FedAvgFineTuned")


def read_table(source: str | os.PathLike[str] | Mapping[str, Any] | Table) -> Table:
    """Return the table of a YAML file, or of a mapping with the same content.

    Paths in a file are relative to its folder. ``include`` maps names to other files; the content of a file becomes the
    value of the name: ``include: {grid: grids/xue2021.yaml}`` and then ``$grid.mu``. ``base`` names another table; the
    entries of this file replace those of the base, and ``null`` removes an entry. ``baselines`` adds the methods
    ``Local``, ``FedAvg`` and ``FedAvgFineTuned``, before the others; its content are their ``init_args``.

    Raises:
        TypeError: If it is none of them.
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is no YAML, or entries are unknown, missing or of another kind; all of them are named.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, Mapping):
        return _make_table(_with_reference(dict(source)), "")
    check("`source` of a table", source, PathLike)
    if not Path(source).is_file():
        raise FileNotFoundError(f"A `table` must be a YAML file, a mapping or a Table; there is no {source}.")
    table = _make_table(_read_with_base(Path(source), ()), str(source))
    object.__setattr__(table, "file", str(source))
    return table


def _make_table(given: dict[str, Any], name: str) -> Table:
    mistakes: list[str] = []

    def make(kind: type, place: str, entry: Any) -> Any:
        try:
            return _make(kind, place, entry)
        except (TypeError, ValueError) as error:
            mistakes.append(str(error))

    given = _with_baselines(given)
    for key, kind in (("data", DataSet), ("methods", Method)):
        if isinstance(entries := given.get(key), Mapping):
            given[key] = {str(entry): make(kind, f"{key}.{entry}", content) for entry, content in entries.items()}
    given["tuning"] = make(Tuning, "tuning", given.get("tuning") or {})
    table = None if mistakes else make(Table, "the table", given)
    if mistakes:
        raise ValueError(describe_mistakes(name, mistakes))
    assert isinstance(table, Table)
    return table


def _with_baselines(given: dict[str, Any]) -> dict[str, Any]:
    """Return a table's content with the baselines of personal models among its methods, if it asks for them."""
    arguments, methods = given.pop("baselines", None), given.get("methods") or {}
    if arguments is None or not isinstance(methods, Mapping):
        return given
    added = {name: {"callback": {"class_path": f"fl_lightning.{name}", "init_args": arguments}} for name in _BASELINES}
    return {**given, "methods": {**added, **methods}}


def describe_mistakes(name: str, mistakes: list[str]) -> str:
    """Return a text with all mistakes of a table; ``name`` is its file, if there is one."""
    if len(mistakes) == 1:
        return f"{name}: {mistakes[0]}" if name else mistakes[0]
    name = name or "The table"
    return "\n".join([f"{name} has {len(mistakes)} mistakes:", *(f"  - {mistake}" for mistake in mistakes)])


def _read_with_base(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """Return a table's file, on top of its base, with included files among its values."""
    if path.resolve() in above:
        circle = " -> ".join(part.name for part in (*above, path))
        raise ValueError(f"{path} is its own `base`: {circle}. Remove one of these `base` entries.")
    given = read_yaml(path)
    base, includes = given.pop("base", None), given.pop("include", None) or {}
    if not isinstance(includes, Mapping):
        raise ValueError(f"{path}: `include` must map names to paths of files, got {includes!r}.")
    included = {name: read_yaml(_beside(path, f"include.{name}", other)) for name, other in includes.items()}
    if included:
        given["values"] = {**included, **(given.get("values") or {})}
    if base is not None:
        below = _read_with_base(_beside(path, "base", base), (*above, path.resolve()))
        given = _merge(below, {**given, "reference": None} if given.get("reproduces") else given)
    return _with_reference(given)


def _beside(path: Path, entry: str, other: str) -> Path:
    """Return the path of a file that an entry of a table's file names."""
    check(f"{path}: `{entry}`", other, str)
    found = path.parent / other
    if not found.is_file():
        raise FileNotFoundError(
            f"{path}: `{entry}` must be the path of a YAML file, seen from the folder of this one; there is no {found}."
        )
    return found


def _with_reference(given: dict[str, Any]) -> dict[str, Any]:
    """Return a table that is the reference for tables on top of it, if it says what it reproduces."""
    if not given.get("reproduces") or "reference" in given:
        return given
    return {**given, "reference": {name: entry for name, entry in given.items() if name != "reproduces"}}


def _merge(base: Any, given: Any) -> Any:
    """Return ``base`` with the given entries in place of its own; a class of another path keeps no arguments."""
    if not isinstance(base, Mapping) or not isinstance(given, Mapping):
        return given
    if "class_path" in given and given["class_path"] != base.get("class_path"):
        return given
    merged = dict(base)
    for name, value in given.items():
        merged[name] = _merge(base[name], value) if name in base else value
    return {name: value for name, value in merged.items() if value is not None or name not in given}


def _make(kind: type, place: str, given: Any) -> Any:
    known = {each.name: each.default is MISSING and each.default_factory is MISSING for each in fields(kind)}
    if not isinstance(given, Mapping):
        raise ValueError(f"{place} must be a mapping with some of {', '.join(known)}, got {given!r}.")
    refuse_unknown(place, given, list(known))
    needed = [name for name, is_needed in known.items() if is_needed]
    if missing := [f"`{name}`" for name in needed if given.get(name) is None]:
        raise ValueError(f"{place} has no {' and no '.join(missing)}, which it needs.")
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except (TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def refuse_unknown(place: str, given: Iterable[object], known: Sequence[str]) -> None:
    """Raise ``ValueError`` for the first entry that is not known, with the nearest known one and all known ones."""
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            meant = f"Did you mean `{close[0]}`? " if close else ""
            raise ValueError(f"{place} has an unknown entry {name!r}. {meant}It takes {', '.join(known)}.")
