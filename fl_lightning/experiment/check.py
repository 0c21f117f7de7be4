"""Checks a table before any work: builds the parts of every cell and names all mistakes at once."""

from __future__ import annotations

import inspect
import pydoc
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.seed import isolate_rng

from fl_lightning._lightning.refusals import refuse_settings
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment import build
from fl_lightning.experiment.build import refuse_unknown
from fl_lightning.experiment.cell import best_checkpoint, quiet
from fl_lightning.experiment.plan import Cell, planned
from fl_lightning.experiment.progress import describe_cell
from fl_lightning.experiment.table import DataSet, Table
from fl_lightning.experiment.table_file import describe_mistakes
from fl_lightning.metrics import suitable_mode
from fl_lightning.models.classifier import Classifier
from fl_lightning.settings import Count, check
from fl_lightning.signatures import is_user_defined

_OF_CLIENTS = re.compile(r"(?:val|test)_(\w+?)_(?:clients|personal)(_(std|min|max|weighted|lowest10|left_out|pooled))?")
_OURS = ("fl_lightning.", "lightning.")
_OBSTACLES = (OSError, ImportError, MemoryError, RuntimeError, SystemExit, pydoc.ErrorDuringImport)
#: So many warnings are shown.
_SHOWN = 2
#: Nothing is written there.
_NO_FOLDER = Path("unused")


@dataclass
class Findings:
    """What was found in a table.

    Attributes:
        mistakes: Mistakes of the table; no cell should run before they are fixed.
        obstacles: What cannot be built on this machine, such as a model whose weights cannot be downloaded. The cells
            that need it will fail; the others can run.
        warnings: What a method warns of, such as rounds after its last aggregation.
        unchecked: Data that cannot be read, because they are not on this machine yet, for instance.
    """

    mistakes: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def check_table(table: Table, *, with_data: bool = False) -> Findings:
    """Build the parts of every cell of a table and return what is wrong.

    Args:
        table: The table.
        with_data: Whether to read each data set too, in its first fold and seed, without downloading it: as many
            clients must train as each method asks for, and a model of the package must take a batch.
    """
    cells: list[Cell] = []
    try:
        for search in planned(table):
            cells += search.fits.values()
    except ValueError as error:
        return Findings([str(error)])
    checker = _Checker()
    if table.wandb:
        checker.once(cells[0], "wandb", lambda: _check_wandb(table.wandb), table.wandb)
    with quiet(), isolate_rng():
        for cell in cells:
            _check_cell(table, cell, checker, with_data)
    return checker.findings()


def refuse_mistakes(table: Table, *, with_data: bool = False) -> list[str]:
    """Raise ``ValueError`` with all mistakes of a table; return a line for each thing that the user should know."""
    findings = check_table(table, with_data=with_data)
    if findings.mistakes:
        raise ValueError(describe_mistakes(table.name, findings.mistakes))
    lines = [f"{obstacle}. These cells will fail." for obstacle in findings.obstacles]
    lines += [f"WARNING: {text}" for text in findings.warnings[:_SHOWN]]
    more = len(findings.warnings) - _SHOWN
    if more > 0:
        lines.append(f"WARNING: {more} more of this kind, for other data sets, methods or values.")
    lines += [f"NOT CHECKED: {text}" for text in findings.unchecked]
    return lines


class _Checker:
    """Tries each thing once, and notes which cells share a failure."""

    def __init__(self) -> None:
        self._tried: dict[tuple[str, str], tuple[Any, str, str]] = {}
        self._places: dict[tuple[str, str], list[str]] = defaultdict(list)

    def once(self, cell: Cell, name: str, make: Callable[[], Any], *spec: Any) -> Any:
        """Return what ``make`` makes of a spec, or ``None`` if it fails; equal specs are tried once."""
        key = (name, repr(spec))
        if key not in self._tried:
            self._tried[key] = _attempt(name, make, *spec)
        made, kind, text = self._tried[key]
        if kind:
            self._places[kind, text].append(describe_cell(cell))
        return made

    def findings(self) -> Findings:
        """Return the failures, each with the first of its cells."""
        found = Findings()
        for (kind, text), places in self._places.items():
            place = places[0]
            if len(places) > 1:
                place += f" and {len(places) - 1} more"
            getattr(found, kind).append(f"{place}: {text}")
        return found


