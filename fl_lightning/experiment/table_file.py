"""Reads a table from a YAML file, or from a mapping with the same content."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fl_lightning.experiment.build import references, refuse_unknown
from fl_lightning.experiment.table import DataSet, Method, Table, Tuning
from fl_lightning.settings import PathLike, check
from fl_lightning.shipped import find_file

#: The parser in C is some ten times faster than that in Python; not every platform has it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BINARY = "tag:yaml.org,2002:binary"
#: Limits of a file.
_DEEPEST = 100
_MOST_ENTRIES = 100_000
_BASELINES = ("Local", "FedAvg", "FedAvgFineTuned")


def read_table(source: str | os.PathLike[str] | Mapping[str, Any] | Table) -> Table:
    """Return the table of a YAML file, or of a mapping with the same content.

    A table that comes with the package is found by its name: ``"mnist_methods"``. Paths in a file are relative to its
    folder, those in a mapping to the current one. ``include`` maps names to other files; the content of a file becomes
    the value of the name: ``include: {grid: grids/xue2021.yaml}`` and then ``$grid.mu``. ``base`` names another table,
    by its file or as one of the package; the entries of this table replace those of the base, and ``null`` removes an
    entry. ``baselines`` adds the methods ``Local``, ``FedAvg`` and ``FedAvgFineTuned``, before the others; its content
    are their ``init_args``.

    Raises:
        TypeError: If it is none of them.
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is no YAML, or entries are unknown, missing or of another kind; all of them are named.
    """
    if isinstance(source, Table):
        return source
    if isinstance(source, Mapping):
        return _make_table(_complete(dict(source), "The table", Path()), "The table")
    path = find_file("table", check("`source` of a table", source, PathLike))
    return _make_table(_read_complete(path), str(source))


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. ``1e-3`` is a number there, and a name that is there twice is an error.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is no YAML, or has a name twice in a mapping.
        TypeError: If it holds something else than a mapping.
    """
    written = path.read_bytes()
    try:
        text = written.decode()
        _check_extent(path, text)
        content = OmegaConf.to_container(OmegaConf.create(text))
    except UnicodeDecodeError as error:
        line = written.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path} must be UTF-8, which line {line} is not: {error}.") from error
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"{path} must be YAML: {error}") from error
    except RecursionError as error:
        # An anchor is inside of what it names.
        raise ValueError(f"{path} has an entry that contains itself.") from error
    return dict(check(f"The content of {path}", content, Mapping))


