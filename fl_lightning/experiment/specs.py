"""Specs: objects described as plain data, with class paths, arguments, references to values, and a hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

Spec = Any
"""Plain data as in a YAML file: mappings, lists, texts, numbers, booleans, ``None``."""

#: Today's import paths of parts by their paths in earlier releases. The identity of a cell uses the earlier path, so
#: that the results of earlier tables are still found.
_MOVED = {
    "fl_lightning.objectives.Proximal": "fl_lightning.parts.Proximal",
    "fl_lightning.sampling.BernoulliSampler": "fl_lightning.parts.BernoulliSampler",
    "fl_lightning.sampling.ImportanceSampler": "fl_lightning.parts.ImportanceSampler",
    "fl_lightning.sampling.UniformSampler": "fl_lightning.parts.UniformSampler",
    "fl_lightning.server.Adaptive": "fl_lightning.parts.Adaptive",
    "fl_lightning.server.Mixing": "fl_lightning.parts.Mixing",
    "fl_lightning.server.Momentum": "fl_lightning.parts.Momentum",
}
_FIRST_PATHS = {new: old for old, new in _MOVED.items()}

#: Where the classes and functions that tables name are found.
_PACKAGES = (
    "fl_lightning",
    *(f"fl_lightning.{room}" for room in ("parts", "partitioners", "data", "models", "callbacks", "diagnostics")),
    "datamodules",
)
_REFERENCE = re.compile(r"\$([A-Za-z_][\w-]*(?:\.[\w-]+)*)")


def substitute(spec: Spec, values: Mapping[str, Any]) -> Spec:
    """Return a spec in which the value of a name replaces each text ``"$name"``.

    A value may have any type, and may refer to other values. ``"$name.key"`` is an entry of a value that is a mapping.
    ``"$$name"`` becomes the text ``"$name"``.

    Raises:
        ValueError: If a name has no value, or values refer to each other or contain each other in a circle.
    """
    try:
        return _substitute(spec, values, ())
    except RecursionError as error:
        raise ValueError("A part of the table contains itself, so that it has no end. Write it out.") from error


def _substitute(spec: Spec, values: Mapping[str, Any], inside: tuple[str, ...]) -> Spec:
    if isinstance(spec, Mapping):
        return {key: _substitute(value, values, inside) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [_substitute(value, values, inside) for value in spec]
    if isinstance(spec, str) and spec.startswith("$$"):
        return spec[1:]
    if isinstance(spec, str) and (found := _REFERENCE.fullmatch(spec)):
        if found[1] in inside:
            raise ValueError(f"The values {', '.join(inside)} refer to each other in a circle. Give one of them.")
        return _substitute(_look_up(found[1], values), values, (*inside, found[1]))
    return spec


def references(spec: Spec) -> set[str]:
    """Return the names to which a spec refers, without their keys."""
    if isinstance(spec, Mapping):
        spec = list(spec.values())
    if isinstance(spec, (list, tuple)):
        return set().union(*(references(value) for value in spec))
    found = _REFERENCE.fullmatch(spec) if isinstance(spec, str) else None
    return {found[1].partition(".")[0]} if found else set()


def _look_up(reference: str, values: Mapping[str, Any]) -> Any:
    value: Any = values
    for key in reference.split("."):
        if not isinstance(value, Mapping) or key not in value:
            known = ", ".join(f"${name}" for name in sorted(values)) or "none"
            raise ValueError(
                f"There is no value for ${reference}; known are {known}. Put it into `values` of the table, the data "
                "set or the method, or into `tune` of the method."
            )
        value = value[key]
    return value


def locate(path: str) -> Any:
    """Return the object of an import path such as ``"fl_lightning.FedAvg"`` or ``"package.Class.method"``.

    Raises:
        ValueError: If the path cannot be imported.
    """
    if not isinstance(path, str):
        raise ValueError(f"A class path must be a string such as 'fl_lightning.FedAvg', got {path!r}.")
    parts = _MOVED.get(path, path).split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            found: Any = import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise  # the module exists, but it imports another one that does not
            continue
        module = found
        for attribute in parts[length:]:
            found = getattr(found, attribute, None)
        if found is not None:
            return found
        if meant := _place_of(parts) or _similar(module, parts[length:], name):
            raise ValueError(f"{path!r} cannot be imported. Did you mean {meant}?")
        break
    if meant := _place_of(parts):
        raise ValueError(f"{path!r} cannot be imported. Did you mean {meant}?")
    raise ValueError(
        f"{path!r} cannot be imported. Give the full path of a class or function, such as 'fl_lightning.FedAvg', and "
        "run from a folder or with a PYTHONPATH where its package is found."
    )


def _place_of(parts: list[str]) -> str:
    """Return where a class or function of the package is, of which a path gives no place or a wrong one; else ""."""
    if len(parts) > 1 and parts[0] not in _PACKAGES:
        return ""
    places = (package for package in _PACKAGES if callable(getattr(import_module(package), parts[-1], None)))
    return next((f"{package}.{parts[-1]}" for package in places), "")


def _similar(found: Any, attributes: list[str], module: str) -> str:
    """Return the path in a module with a name that exists in place of the first one that does not; else ""."""
    for place, attribute in enumerate(attributes):
        within = getattr(found, attribute, None)
        if within is None:
            close = get_close_matches(attribute, [name for name in dir(found) if not name.startswith("_")], n=1)
            return ".".join([module, *attributes[:place], *close, *attributes[place + 1 :]]) if close else ""
        found = within
    return ""


def build(spec: Spec) -> Any:
    """Build the object that a spec describes.

    ``{"class_path": path, "init_args": {...}}`` calls a class or a function. ``{"object": path}`` is the object of the
    path itself. Both are allowed at any depth. Everything else stays as it is.

    Raises:
        ValueError: If a path cannot be imported.
        TypeError: If a class does not take the arguments.
    """
    if isinstance(spec, Mapping):
        if "class_path" in spec:
            _check_keys(spec, {"class_path", "init_args"})
            return _call(spec)
        if set(spec) == {"object"}:
            return locate(spec["object"])
        return {name: build(value) for name, value in spec.items()}
    return [build(value) for value in spec] if isinstance(spec, (list, tuple)) else spec


def _call(spec: Mapping[str, Any]) -> Any:
    path, given = spec["class_path"], spec.get("init_args") or {}
    if not isinstance(given, Mapping):
        raise ValueError(
            f"`init_args` of {path} must be a mapping from names to values, got {given!r}. Write "
            "`init_args: {name: value}`."
        )
    arguments = {str(name): build(value) for name, value in given.items()}
    return locate(path)(**arguments)


def check_paths(spec: Spec) -> None:
    """Raise ``ValueError`` if an import path in a spec cannot be imported; references are not checked."""
    if isinstance(spec, Mapping):
        for key in ("class_path", "object"):
            if isinstance(spec.get(key), str) and not references(spec[key]):
                locate(spec[key])
        spec = list(spec.values())
    if isinstance(spec, (list, tuple)):
        for value in spec:
            check_paths(value)


def identity(spec: Spec) -> str:
    """Return a short hash of a spec; two specs have the same hash only if they are equal."""
    text = json.dumps(_with_first_paths(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _with_first_paths(spec: Spec) -> Spec:
    """Return a spec in which each import path is the first one that its class has had."""
    if isinstance(spec, Mapping):
        return {key: _with_first_paths(value) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [_with_first_paths(value) for value in spec]
    return _FIRST_PATHS.get(spec, spec) if isinstance(spec, str) else spec


def _check_keys(spec: Mapping[str, Any], allowed: set[str]) -> None:
    if unknown := set(spec) - allowed:
        raise ValueError(
            f"A class has the entries `class_path` and `init_args`, got also {', '.join(sorted(unknown))} for "
            f"{spec['class_path']!r}. Put its arguments under `init_args`."
        )