def _attempt(name: str, make: Callable[[], Any], spec: Any, *further: Any) -> tuple[Any, str, str]:
    """Return what ``make`` makes, the kind of a failure or warning, and its text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always" if name == "fit" else "ignore")
        try:
            made = make()
        except ValueError as error:
            # It names its argument.
            return None, "mistakes", str(error)
        except (Exception, SystemExit) as error:
            what = f"`{name}`"
            if "class_path" in spec and not further:
                what += f" {spec['class_path']}"
            text = f"{type(error).__name__}: {error}"
            if name == "fit" or not isinstance(error, _OBSTACLES):
                return None, "mistakes", f"{what}: {text}"
            if name == "data":
                text = f"its data are not here yet ({text}), so its clients and batches are unchecked"
                return None, "unchecked", text
            return None, "obstacles", f"{what} cannot be built on this machine: {text}"
    return made, "warnings" if caught else "", " ".join(str(each.message) for each in caught)


def _check_cell(table: Table, cell: Cell, checker: _Checker, with_data: bool) -> None:
    """Build all parts of a cell, and check them together.

    Folds and seeds are alike in what is checked, so most checks are made once for a data set and the settings that they
    depend on.
    """
    config = cell.config
    entry = table.data[cell.data]

    def once(name: str, make: Callable[[], Any], *spec: Any) -> Any:
        return checker.once(cell, name, make, *spec or [config[name]])

    data = once("datamodule", lambda: build.datamodule(config))
    model = once("model", lambda: _with_steps(build.model(config)))
    method = once("callback", lambda: build.method(config))
    metric = once("metric", lambda: build.metric(config))
    further = once("callbacks", lambda: build.callbacks(config))
    if None in (method, metric, further):
        return
    callbacks = [method, metric, *further]
    place = [config[name] for name in ("callback", "callbacks", "trainer", "select", "among", "monitor", "mode")]
    once("fit", lambda: _check_fit(config, method, callbacks), *place)
    if model is not None:
        names = [config[name] for name in ("model", "metric", "callbacks")]
        once("names", lambda: _check_names(entry, model, callbacks), cell.data, *names)
    if not with_data or data is None:
        return
    if once("data", lambda: data.setup() or data, cell.data) is None:
        return
    chooses = config["select"] != "last" or any(method.tune for method in table.methods.values())
    once("val", lambda: _check_samples(data, "monitor", entry.monitor, "val", is_needed=chooses), cell.data)
    once("test", lambda: _check_samples(data, "score", entry.score, "test", is_needed=True), cell.data)
    cohort_size = method.algorithm.sampler.cohort_size
    once("cohort", lambda: cohort_size(data.num_clients), cell.data, config["callback"])
    # Other models and data may need their trainer.
    if isinstance(model, Classifier) and not is_user_defined(type(data)):
        once("batch", lambda: _check_batch(model, data), cell.data, config["model"])


def _check_wandb(given: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for arguments that neither WandbLogger nor ``wandb.init`` has."""
    import wandb
    from lightning.pytorch.loggers import WandbLogger

    names = [*inspect.signature(WandbLogger).parameters, *inspect.signature(wandb.init).parameters]
    refuse_unknown("`wandb`", given, names)
    check("`mode` of `wandb`", given.get("mode", "online"), Literal["online", "offline", "disabled", "shared"])


def _with_steps(model: L.LightningModule) -> L.LightningModule:
    """Return a model, if it has the methods that every fit of a table calls."""
    missing = [name for name in ("forward", "validation_step", "test_step") if not is_overridden(name, model)]
    if missing:
        raise ValueError(
            f"`model` {type(model).__name__} must define {', '.join(missing)}: each fit of a table calls them."
        )
    return model