def _check_extent(path: Path, text: str) -> None:
    """Raise ``ValueError`` for YAML that is nested without end, or that names grow without end, or that holds bytes."""
    # An alias (``*name``) counts as many entries as what its anchor (``&name``) names.
    entries = 0
    named: dict[str | None, int] = {}
    # Of each mapping or list that has begun: its anchor, and the entries before it.
    open_: list[tuple[str | None, int]] = []
    for event in yaml.parse(text, Loader=_LOADER):
        # Only an event that is made by hand has no mark.
        assert event.start_mark is not None
        place = f"{path}, line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            entries += named.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            entries += 1
            if event.tag == _BINARY:
                raise ValueError(f"{place}: bytes (`!!binary`) cannot be a value of a table.")
            if event.anchor:
                named[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            open_.append((event.anchor, entries))
            if len(open_) > _DEEPEST:
                raise ValueError(f"{place}: entries are nested more than {_DEEPEST} deep.")
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_.pop()
            if anchor:
                named[anchor] = entries - before
        if entries > _MOST_ENTRIES:
            raise ValueError(f"{place}: the file has more than {_MOST_ENTRIES:,} entries, with those that `*` repeats.")


def describe_mistakes(name: str, mistakes: list[str]) -> str:
    """Return a string with all mistakes of a table."""
    if len(mistakes) == 1:
        return f"{name}: {mistakes[0]}"
    return "\n".join([f"{name} has {len(mistakes)} mistakes:", *(f"  - {mistake}" for mistake in mistakes)])


def _make_table(given: dict[str, Any], name: str) -> Table:
    """Return the table of a mapping; all mistakes of its data sets, methods and tuning are named together."""
    mistakes: list[str] = []

    def make(kind: type, place: str, entry: Any) -> Any:
        try:
            return _make_entry(kind, place, entry)
        except (TypeError, ValueError) as error:
            text = str(error)
            mistakes.append(text if text.startswith(place) else f"{place}: {text}")

    arguments = given.pop("baselines", None)
    if arguments is not None:
        methods: dict[str, Any] = {}
        for baseline in _BASELINES:
            methods[baseline] = {"callback": {"class_path": f"fl_lightning.{baseline}", "init_args": arguments}}
        methods |= check("`methods`", given.get("methods") or {}, dict)
        given["methods"] = methods
    for key, kind in (("data", DataSet), ("methods", Method)):
        entries = given.get(key)
        if isinstance(entries, Mapping):
            given[key] = {str(entry): make(kind, f"{key}.{entry}", content) for entry, content in entries.items()}
    given["tuning"] = make(Tuning, "tuning", given.get("tuning") or {})
    if mistakes:
        raise ValueError(describe_mistakes(name, mistakes))
    table = make(Table, "the table", given)
    if table is not None:
        mistakes += _unused_values(table)
    if mistakes:
        raise ValueError(describe_mistakes(name, mistakes))
    assert isinstance(table, Table)
    return table


def _make_entry(kind: type, place: str, entry: Any) -> Any:
    """Return an object of a dataclass with the entries of a mapping; ``None`` is no entry.

    Raises:
        TypeError: If it is no mapping, or an entry is of another kind.
        ValueError: If an entry is unknown, missing or out of its range.
    """
    known = fields(kind)
    refuse_unknown(place, check(place, entry, Mapping), [each.name for each in known])
    given = {key: value for key, value in entry.items() if value is not None}
    for each in known:
        has_default = each.default is not MISSING or each.default_factory is not MISSING
        if each.name not in given and not has_default:
            raise ValueError(f"needs `{each.name}`.")
    return kind(**given)


def _unused_values(table: Table) -> list[str]:
    """Return a sentence for each value that a method gives, tunes or takes, and to which nothing refers."""
    shared = [table.callbacks, table.trainer, table.values, *map(vars, table.data.values())]
    mistakes = []
    for name, method in table.methods.items():
        used = references([*shared, vars(method)])
        entries = {"values": method.values, "tune": method.tune, "take": method.take}
        for entry, values in entries.items():
            # `tune` may be a reference to a mapping.
            if isinstance(values, str):
                continue
            for value in values:
                if value not in used:
                    mistakes.append(
                        f"methods.{name}: `{entry}` has {value!r}, which has no effect: nothing has the string "
                        f"${value}. Use it, or remove it."
                    )
    return mistakes


def _read_complete(path: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the content of a table's file with that of the files that it names.

    Args:
        path: The file.
        above: The files whose base it is.

    Raises:
        ValueError: If it is its own base.
    """
    file = path.resolve()
    if file in above:
        raise ValueError(f"{path} is its own `base`, or that of its `base`.")
    return _complete(read_yaml(path), str(path), path.parent, [*above, file])


def _complete(given: dict[str, Any], name: str, folder: Path, above: Sequence[Path] = ()) -> dict[str, Any]:
    """Return a table's content on top of its base, with included files among its values.

    Args:
        given: The content.
        name: Name of the table in errors.
        folder: Where the files are that it names.
        above: Its own file, and those whose base it is.
    """
    base = given.pop("base", None)
    includes = check(f"{name}: `include`", given.pop("include", None) or {}, Mapping)
    included = {entry: read_yaml(folder / check("`include`", other, str)) for entry, other in includes.items()}
    if included:
        given["values"] = {**included, **(given.get("values") or {})}
    if base is not None:
        path = find_file("table", check(f"{name}: `base`", base, str), folder)
        below = _read_complete(path, above)
        if given.get("reproduces"):
            # It is a reference itself, so it has not that of its base.
            given["reference"] = None
        given = _merge(below, given)
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
    merged = dict(base)
    for name, value in given.items():
        new = _merge(base.get(name), value)
        if new is None:
            merged.pop(name, None)
        else:
            merged[name] = new
    return merged
