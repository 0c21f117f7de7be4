"""Checks a table before any work: builds the objects of every cell and names all mistakes at once."""

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
from fl_lightning.arguments import check_bool, check_count, check_instance
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.experiment.assembly import (
    build_callbacks,
    build_datamodule,
    build_method,
    build_metric,
    make_trainer,
)
from fl_lightning.experiment.cell import quiet
from fl_lightning.experiment.check_data import (
    OF_CLIENTS,
    DownloadError,
    NoDataError,
    check_batch,
    check_cohort,
    check_evaluation,
    checked_model,
    read_sample,
    without_downloads,
)
from fl_lightning.experiment.check_values import opposite_modes, unused_by_methods
from fl_lightning.experiment.plan import Cell, planned, rounds_of
from fl_lightning.experiment.progress import describe_cell
from fl_lightning.experiment.selection import best_checkpoint
from fl_lightning.experiment.table import DataSet, Table
from fl_lightning.experiment.table_file import describe_mistakes

_OURS = ("fl_lightning.", "lightning.")
_MISTAKES = (ValueError, TypeError, AttributeError, LookupError, MisconfigurationException)
_OBSTACLES = (OSError, ImportError, MemoryError, SystemExit)
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
    """Build the objects of every cell of a table and return what is wrong.

    Args:
        table: The table.
        with_data: Whether to read each data set too, in its first fold and seed, without downloading it: as many
            clients must train as each method asks for, and a model of the package must take a batch. Weights of models
            are not downloaded either.
    """
    check_instance("table", table, Table, "`read_table` makes one of a file or a mapping.")
    check_bool("with_data", with_data)
    try:
        plan = planned(table)
    except ValueError as error:
        return Findings([str(error)])
    checker = _Checker(table, with_data)
    with quiet(), isolate_rng(), without_downloads() if with_data else nullcontext():
        for entry in plan:
            for cell in entry.cells.values():
                checker.check(cell)
    mistakes = [*checker.listed("mistake"), *unused_by_methods(table)]
    warned = [*opposite_modes(table), *checker.listed("warning")]
    return Findings(mistakes, checker.listed("obstacle"), warned, checker.listed("unchecked"))


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


