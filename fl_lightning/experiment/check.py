"""Checks a table before any work: builds the parts of every cell and names all mistakes at once."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.seed import isolate_rng

from fl_lightning._lightning.refusals import refuse_settings
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.checks import Count, check
from fl_lightning.experiment.build import (
    build_callbacks,
    build_datamodule,
    build_method,
    build_metric,
    build_model,
    make_trainer,
)
from fl_lightning.experiment.cell import quiet
from fl_lightning.experiment.check_data import (
    OF_CLIENTS,
    DownloadError,
    NoDataError,
    check_batch,
    check_evaluation,
    check_steps,
    read_data,
    without_downloads,
)
from fl_lightning.experiment.plan import Cell, planned, rounds_of
from fl_lightning.experiment.progress import describe_cell
from fl_lightning.experiment.selection import best_checkpoint
from fl_lightning.experiment.specs import references
from fl_lightning.experiment.table import DataSet, Table
from fl_lightning.experiment.table_file import describe_mistakes
from fl_lightning.metrics import suitable_mode

_OURS = ("fl_lightning.", "lightning.")
_MISTAKES = (ValueError, TypeError, AttributeError, LookupError, MisconfigurationException)
_OBSTACLES = (OSError, ImportError, MemoryError, RuntimeError, SystemExit)
_SHOWN = 2  # warnings
_NO_FOLDER = Path("unused")  # nothing is written there


@dataclass
class Findings:
    """What was found in a table.

    Attributes:
        mistakes: Mistakes of the table; no cell should run before they are mended.
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
            clients must train as each method asks for, and a model of the package must take a batch. Weights of models
            are not downloaded either.
    """
    try:
        plan = planned(table)
    except ValueError as error:
        return Findings([str(error)])
    checker = _Checker(table, with_data)
    with quiet(), isolate_rng(), without_downloads() if with_data else nullcontext():
        for entry in plan:
            for cell in entry.cells.values():
                checker.check(cell)
    found = {kind: checker.listed(kind) for kind in ("mistakes", "obstacles", "warnings", "unchecked")}
    found["mistakes"] += _unused_values(table)
    found["warnings"] = [*_opposite_modes(table), *found["warnings"]]
    return Findings(**found)


def refuse_mistakes(table: Table, *, with_data: bool = False) -> list[str]:
    """Raise ``ValueError`` with all mistakes of a table; return a line for each thing that the user should know."""
    findings = check_table(table, with_data=with_data)
    if findings.mistakes:
        raise ValueError(describe_mistakes(table.file or table.name, findings.mistakes))
    failing = [f"{obstacle}. These cells will fail." for obstacle in findings.obstacles]
    warned = [f"WARNING: {text}" for text in findings.warnings[:_SHOWN]]
    if more := len(findings.warnings[_SHOWN:]):
        warned.append(f"WARNING: {more} more of this kind, for other data sets, methods or values.")
    return [*failing, *warned, *(f"NOT CHECKED: {text}" for text in findings.unchecked)]


class _Checker:
    """Builds each part of the cells once, and notes which cells share a failure."""

    def __init__(self, table: Table, with_data: bool) -> None:
        self._table, self._with_data = table, with_data
        self._made: dict[tuple[str, str], Any] = {}
        self._places: dict[tuple[str, str], list[str]] = defaultdict(list)

    def listed(self, kind: str) -> list[str]:
        """Return the failures of a kind, each with the first of its cells."""
        texts = []
        for (found, text), places in self._places.items():
            if found == kind:
                more = f" and {len(places) - 1} more" if len(places) > 1 else ""
                texts.append(f"{places[0]}{more}: {text}")
        return texts

    def check(self, cell: Cell) -> None:
        """Build all parts of a cell, and check them together."""
        config, entry = cell.config, self._table.data[cell.data]

        def once(name: str, make: Callable[[], Any], *spec: Any) -> Any:
            return self._once(cell, name, make, spec or config[name])

        data = once("datamodule", lambda: build_datamodule(config))
        model = once("model", lambda: check_steps(build_model(config)))
        method = once("callback", lambda: build_method(config))
        metric = once("metric", lambda: build_metric(config))
        further = once("callbacks", lambda: build_callbacks(config))
        if None in (method, metric, further):
            return
        callbacks = [method, metric, *further]
        place = [config[name] for name in ("callback", "callbacks", "trainer", "select", "monitor")]
        once("fit", lambda: _check_fit(config, callbacks), *place)
        if model is not None:
            names = [config[name] for name in ("model", "metric", "callbacks")]
            once("names", lambda: _check_names(entry, model, callbacks), cell.data, *names)
        # folds and seeds are alike in what is checked
        if self._with_data and data is not None and once("data", lambda: read_data(data), cell.data) is not None:
            chooses = config["select"] != "last" or any(method.tune for method in self._table.methods.values())
            monitor, score = entry.monitor, entry.score
            once("val", lambda: check_evaluation(data, "monitor", monitor, "val", is_needed=chooses), cell.data)
            once("test", lambda: check_evaluation(data, "score", score, "test", is_needed=True), cell.data)
            cohort = method.algorithm.sampler.cohort_size
            once("cohort", lambda: cohort(data.num_clients) or True, cell.data, config["callback"])
            if model is not None:
                once("batch", lambda: check_batch(model, data), cell.data, config["model"])

    def _once(self, cell: Cell, name: str, make: Callable[[], Any], spec: Any) -> Any:
        """Return what ``make`` makes of a spec, or ``None`` if it fails; equal specs are tried once."""
        key = (name, repr(spec))
        if key not in self._made:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always" if name == "fit" else "ignore")
                self._made[key] = _attempt(_title(name, spec), make)
            if caught:
                self._made[key] = ("warnings", " ".join(str(each.message) for each in caught))
        found = self._made[key]
        if isinstance(found, tuple):
            self._places[found].append(describe_cell(cell))
            return None
        return found


def _title(name: str, spec: Any) -> str:
    path = spec.get("class_path") if isinstance(spec, dict) else None
    return f"`{name}`" if path is None else f"`{name}` {path}"


def _attempt(title: str, make: Callable[[], Any]) -> Any:
    """Return what ``make`` makes, or the kind of failure and its text."""
    try:
        return make()
    except _MISTAKES as error:
        # a ValueError names its argument
        return "mistakes", f"{error}" if isinstance(error, ValueError) else f"{title}: {type(error).__name__}: {error}"
    except NoDataError as error:
        text = f"its data are not here yet ({error}), so the number of clients and the model's input are unchecked"
        return "unchecked", text
    except DownloadError as error:
        return "unchecked", f"{title} downloads {error} when it is made, which a dry run does not do"
    except _OBSTACLES as error:
        return "obstacles", f"{title} cannot be built on this machine: {type(error).__name__}: {error}"


def _check_fit(config: dict[str, Any], callbacks: Sequence[Callback]) -> bool:
    """Raise ``ValueError`` for a fit that cannot be; the first callback is the aggregation callback."""
    method, trainer = callbacks[0], config["trainer"]
    assert isinstance(method, AggregationCallback)
    best = [] if config["select"] == "last" else [ModelCheckpoint(_NO_FOLDER, monitor=config["monitor"])]
    try:
        made = make_trainer(config, [*callbacks, *best], logger=False, default_root_dir=_NO_FOLDER)
    except RuntimeError as error:  # two callbacks of one kind, for instance
        raise ValueError(f"`trainer` and `callbacks` cannot be combined: {error}") from error
    refuse_settings(made, method)
    has_other_end = trainer.get("max_time") is not None or trainer.get("max_steps", -1) != -1
    if not has_other_end or trainer.get("max_epochs") not in (None, -1):
        check("`max_epochs`", trainer.get("max_epochs"), Count)
    check("`check_val_every_n_epoch`", trainer.get("check_val_every_n_epoch", 1), Count)
    best_checkpoint(_NO_FOLDER, config, method.algorithm)
    method.check_rounds(rounds_of(trainer))
    return True


def _check_names(data: DataSet, model: L.LightningModule, callbacks: Sequence[Callback]) -> bool:
    """Raise ``ValueError`` if the metrics of a data set will never be logged."""
    metrics = [callback.name for callback in callbacks if isinstance(callback, ClientMetrics)]
    ours = all(type(callback).__module__.startswith(_OURS) for callback in callbacks)
    logs = type(model).__module__.startswith("fl_lightning.models.")  # else only its run shows what it logs
    wrong = []
    for entry, name, stage in (("score", data.score, "test"), ("monitor", data.monitor, "val")):
        names = {f"{stage}_{metric}" for metric in (*getattr(model, f"{stage}_metrics"), "loss")} if logs else set()
        of_clients = {f"{stage}_{metric}_clients" for metric in metrics}
        found = OF_CLIENTS.fullmatch(name)
        in_training = entry == "monitor" and name.startswith(("train_", "fed/"))
        is_logged = found[1] in metrics and name.startswith(stage) if found else in_training or not logs
        if ours and not is_logged and name not in names:
            wrong.append(
                f"`{entry}` is {name!r}, which is never logged. Names are {', '.join(sorted(names | of_clients))}."
            )
    if wrong:
        raise ValueError(" ".join(wrong))
    return True


def _opposite_modes(table: Table) -> list[str]:
    """Return a sentence for each data set that keeps the models with the worst values of its metric."""
    words = {"max": "largest", "min": "smallest"}
    return [
        f"data.{name}: the models and values with the {words[data.mode]} {data.monitor} are chosen, because `mode` is "
        f"{data.mode}. Give `mode: {suitable}`."
        for name, data in table.data.items()
        if (suitable := suitable_mode(data.monitor, data.mode)) is not None
    ]


def _unused_values(table: Table) -> list[str]:
    """Return a sentence for each value that a method gives, tunes or takes, and to which nothing refers."""
    whole = table.whole  # a value may be that of a data set which the user has left out of this run
    shared = [whole.callbacks, whole.trainer, whole.values, *map(vars, whole.data.values())]
    return [
        f"methods.{name}: `{entry}` has {value!r}, which has no effect: nothing has the text ${value}. Use it, or "
        "remove it."
        for name, method in table.methods.items()
        for entry in ("values", "tune", "take")
        for value in (getattr(method, entry) if isinstance(getattr(method, entry), dict) else ())
        if value not in references([*shared, vars(method)])
    ]
