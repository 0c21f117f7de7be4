"""Specs: the parts of a cell as plain data, with references to values, and a hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

Spec = Any
"""Plain data as in a YAML file: mappings, lists, texts, numbers, booleans, ``None``."""

_REFERENCE = re.compile(r"\$([A-Za-z_][\w-]*(?:\.[\w-]+)*)")


def substitute(spec: Spec, values: Mapping[str, Any]) -> Spec:
    """Return a spec in which the value of a name replaces each text ``"$name"``.

    A value may have any type, and may refer to other values. ``"$name.key"`` is an entry of a value that is a mapping.
    ``"$$name"`` becomes the text ``"$name"``.

    Raises:
        ValueError: If a name has no value, or values refer to each other or contain each other in a circle.
    """
    try:
        return _substitute(spec, values)
    except RecursionError as error:
        raise ValueError("Values refer to each other in a circle. Write one of them out.") from error


def _substitute(spec: Spec, values: Mapping[str, Any]) -> Spec:
    if isinstance(spec, Mapping):
        return {key: _substitute(value, values) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [_substitute(value, values) for value in spec]
    if isinstance(spec, str) and spec.startswith("$$"):
        return spec[1:]
    if isinstance(spec, str) and (found := _REFERENCE.fullmatch(spec)):
        return _substitute(_look_up(found[1], values), values)
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
            raise ValueError(f"There is no value for ${reference}; known are {known}. Give it in `values` or `tune`.")
        value = value[key]
    return value


def identity(spec: Spec) -> str:
    """Return a short hash of a spec; two specs have the same hash only if they are equal."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
