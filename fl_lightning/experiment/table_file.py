"""Reads a table from a YAML file, or from a mapping with the same content."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fl_lightning.checks import PathLike, check
from fl_lightning.experiment.build import references
from fl_lightning.experiment.table import DataSet, Method, Table, Tuning

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
        return _make_table(_with_reference(dict(source)), "The table")
    return _make_table(_read_with_base(Path(check("`source` of a table", source, PathLike))), str(source))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. ``1e-3`` is a number there, and a name that is there twice is an error.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is no YAML, or has a name twice in a mapping.
        TypeError: If it holds something else than a mapping.
    """
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path} must be YAML: {error}") from error
    return dict(check(f"The content of {path}", content, Mapping))


def describe_mistakes(name: str, mistakes: list[str]) -> str:
    """Return a text with all mistakes of a table."""
    if len(mistakes) == 1:
        return f"{name}: {mistakes[0]}"
    return "\n".join([f"{name} has {len(mistakes)} mistakes:", *(f"  - {mistake}" for mistake in mistakes)])


def refuse_unknown(place: str, given: Iterable[object], known: Sequence[str]) -> None:
    """Raise ``ValueError`` for the first entry that is not known, with the nearest known one and all known ones."""
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            meant = f"Did you mean `{close[0]}`? " if close else ""
            raise ValueError(f"{place} has an unknown entry {name!r}. {meant}It takes {', '.join(known)}.")


def _make_table(given: dict[str, Any], name: str) -> Table:
    mistakes: list[str] = []

    def make(kind: type, place: str, entry: Any) -> Any:
        try:
            refuse_unknown(place, check(place, entry, Mapping), [each.name for each in fields(kind)])
            return kind(**{key: value for key, value in entry.items() if value is not None})
        except (TypeError, ValueError) as error:
            mistakes.append(str(error) if str(error).startswith(place) else f"{place}: {error}")

    if (arguments := given.pop("baselines", None)) is not None:
        specs = {name: {"class_path": f"fl_lightning.{name}", "init_args": arguments} for name in _BASELINES}
        given["methods"] = {name: {"callback": spec} for name, spec in specs.items()} | check(
            "`methods`", given.get("methods") or {}, dict
        )
    for key, kind in (("data", DataSet), ("methods", Method)):
        if isinstance(entries := given.get(key), Mapping):
            given[key] = {str(entry): make(kind, f"{key}.{entry}", content) for entry, content in entries.items()}
    given["tuning"] = make(Tuning, "tuning", given.get("tuning") or {})
    table = None if mistakes else make(Table, "the table", given)
    if table is not None:
        mistakes += _unused_values(table)
    if mistakes:
        raise ValueError(describe_mistakes(name, mistakes))
    assert isinstance(table, Table)
    return table


def _unused_values(table: Table) -> list[str]:
    """Return a sentence for each value that a method gives, tunes or takes, and to which nothing refers."""
    shared = [table.callbacks, table.trainer, table.values, *map(vars, table.data.values())]
    return [
        f"methods.{name}: `{entry}` has {value!r}, which has no effect: nothing has the text ${value}. Use it, or "
        "remove it."
        for name, method in table.methods.items()
        for entry in ("values", "tune", "take")
        for value in (getattr(method, entry) if isinstance(getattr(method, entry), Mapping) else ())
        if value not in references([*shared, vars(method)])
    ]


def _read_with_base(path: Path) -> dict[str, Any]:
    """Return a table's file, on top of its base, with included files among its values."""
    given = read_yaml(path)
    base, includes = given.pop("base", None), given.pop("include", None) or {}
    check(f"{path}: `include`", includes, Mapping)
    included = {name: read_yaml(path.parent / check("`include`", other, str)) for name, other in includes.items()}
    if included:
        given["values"] = {**included, **(given.get("values") or {})}
    if base is not None:
        try:
            below = _read_with_base(path.parent / check(f"{path}: `base`", base, str))
        except RecursionError as error:
            raise ValueError(f"{path} is its own `base`, or that of its `base`.") from error
        given = _merge(below, {**given, "reference": None} if given.get("reproduces") else given)
    return _with_reference(given)


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
    merged = {**base, **{name: _merge(base.get(name), value) for name, value in given.items()}}
    return {name: value for name, value in merged.items() if value is not None or name not in given}
