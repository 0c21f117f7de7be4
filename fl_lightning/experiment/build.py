"""Specs, the parts of a cell as plain data: references to values, a hash, and the objects that they describe.

jsonargparse checks the arguments of each class by its signature, as LightningCLI does.
"""

from __future__ import annotations

import hashlib
import json
import pydoc
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import lightning as L
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch.callbacks import Callback

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.data import FederatedDataModule

Spec = Any
"""Plain data as in a YAML file: mappings, lists, texts, numbers, booleans, ``None``."""

_REFERENCE = re.compile(r"\$([A-Za-z_][\w-]*(?:\.[\w-]+)*)")
_OF_RUNNER = ("callbacks", "logger", "default_root_dir", "fast_dev_run")
_ONE = ("devices", "strategy", "num_nodes")
_T = TypeVar("_T")
_DEFAULTS = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}


def datamodule(config: Mapping[str, Any]) -> FederatedDataModule:
    """Build the data module of a cell; no data are read."""
    data = _build_part("datamodule", FederatedDataModule, config["datamodule"])
    data.validates_on_test = config["validate_on_test"]
    return data


def model(config: Mapping[str, Any]) -> L.LightningModule:
    """Build the model of a cell."""
    return _build_part("model", L.LightningModule, config["model"])


def method(config: Mapping[str, Any]) -> AggregationCallback:
    """Build the aggregation callback of a cell."""
    # not "auto": its roundings are others, so cells that are added to a finished table would not be comparable with
    # the earlier ones to the last digit, and they depend on the machine's memory
    defaults = {"seed": config["seed"], "executor": "sequential"}
    return _build_part("callback", AggregationCallback, config["callback"], defaults)  # type: ignore[type-abstract]


def callbacks(config: Mapping[str, Any]) -> list[Callback]:
    """Build the further callbacks of a cell."""
    return [_build_part("callbacks", Callback, spec) for spec in config["callbacks"]]


def metric(config: Mapping[str, Any]) -> ClientMetrics:
    """Return the callback that computes the metric of each client."""
    compared = "_personal" in config["monitor"]  # with methods whose clients have no models of their own
    return _metric(**config["metric"], always_personal=compared)


def _metric(name: str, function: str, always_personal: bool) -> ClientMetrics:
    return ClientMetrics(_locate(function), name, always_personal=always_personal)


def trainer(config: Mapping[str, Any], further: Sequence[Callback], **settings: Any) -> L.Trainer:
    """Return the Trainer of a cell, with one process and one device.

    Args:
        config: The configuration of the cell.
        further: All callbacks.
        settings: Logger and folder.
    """
    given = make(config["trainer"])
    for name, value in given.items():
        if name in _OF_RUNNER or (name in _ONE and value not in (1, "1", "auto")):
            raise ValueError(f"`trainer` must leave `{name}` to the runner, which has one device, got {value!r}.")
    # devices "auto" would be all GPUs that the worker sees
    return L.Trainer(**{**_DEFAULTS, **given, "devices": 1, **settings, "callbacks": list(further)})


def make(spec: Spec) -> Any:
    """Build the object that a spec describes.

    ``{"class_path": path, "init_args": {...}}`` calls a class or a function. ``{"object": path}`` is the object of the
    path itself. Both are allowed at any depth. Everything else stays as it is.

    Raises:
        ValueError: If a path cannot be imported, or a class does not take the arguments.
    """
    if isinstance(spec, (list, tuple)):
        return [make(value) for value in spec]
    if not isinstance(spec, Mapping):
        return spec
    if set(spec) == {"object"}:
        return _locate(spec["object"])
    if "class_path" not in spec:
        return {name: make(value) for name, value in spec.items()}
    if not set(spec) <= {"class_path", "init_args"}:
        raise ValueError(f"A class has a `class_path` and, in `init_args`, its arguments by name, got {dict(spec)}.")
    target = _locate(spec["class_path"])
    return _call(target, make(spec.get("init_args") or {}))


def _build_part(name: str, kind: type[_T], spec: Spec, defaults: Mapping[str, Any] | None = None) -> _T:
    """Build an object of a kind, whose class gets further arguments unless the spec gives them."""
    given = spec
    if isinstance(spec, Mapping):
        found = _locate(spec["class_path"]) if "class_path" in spec else None
        is_other = isinstance(found, type) and not issubclass(found, kind)
        given = None if is_other else {**spec, "init_args": {**(defaults or {}), **(spec.get("init_args") or {})}}
    made = make(given)
    if not isinstance(made, kind):
        raise ValueError(f"`{name}` must be a `class_path` and `init_args` of a {kind.__name__}, got {spec!r}.")
    return made


def _locate(path: str) -> Any:
    found = pydoc.locate(path) if isinstance(path, str) else None
    if found is None:
        raise ValueError(f"{path!r} cannot be imported: give the full path of what Python finds from this folder.")
    return found


def _call(target: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a class or function with arguments in the types of its signature; those taken by ``**`` stay as they are."""
    parser, known = _parser_of(target)
    try:
        typed = parser.parse_object({name: given[name] for name in known & set(given)}, defaults=False)
    except ArgumentError as error:
        raise ValueError(f"{target.__qualname__}: {' '.join(str(error).split())}") from error
    return target(**{**given, **vars(typed)})


@cache
def _parser_of(target: Callable[..., Any]) -> tuple[ArgumentParser, set[str]]:
    """Return the parser of a signature, and the arguments that it has."""
    parser = ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(target, type) else parser.add_function_arguments
    return parser, set(add(target, fail_untyped=False))


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
