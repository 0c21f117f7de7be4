"""Specs, the parts of a cell as plain data: references to values, a hash, and the objects that they describe.

jsonargparse checks the arguments of each class by its signature, as LightningCLI does.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import pydoc
import re
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

import lightning as L
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch.callbacks import Callback

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.data import FederatedDataModule
from fl_lightning.settings import check
from fl_lightning.words import short_repr

Spec = Any
"""Plain data as in a YAML file: mappings, lists, strings, numbers, booleans, ``None``."""

#: Such as "$lr" and "$grid.mu".
_REFERENCE = re.compile(r"\$([A-Za-z_][\w-]*(?:\.[\w-]+)*)")
#: Arguments of a Trainer that the runner gives, and those that must be 1.
_OF_RUNNER = ("callbacks", "logger", "default_root_dir", "fast_dev_run")
_ONE = ("devices", "strategy", "num_nodes")
_T = TypeVar("_T")
_DEFAULTS = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}


def datamodule(config: Mapping[str, Any]) -> FederatedDataModule:
    """Build the data module of a cell; no data are read."""
    data = _build_part("datamodule", FederatedDataModule, config["datamodule"])
    data.validates_on_test = config["validate_on_test"]
    return data


def prepared_data(config: Mapping[str, Any]) -> FederatedDataModule:
    """Return the data module of a cell, ready for use; random numbers then begin at the cell's seed."""
    L.seed_everything(config["seed"], verbose=False)
    data = datamodule(config)
    data.prepare_data()
    data.setup()
    # Reading data may have drawn numbers.
    L.seed_everything(config["seed"], verbose=False)
    return data


def model(config: Mapping[str, Any]) -> L.LightningModule:
    """Build the model of a cell."""
    return _build_part("model", L.LightningModule, config["model"])


def method(config: Mapping[str, Any]) -> AggregationCallback:
    """Build the aggregation callback of a cell."""
    # With "auto" the last digits depend on the machine's memory, so cells that are added to a finished table could not
    # be compared with the earlier ones.
    defaults = {"seed": config["seed"], "executor": "sequential"}
    return _build_part("callback", AggregationCallback, config["callback"], defaults)  # type: ignore[type-abstract]


def callbacks(config: Mapping[str, Any]) -> list[Callback]:
    """Build the further callbacks of a cell."""
    return [_build_part("callbacks", Callback, spec) for spec in config["callbacks"]]


def metric(config: Mapping[str, Any]) -> ClientMetrics:
    """Return the callback that computes the metric of each client."""
    return _metric(**config["metric"], monitor=config["monitor"])


def _metric(name: str, function: str, monitor: str) -> ClientMetrics:
    # Methods with models of clients' own are compared with methods without.
    return ClientMetrics(_locate(function), name, always_personal="_personal" in monitor)


def trainer(config: Mapping[str, Any], further: Sequence[Callback], **settings: Any) -> L.Trainer:
    """Return the Trainer of a cell, with one process and one device.

    Args:
        config: The configuration of the cell.
        further: All callbacks.
        settings: Logger and folder.

    Raises:
        ValueError: If an argument is unknown, belongs to the runner, or is of another kind.
    """
    refuse_unknown("`trainer`", config["trainer"], list(inspect.signature(L.Trainer).parameters))
    given = _make_arguments(L.Trainer, config["trainer"])
    for name, value in given.items():
        is_several = name in _ONE and value not in (1, "1", "auto")
        if name in _OF_RUNNER or is_several:
            raise ValueError(f"`trainer` must leave `{name}` to the runner, which has one device, got {value!r}.")
    # "auto" devices would be all GPUs that the worker sees.
    arguments = {**_DEFAULTS, **given, **settings, "devices": 1, "callbacks": list(further)}
    try:
        return L.Trainer(**arguments)
    except TypeError as error:
        # Lightning leaves most kinds to Python, whose errors do not say which argument it was.
        raise ValueError(f"`trainer` has an argument of another kind, {error}, among {given!r}.") from error