def _check_fit(config: dict[str, Any], method: AggregationCallback, callbacks: Sequence[Callback]) -> None:
    """Raise ``ValueError`` for a fit that cannot be."""
    settings = config["trainer"]
    check("The number of rounds, `trainer.max_epochs`,", settings.get("max_epochs"), Count)
    check("`check_val_every_n_epoch`", settings.get("check_val_every_n_epoch", 1), Count)
    best = best_checkpoint(_NO_FOLDER / "best.ckpt", config, method.algorithm)
    if best is not None:
        callbacks = [*callbacks, best]
    trainer = build.trainer(config, callbacks, logger=False, default_root_dir=_NO_FOLDER)
    refuse_settings(trainer, method)
    method.check_rounds(settings["max_epochs"])
    monitor = config["monitor"]
    mode = config["mode"]
    suitable = suitable_mode(monitor, mode)
    if suitable:
        warnings.warn(f"`mode` is {mode}, so the worst {monitor} is chosen. Give `mode: {suitable}`.", stacklevel=2)


def _check_names(data: DataSet, model: L.LightningModule, callbacks: Sequence[Callback]) -> None:
    """Raise ``ValueError`` if a metric of a data set will never be logged."""
    if not all(type(callback).__module__.startswith(_OURS) for callback in callbacks):
        return
    of_clients = [callback.name for callback in callbacks if isinstance(callback, ClientMetrics)]
    # What another model logs only its run shows.
    is_known = type(model).__module__.startswith("fl_lightning.models.")
    entries = [("score", data.score, "test"), ("monitor", data.monitor, "val")]
    entries += [("curves", name, "val") for name in data.curves]
    for entry, name, stage in entries:
        logged = []
        if is_known:
            logged = [f"{stage}_{metric}" for metric in (*getattr(model, f"{stage}_metrics"), "loss")]
        found = _OF_CLIENTS.fullmatch(name)
        if found:
            is_logged = found[1] in of_clients and name.startswith(stage)
        else:
            is_of_fit = entry != "score" and name.startswith(("train_", "fed/"))
            is_logged = not is_known or is_of_fit or name in logged
        if not is_logged:
            names = {*logged, *(f"{stage}_{metric}_clients" for metric in of_clients)}
            raise ValueError(f"`{entry}` is {name!r}, which is never logged. Names are {', '.join(sorted(names))}.")


def _check_samples(data: FederatedDataModule, argument: str, name: str, stage: Any, *, is_needed: bool) -> None:
    """Raise ``ValueError`` if no sample gives a metric: there is none, or none of a client for a metric of clients.

    Args:
        data: The data module.
        argument: ``"monitor"`` or ``"score"``.
        name: Name of the metric.
        stage: The stage of its samples.
        is_needed: Whether models or hyper-parameters are chosen by the metric, or compared.
    """
    loader = data.val_dataloader() if stage == "val" else data.test_dataloader()
    has_samples = bool(loader)
    if is_needed and name.startswith(stage) and not has_samples:
        hint = " Give it some, or `select: last`, and no `tune`." if stage == "val" else ""
        raise ValueError(f"`{argument}` is {name!r}, and this data set has no {stage} samples.{hint}")
    if _OF_CLIENTS.fullmatch(name) and has_samples and data.eval_client_ids(stage) is None:
        raise ValueError(
            f"`{argument}` is {name!r}, but the {stage} samples belong to no client. Write `{argument}: {stage}_acc`, "
            "or use a split that gives them to clients, such as ClientSplit."
        )


def _check_batch(model: Classifier, data: FederatedDataModule) -> None:
    """Raise ``ValueError`` if a model of the package cannot train on a batch."""
    batch = next(iter(data.pooled_batches([0], generator=torch.Generator())))
    batch = data.on_before_batch_transfer(batch, 0)
    batch = data.on_after_batch_transfer(batch, 0)
    try:
        with torch.no_grad():
            model.training_step(batch, 0)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        raise ValueError(
            f"`model` {type(model).__name__} does not take the batches of `datamodule`, such as one of "
            f"{tuple(batch[0].shape)}: {type(error).__name__}: {error}"
        ) from error