@dataclass
class _Failure:
    kind: str
    text: str


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
        """Build all parts of a cell."""
        config = cell.config
        data = self._once(cell, "datamodule", config["datamodule"], lambda: build_datamodule(config) is not None)
        logged = self._once(cell, "model", config["model"], lambda: _names_logged(checked_model(config)))
        method = self._once(cell, "callback", config["callback"], lambda: build_method(config))
        metric = self._once(cell, "metric", config["metric"], lambda: build_metric(config))
        further = self._once(cell, "callbacks", config["callbacks"], lambda: build_callbacks(config))
        ends = self._once(cell, "number of rounds", config["trainer"], lambda: _check_rounds(config["trainer"]))
        if method is not None and ends:
            parts = [config[name] for name in ("callback", "trainer", "select")]
            self._once(cell, "selection", parts, lambda: _check_selection(config, method))
            self._once(cell, "rounds", parts[:2], lambda: _warnings_of_rounds(config, method))
        if None not in (method, metric, further):
            self._check_together(cell, config if ends else _with_a_round(config), method, [metric, *further], logged)
        if self._with_data and data is not None:
            self._check_with_data(cell, method, logged is not None)

    def _check_with_data(self, cell: Cell, method: AggregationCallback | None, has_model: bool) -> None:
        config = cell.config
        # folds and seeds are alike in what is checked
        sample = self._once(cell, "data", cell.data, lambda: read_sample(config))
        if sample is None:
            return
        entry = self._table.data[cell.data]
        chooses = config["select"] != "last" or any(method.tune for method in self._table.methods.values())
        self._once(cell, "clients", cell.data, lambda: check_evaluation(entry, sample, chooses=chooses))
        if method is not None:
            self._once(cell, "cohort", [cell.data, config["callback"]], lambda: check_cohort(method, sample))
        if has_model:
            self._once(cell, "batch", [cell.data, config["model"]], lambda: check_batch(config, sample))

    def _check_together(
        self,
        cell: Cell,
        config: dict[str, Any],
        method: AggregationCallback,
        callbacks: Sequence[Callback],
        logged: _Logged | None,
    ) -> None:
        data = self._table.data[cell.data]
        kinds = [type(callback).__name__ for callback in (method, *callbacks)]
        trainer = [config["trainer"], kinds, config["callbacks"]]
        self._once(cell, "trainer", trainer, lambda: _check_trainer(config, [method, *callbacks]))
        if logged is not None:
            names = [data.score, data.monitor, config["model"], config["metric"], config["callbacks"]]
            self._once(cell, "names", names, lambda: _check_names(data, logged, callbacks))

    def _once(self, cell: Cell, part: str, spec: Any, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes of a spec, or ``None`` if it fails; equal specs are tried once."""
        key = (part, repr(spec))
        if key not in self._made:
            self._made[key] = _attempt(_title(part, spec), make)
        found = self._made[key]
        if isinstance(found, _Failure):
            self._places[found.kind, found.text].append(describe_cell(cell))
            return None
        return found


def _warnings_of_rounds(config: dict[str, Any], method: AggregationCallback) -> _Failure | None:
    """Return what the method warns of when a fit begins; the fits themselves write it into their logs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        method.check_rounds(rounds_of(config["trainer"]))
    return _Failure("warning", " ".join(str(each.message) for each in caught)) if caught else None


def _title(part: str, spec: Any) -> str:
    path = spec.get("class_path") if isinstance(spec, dict) else None
    return f"`{part}`" if path is None else f"`{part}` {path}"


def _attempt(title: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except _MISTAKES as error:
        own = isinstance(error, ValueError)  # ours name the argument
        return _Failure("mistake", f"{error}" if own else f"{title}: {type(error).__name__}: {error}")
    except NoDataError as error:
        return _Failure(
            "unchecked",
            f"its data are not here yet ({error}), so the number of clients and the model's input are unchecked",
        )
    except DownloadError as error:
        return _Failure("unchecked", f"{title} downloads {error} when it is made, which a dry run does not do")
    except (RuntimeError, *_OBSTACLES) as error:
        return _Failure("obstacle", f"{title} cannot be built on this machine: {type(error).__name__}: {error}")


def _check_selection(config: dict[str, Any], method: AggregationCallback) -> bool:
    best_checkpoint(_NO_FOLDER, config, method.algorithm)
    return True


def _check_trainer(config: dict[str, Any], callbacks: Sequence[Callback]) -> bool:
    """Raise ``ValueError`` for a trainer that no fit can have; the first callback is the aggregation callback."""
    best = [] if config["select"] == "last" else [ModelCheckpoint(_NO_FOLDER, monitor=config["monitor"])]
    try:
        trainer = make_trainer(config, [*callbacks, *best], logger=False, default_root_dir=_NO_FOLDER)
    except RuntimeError as error:  # two callbacks of one kind, for instance
        raise ValueError(f"`trainer` and `callbacks` cannot be combined: {error}") from error
    refuse_settings(trainer, callbacks[0])
    if config["trainer"].get("max_epochs") is None and rounds_of(config["trainer"]) is not None:
        raise ValueError("`trainer` has no `max_epochs`, the number of rounds. Write `trainer: {max_epochs: 100}`.")
    return True


def _check_rounds(trainer: dict[str, Any]) -> bool:
    """Raise ``ValueError`` unless a fit ends, and validates after a number of rounds."""
    rounds, every = trainer.get("max_epochs"), trainer.get("check_val_every_n_epoch", 1)
    ends_otherwise = rounds_of({**trainer, "max_epochs": None}) is None
    if rounds is not None and not (ends_otherwise and rounds == -1):  # that there is none is told with the rest
        check_count("max_epochs", rounds, hint="It is the number of rounds.")
    check_count("check_val_every_n_epoch", every, hint="It is the number of rounds from one validation to the next.")
    return True


def _with_a_round(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration with another number of rounds, so that the rest can be checked."""
    trainer = {name: value for name, value in config["trainer"].items() if name != "check_val_every_n_epoch"}
    return {**config, "trainer": {**trainer, "max_epochs": 1}}


# ---- names of metrics ----


@dataclass(frozen=True)
class _Logged:
    """The metrics that a model logs; ``None`` if that cannot be known before it runs."""

    val: set[str] | None
    test: set[str] | None


def _names_logged(model: L.LightningModule) -> _Logged:
    if not type(model).__module__.startswith("fl_lightning.models."):
        return _Logged(None, None)
    val, test = ([*getattr(model, f"{stage}_metrics"), "loss"] for stage in ("val", "test"))
    return _Logged({f"val_{name}" for name in val}, {f"test_{name}" for name in test})


def _check_names(data: DataSet, logged: _Logged, callbacks: Sequence[Callback]) -> bool:
    """Raise ``ValueError`` if the metrics of a data set will never be logged."""
    metrics = [callback.name for callback in callbacks if isinstance(callback, ClientMetrics)]
    known = all(type(callback).__module__.startswith(_OURS) for callback in callbacks)
    wrong = []
    for entry, name, names in (("score", data.score, logged.test), ("monitor", data.monitor, logged.val)):
        stage = "test" if entry == "score" else "val"
        of_clients = {f"{stage}_{metric}_clients{end}" for metric in metrics for end in ("", "_std", "_min")}
        found = OF_CLIENTS.fullmatch(name)
        if found and found[1] in metrics and name.startswith(stage):
            continue
        if known and found is None and entry == "monitor" and name.startswith(("train_", "fed/")):
            continue
        if known and (names is not None or found) and name not in (names or set()):
            shown = sorted((names or set()) | {name for name in of_clients if name.endswith("_clients")})
            wrong.append(f"`{entry}` is {name!r}, which is never logged. Names are {', '.join(shown)}.")
    if wrong:
        raise ValueError(" ".join(wrong))
    return True