def make(spec: Spec, place: str = "The value", kind: Any = object) -> Any:
    """Build the object that a spec describes.

    ``{"class_path": path, "init_args": {...}}`` calls a class or a function. ``{"object": path}`` is the object of the
    path itself. Both are allowed at any depth. Everything else stays as it is.

    What is called must be a class of the kind that its place asks for, or a function whose annotation says that it
    returns one. So a table cannot call what makes no part of a fit, such as a function that removes files.

    Args:
        spec: The spec.
        place: The argument that it is for, for errors.
        kind: The type that the place asks for, as in an annotation.

    Raises:
        ValueError: If a path cannot be imported, names something of another kind, or does not take the arguments.
    """
    if isinstance(spec, (list, tuple)):
        return [make(value, place, kind) for value in spec]
    if not isinstance(spec, Mapping):
        return spec
    if set(spec) == {"object"}:
        return _locate(spec["object"])
    if "class_path" not in spec:
        return {name: make(value, place, kind) for name, value in spec.items()}
    if not set(spec) <= {"class_path", "init_args"}:
        raise ValueError(f"A class has a `class_path` and, in `init_args`, its arguments by name, got {dict(spec)}.")
    target = _locate(spec["class_path"])
    _check_kind(target, spec["class_path"], place, kind)
    given = spec.get("init_args")
    if given is None:
        given = {}
    check(f"`init_args` of {spec['class_path']}", given, Mapping)
    return _call(target, _make_arguments(target, given))


def _build_part(name: str, kind: type[_T], spec: Spec, defaults: Mapping[str, Any] | None = None) -> _T:
    """Build an object of a kind, whose class gets further arguments unless the spec gives them."""
    if not isinstance(spec, Mapping) or "class_path" not in spec:
        raise ValueError(f"`{name}` must be a `class_path` and `init_args` of a {kind.__name__}, got {spec!r}.")
    given = spec.get("init_args")
    if defaults and (given is None or isinstance(given, Mapping)):
        spec = {**spec, "init_args": {**defaults, **(given or {})}}
    made = make(spec, name, kind)
    # A function may return something else than it says.
    if not isinstance(made, kind):
        raise ValueError(f"`{name}` must be a {kind.__name__}, got {made!r} from {spec['class_path']}.")
    return made


