"""Builds the parts of a cell; jsonargparse checks the arguments of each by its signature, as LightningCLI does."""

from __future__ import annotations

import pydoc
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

import lightning as L
from jsonargparse import ArgumentError, ArgumentParser
from lightning.pytorch.callbacks import Callback

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment.specs import Spec
from fl_lightning.experiment.table_file import refuse_unknown

#: Arguments of the Trainer that the runner sets, or that a cell cannot have. Each fit has one process and one device.
_NOT_IN_TABLES = ("callbacks", "logger", "default_root_dir", "fast_dev_run")
_ONE_DEVICE = {"devices": Literal[1, "1", "auto"], "strategy": Literal["auto"], "num_nodes": Literal[1]}
_T = TypeVar("_T")
_DEFAULTS = {"enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}


#: Where jsonargparse names an argument, and the kinds of values that it takes.
_NAME = re.compile('Parser key "(.*)":')
_KINDS = re.compile(r"Subtypes: \[(.*)\]|Expected an? (.*?)(?:\. Got value.*)?$", re.MULTILINE)


def build_datamodule(config: Mapping[str, Any]) -> FederatedDataModule:
    """Build the data module of a cell; no data are read."""
    data = _build_part("datamodule", FederatedDataModule, config["datamodule"])
    data.validates_on_test = config["validate_on_test"]
    return data


def build_model(config: Mapping[str, Any]) -> L.LightningModule:
    """Build the model of a cell."""
    return _build_part("model", L.LightningModule, config["model"])


def build_method(config: Mapping[str, Any]) -> AggregationCallback:
    """Build the aggregation callback of a cell."""
    # not "auto": its roundings are others, so cells that are added to a finished table would not be comparable with
    # the earlier ones to the last digit, and they depend on the machine's memory
    defaults = {"seed": config["seed"], "executor": "sequential"}
    return _build_part("callback", AggregationCallback, config["callback"], defaults)  # type: ignore[type-abstract]


def build_callbacks(config: Mapping[str, Any]) -> list[Callback]:
    """Build the further callbacks of a cell."""
    return [_build_part("callbacks", Callback, spec) for spec in config["callbacks"]]


def build_metric(config: Mapping[str, Any]) -> ClientMetrics:
    """Return the callback that computes the metric of each client."""
    compared = "_personal" in config["monitor"]  # with methods whose clients have no models of their own
    return ClientMetrics(_locate(config["metric"]["function"]), config["metric"]["name"], always_personal=compared)


def make_trainer(config: Mapping[str, Any], callbacks: Sequence[Callback], **settings: Any) -> L.Trainer:
    """Return the Trainer of a cell.

    Args:
        config: The configuration of the cell.
        callbacks: All callbacks.
        settings: Logger and folder.
    """
    given = _checked(L.Trainer, build(config["trainer"]))
    refuse_unknown("`trainer`", given, sorted(_parser_of(L.Trainer)[1]))
    # "auto" would be all GPUs that the worker sees
    return L.Trainer(**{**_DEFAULTS, **given, "devices": 1, **settings}, callbacks=list(callbacks))


def build(spec: Spec) -> Any:
    """Build the object that a spec describes.

    ``{"class_path": path, "init_args": {...}}`` calls a class or a function. ``{"object": path}`` is the object of the
    path itself. Both are allowed at any depth. Everything else stays as it is.

    Raises:
        ValueError: If a path cannot be imported, or a class does not take the arguments.
    """
    if isinstance(spec, (list, tuple)):
        return [build(value) for value in spec]
    if not isinstance(spec, Mapping):
        return spec
    if set(spec) == {"object"}:
        return _locate(spec["object"])
    if "class_path" not in spec:
        return {name: build(value) for name, value in spec.items()}
    if not set(spec) <= {"class_path", "init_args"} or not isinstance(spec.get("init_args") or {}, Mapping):
        raise ValueError(f"A class has a `class_path` and, in `init_args`, its arguments by name, got {dict(spec)}.")
    target = _locate(spec["class_path"])
    return target(**_checked(target, build(spec.get("init_args") or {})))


def _build_part(name: str, kind: type[_T], spec: Spec, defaults: Mapping[str, Any] | None = None) -> _T:
    """Build an object of a kind, whose class gets further arguments unless the spec gives them."""
    if isinstance(spec, Mapping) and isinstance(spec.get("init_args") or {}, Mapping):
        spec = {**spec, "init_args": {**(defaults or {}), **(spec.get("init_args") or {})}}
    made = build(spec)
    if not isinstance(made, kind):
        raise ValueError(
            f"`{name}` must have a `class_path` of the kind {kind.__name__}, got {spec!r}. Write "
            "`{class_path: package.Class, init_args: {argument: value}}`."
        )
    return made


def _locate(path: str) -> Any:
    try:
        found = pydoc.locate(path) if isinstance(path, str) else None
    except pydoc.ErrorDuringImport as error:  # the module exists, but it cannot be imported
        raise ImportError(str(error)) from error
    if found is None:
        raise ValueError(
            f"{path!r} cannot be imported. Give the full path of a class or function, such as 'fl_lightning.FedAvg', "
            "and run from a folder or with a PYTHONPATH where its package is found."
        )
    return found


def _checked(target: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments in the types of the signature; others, such as those taken by ``**``, stay as they are."""
    parser, known = _parser_of(target)
    try:
        return {
            **given,
            **vars(parser.parse_object({name: given[name] for name in known & set(given)}, defaults=False)),
        }
    except ArgumentError as error:
        text = str(error)
        name, kinds = _NAME.search(text), _KINDS.search(text)
        if name and kinds:
            expected = re.sub(r"<class '([^']*)'>", r"\1", kinds[1] or kinds[2])
            text = f"`{name[1]}` must be {expected}, got {given[name[1]]!r}"
        raise ValueError(f"{target.__qualname__}: {text}.") from error


@cache
def _parser_of(target: Callable[..., Any]) -> tuple[ArgumentParser, set[str]]:
    """Return the parser of a signature, and the arguments that it has."""
    parser = ArgumentParser(exit_on_error=False)
    if target is L.Trainer:
        known = parser.add_class_arguments(L.Trainer, skip={*_NOT_IN_TABLES, *_ONE_DEVICE})
        for name, values in _ONE_DEVICE.items():
            parser.add_argument(f"--{name}", type=values)
        return parser, {*known, *_ONE_DEVICE}
    add = parser.add_class_arguments if isinstance(target, type) else parser.add_function_arguments
    return parser, set(add(target, fail_untyped=False))
