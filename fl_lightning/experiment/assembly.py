"""Builds the objects of a cell and checks their kinds."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment.specs import Spec, build, locate

_DEFAULTS = {
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}
_SET_ELSEWHERE = {
    "callbacks": "Callbacks belong in the list `callbacks` of the table, of a data set or of a method.",
    "logger": "Every fit is logged by Weights & Biases if the table has an entry `wandb`.",
    "default_root_dir": "Each fit has its own folder in the folder of the results.",
}
#: Arguments for several devices, and the values that say one. Lightning would start the script anew for each further
#: process, and a worker has none.
_ONE_DEVICE: dict[str, tuple[Any, ...]] = {"devices": (1, "1", "auto"), "strategy": ("auto",), "num_nodes": (1,)}


def build_datamodule(config: dict[str, Any]) -> FederatedDataModule:
    """Build the data module of a cell; no data are read.

    Raises:
        ValueError: If it is something else.
    """
    data = _build("`datamodule`", config["datamodule"])
    if not isinstance(data, FederatedDataModule):
        raise ValueError(
            f"`datamodule` must be a FederatedDataModule, got {_kind(data)}. Give the class path of one, such as "
            "datamodules.MNISTDataModule."
        )
    data.validates_on_test = config["validate_on_test"]
    return data


def build_model(config: dict[str, Any]) -> L.LightningModule:
    """Build the model of a cell.

    Raises:
        ValueError: If it is something else.
    """
    model = _build("`model`", config["model"])
    if not isinstance(model, L.LightningModule):
        raise ValueError(
            f"`model` must be a LightningModule, got {_kind(model)}. Give the class path of one, such as "
            "fl_lightning.models.MLPClassifier."
        )
    return model


def build_method(config: dict[str, Any]) -> AggregationCallback:
    """Build the aggregation callback of a cell.

    Raises:
        ValueError: If it is something else.
    """
    spec = _mapping("`callback`", config["callback"])
    # not "auto": its roundings are others, so cells that are added to a finished table would not be comparable with
    # the earlier ones to the last digit, and they depend on the machine's memory
    given = spec.get("init_args") or {}
    path = spec.get("class_path")
    kind = locate(path) if isinstance(path, str) else None
    if isinstance(kind, type) and not issubclass(kind, AggregationCallback):  # it need not take these arguments
        raise ValueError(_no_aggregation(kind.__name__))
    arguments = {"seed": config["seed"], "executor": "sequential", **given} if isinstance(given, dict) else given
    method = build({**spec, "init_args": arguments})
    if not isinstance(method, AggregationCallback):
        raise ValueError(_no_aggregation(_kind(method)))
    return method


def _no_aggregation(kind: str) -> str:
    return (
        f"`callback` must be an aggregation callback such as FedAvg, got {kind}. Put other callbacks into the list "
        "`callbacks`."
    )


def build_callbacks(config: dict[str, Any]) -> list[Callback]:
    """Build the further callbacks of a cell.

    Raises:
        ValueError: If one is something else.
    """
    callbacks = [_build("Each of `callbacks`", spec) for spec in config["callbacks"]]
    for callback in callbacks:
        if not isinstance(callback, Callback) or isinstance(callback, AggregationCallback):
            raise ValueError(
                f"`callbacks` must be a list of Lightning callbacks beside the aggregation callback, got "
                f"{_kind(callback)} in it. Give class paths such as fl_lightning.diagnostics.LocalDivergence."
            )
    return callbacks


def build_metric(config: dict[str, Any]) -> ClientMetrics:
    """Return the callback that computes the metric of each client.

    Raises:
        ValueError: If the metric is no function.
    """
    function: Callable[..., Any] = locate(config["metric"]["function"])
    if not callable(function):
        raise ValueError(
            f"`metric.function` must be a function of scores and targets, got {_kind(function)}. Give the path of "
            "one, such as fl_lightning.metrics.weighted_f1."
        )
    return ClientMetrics(function, config["metric"]["name"])


def make_trainer(config: dict[str, Any], callbacks: Sequence[Callback], **settings: Any) -> L.Trainer:
    """Return the Trainer of a cell.

    Args:
        config: The configuration of the cell.
        callbacks: All callbacks.
        settings: Logger and folder.

    Raises:
        ValueError: If the table gives an argument that the Trainer does not know, or that the runner sets.
    """
    given = build(config["trainer"])
    known = list(inspect.signature(L.Trainer).parameters)
    for name in given:
        if name in _SET_ELSEWHERE:
            raise ValueError(f"`trainer` must not have {name!r}. {_SET_ELSEWHERE[name]}")
        if name not in known:
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "See the arguments of lightning.Trainer."
            raise ValueError(f"`trainer` has an unknown argument {name!r}. {hint}")
    _refuse_several_devices(given)
    if given.get("fast_dev_run"):
        raise ValueError(
            "`trainer` must not have 'fast_dev_run': such a fit keeps no model that could be tested. `--dry-run` "
            "checks a table; for a short run, lower `max_epochs`."
        )
    for name in ("limit_val_batches", "limit_test_batches"):
        if given.get(name) == 0:
            raise ValueError(f"`trainer` must not have {name!r} 0: a cell is judged by its scores. Leave it out.")
    # "auto" would be all GPUs that the worker sees
    return L.Trainer(**{**_DEFAULTS, **given, "devices": _DEFAULTS["devices"], **settings}, callbacks=list(callbacks))


def _refuse_several_devices(given: dict[str, Any]) -> None:
    for name, allowed in _ONE_DEVICE.items():
        value = given.get(name, allowed[0])
        if isinstance(value, bool) or value not in allowed:
            raise ValueError(
                f"`trainer` must not have {name!r}, got {value!r}: each fit runs in one process on one device. Leave "
                "it out. `--workers 2` runs two fits at a time, and `--devices 0 1` shares two GPUs out among them."
            )


def _build(name: str, spec: Spec) -> Any:
    return build(_mapping(name, spec))


def _mapping(name: str, spec: Spec) -> Mapping[str, Any]:
    """Return the spec of an object, which a class path alone is not."""
    if not isinstance(spec, Mapping):
        path = spec if isinstance(spec, str) else "package.Class"
        raise ValueError(
            f"{name} must be a mapping with a `class_path` and, for arguments, `init_args`, got {_kind(spec)}. Write "
            f"`{{class_path: {path}}}`."
        )
    return spec


def _kind(thing: object) -> str:
    return repr(thing) if isinstance(thing, (str, int, float)) else type(thing).__name__