def _make_arguments(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Build the arguments of a class or function, each of the kind that its annotation asks for."""
    kinds = _annotations(target)
    return {name: make(value, name, kinds.get(name, object)) for name, value in given.items()}


def _annotations(target: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a signature; none if they cannot be resolved."""
    called = inspect.getattr_static(target, "__init__") if isinstance(target, type) else target
    try:
        return get_type_hints(called)
    except (NameError, TypeError, AttributeError):
        return {}


def _check_kind(target: Any, path: str, place: str, kind: Any) -> None:
    """Raise ``ValueError`` if a call of ``target`` would make no object of a kind; nothing is called."""
    made = target if isinstance(target, type) else _annotations(target).get("return")
    if made is Self:
        # A method of a class says so.
        made = getattr(target, "__self__", None)
    made = get_origin(made) or made
    wanted = _classes_in(kind)
    if not isinstance(made, type) or not issubclass(made, wanted):
        if wanted == (object,):
            what = "a class, or a function whose annotation says what it returns"
        else:
            what = f"of the kind {' or '.join(each.__name__ for each in wanted)}"
        raise ValueError(f"`{place}` must be {what}, so {path} was not called.")


def _classes_in(kind: Any) -> tuple[type, ...]:
    """Return the classes in an annotation, in the order in which they come; ``object`` if it allows anything."""
    # `Any` is a class, of which nothing is an instance.
    if kind is Any:
        return (object,)
    if get_origin(kind) is abc.Callable:
        return (abc.Callable,)  # type: ignore[return-value]
    inner: list[type] = []
    for part in get_args(kind):
        if part is not Ellipsis:
            inner += _classes_in(part)
    if isinstance(kind, type) and not inner:
        return (kind,)
    if not inner or object in inner:
        return (object,)
    # A dict keeps the order, and the first of equal classes.
    return tuple(dict.fromkeys(each for each in inner if each is not type(None)))


def _locate(path: str) -> Any:
    found = pydoc.locate(path) if isinstance(path, str) else None
    if found is None:
        raise ValueError(
            f"{path!r} cannot be imported{_meant_by(path)}: give the full path of what Python finds from this folder."
        )
    return found


def _meant_by(path: Any) -> str:
    """Return a question for the nearest name of the module or of this package; empty if none is near."""
    if not isinstance(path, str):
        return ""
    module_path, _, name = path.rpartition(".")
    module_path = module_path or "fl_lightning"
    module = pydoc.locate(module_path)
    by_lower = {each.lower(): each for each in dir(module) if not each.startswith("_")}
    close = get_close_matches(name.lower(), by_lower, n=1)
    return f" (did you mean {module_path}.{by_lower[close[0]]}?)" if close else ""


def _call(target: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Call a class or function with arguments in the types of its signature; those taken by ``**`` stay as they are."""
    parser, known = _parser_of(target)
    parameters = inspect.signature(target).parameters.values()
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        refuse_unknown(target.__qualname__, given, sorted(known))
    for each in parameters:
        has_name = each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        is_needed = has_name and each.default is each.empty
        if is_needed and each.name not in given:
            raise ValueError(f"{target.__qualname__} needs the argument `{each.name}` in its `init_args`.")
    try:
        typed = parser.parse_object({name: given[name] for name in known & set(given)}, defaults=False)
    except ArgumentError as error:
        raise ValueError(f"{target.__qualname__}: {' '.join(str(error).split())}") from error
    return target(**{**given, **vars(typed)})


def refuse_unknown(place: str, given: Iterable[object], known: Sequence[str]) -> None:
    """Raise ``ValueError`` for the first entry that is not known, with the nearest known one and all known ones."""
    for name in given:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            meant = f"Did you mean `{close[0]}`? " if close else ""
            raise ValueError(f"{place} has an unknown entry {name!r}. {meant}It takes {', '.join(known)}.")


@cache
def _parser_of(target: Callable[..., Any]) -> tuple[ArgumentParser, set[str]]:
    """Return the parser of a signature, and the arguments that it has."""
    parser = ArgumentParser(exit_on_error=False)
    add = parser.add_class_arguments if isinstance(target, type) else parser.add_function_arguments
    return parser, set(add(target, fail_untyped=False))


def substitute(spec: Spec, values: Mapping[str, Any]) -> Spec:
    """Return a spec in which the value of a name replaces each string ``"$name"``.

    A value may have any type, and may refer to other values. ``"$name.key"`` is an entry of a value that is a mapping.
    ``"$$name"`` becomes the string ``"$name"``.

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
    if not isinstance(spec, str):
        return spec
    if spec.startswith("$$"):
        return spec[1:]
    found = _REFERENCE.fullmatch(spec)
    return _substitute(_look_up(found[1], values), values) if found else spec


def check_spec(name: str, spec: Spec) -> None:
    """Raise ``ValueError`` unless a spec is a ``class_path`` with ``init_args``, or a reference to one."""
    if isinstance(spec, str) and spec.startswith("$"):
        return
    if not isinstance(spec, Mapping) or "class_path" not in spec:
        raise ValueError(f"`{name}` must be a `class_path` and `init_args`, got {short_repr(spec)}.")
    given = spec.get("init_args")
    if isinstance(given, Mapping):
        for argument, value in given.items():
            if isinstance(value, Mapping) and "class_path" in value:
                check_spec(f"{name}.{argument}", value)
    elif given is not None and not (isinstance(given, str) and given.startswith("$")):
        raise ValueError(f"`init_args` of `{name}` must be arguments by name, got {short_repr(given)}.")


def references(spec: Spec) -> set[str]:
    """Return the names to which a spec refers, without their keys."""
    if isinstance(spec, Mapping):
        spec = list(spec.values())
    names: set[str] = set()
    if isinstance(spec, (list, tuple)):
        for value in spec:
            names |= references(value)
    elif isinstance(spec, str):
        found = _REFERENCE.fullmatch(spec)
        if found:
            names.add(found[1].partition(".")[0])
    return names


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
