"""A table of experiments, as a YAML file describes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml  # type: ignore[import-untyped]

from fl_lightning.arguments import check_choice, check_count
from fl_lightning.experiment.search import Search
from fl_lightning.experiment.specs import Spec, check_paths

Select = Literal["aggregated", "virtual", "last"]
_ACCURACY = {"name": "acc", "function": "fl_lightning.callbacks.client_metrics.accuracy"}


@dataclass(frozen=True)
class DataSet:
    """A data set and the model that is trained on it.

    Attributes:
        datamodule: Spec of the data module.
        model: Spec of the LightningModule.
        trainer: Arguments of the Trainer; they replace those of the table.
        values: Values for references; they replace those of the table.
        callbacks: Specs of further callbacks, such as diagnostics.
        metric: Name and function of the metric that each client computes.
        monitor: Validation metric that chooses the best model of a fit and the hyper-parameters.
        mode: Whether larger (``"max"``) or smaller (``"min"``) values of ``monitor`` are better.
        score: Test metric that the report compares.
        targets: Values of ``monitor``; the report shows the communication that each method needs to reach them.
        validate_on_test: Whether the fits validate on the test set, as in papers without a validation set.
        stand_in: A sentence that says how data or settings differ from those of the paper; ``None`` if they do not.
        curves: Columns of the curves that the report draws; ``monitor`` if empty.
        smoothing: Number of successive validations in one point of the report's curves, a mean.
        paper: The numbers of the paper: the score of the baseline, and the differences of the other methods relative
            to it in per cent.
    """

    datamodule: Spec
    model: Spec
    trainer: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    callbacks: list[Spec] = field(default_factory=list)
    metric: dict[str, str] = field(default_factory=lambda: dict(_ACCURACY))
    monitor: str = "val_acc_clients"
    mode: Literal["max", "min"] = "max"
    score: str = "test_acc_clients"
    targets: list[float] = field(default_factory=list)
    validate_on_test: bool = False
    stand_in: str | None = None
    curves: list[str] = field(default_factory=list)
    smoothing: int = 1
    paper: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, ("max", "min"))
        check_count("smoothing", self.smoothing)
        if set(self.metric) != {"name", "function"}:
            raise ValueError(f"`metric` must have a `name` and a `function`, got {sorted(self.metric)}.")


@dataclass(frozen=True)
class Method:
    """A federated algorithm and the values that are tuned.

    Attributes:
        callback: Spec of the aggregation callback.
        values: Values for references; they replace those of the data set.
        tune: Lists or ranges by name, from which validation clients choose the values.
        take: Other methods by name of a value: the value that was chosen for them is used here too.
        callbacks: Specs of further callbacks.
    """

    callback: Spec
    values: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, Any] = field(default_factory=dict)
    take: dict[str, str] = field(default_factory=dict)
    callbacks: list[Spec] = field(default_factory=list)


@dataclass(frozen=True)
class Tuning:
    """The settings of the search for hyper-parameters.

    Attributes:
        search: ``"grid"`` or ``"random"``.
        count: Number of points for each method and data set; a random search needs it.
        folds: Folds of the fits; their validation clients give the scores.
        seeds: Seeds of the fits.
        max_epochs: Number of rounds of the fits; that of the table if ``None``.
        seed: Seed of the draws of a random search.
    """

    search: Search = "grid"
    count: int | None = None
    folds: list[int] = field(default_factory=lambda: [0])
    seeds: list[int] = field(default_factory=lambda: [0])
    max_epochs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("search", self.search, ("grid", "random"))
        if self.search == "random" and self.count is None:
            raise ValueError("`tuning.search: random` needs `tuning.count`, the number of points to draw; got None.")


@dataclass(frozen=True)
class Table:
    """Methods x data sets x folds x seeds.

    Attributes:
        data: The data sets by name.
        methods: The methods by name.
        name: Name of the table.
        folds: Values of ``$fold``.
        seeds: Values of ``$seed``; this is also the seed of initial weights, draws of clients and local training.
        trainer: Arguments of every Trainer.
        callbacks: Specs of callbacks for every fit.
        values: Values for references.
        tuning: Settings of the search for hyper-parameters.
        baseline: Method with which the report compares the others; the first method if empty.
        select: The model that is tested: the best on validation among ``"aggregated"`` models, the best among all
            (``"virtual"`` includes the means between two aggregations of RADFed), or the ``"last"`` one.
        wandb: Arguments of a WandbLogger for every fit; no logger if empty.
        comparisons: Lists of data sets by title; the report shows them side by side.
    """

    data: dict[str, DataSet]
    methods: dict[str, Method]
    name: str = "experiment"
    folds: list[int] = field(default_factory=lambda: [0])
    seeds: list[int] = field(default_factory=lambda: [0])
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: list[Spec] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    baseline: str = ""
    select: Select = "aggregated"
    wandb: dict[str, Any] = field(default_factory=dict)
    comparisons: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("select", self.select, ("aggregated", "virtual", "last"))
        for name, entries in (("data", self.data), ("methods", self.methods)):
            if not entries:
                raise ValueError(f"`{name}` must name at least one, got none.")
        for name, numbers in (("folds", self.folds), ("seeds", self.seeds)):
            _check_numbers(name, numbers)
        object.__setattr__(self, "baseline", self.baseline or next(iter(self.methods)))
        check_choice("baseline", self.baseline, tuple(self.methods))
        for name, method in self.methods.items():
            for value, source in method.take.items():
                if source not in self.methods or source == name:
                    raise ValueError(
                        f"`take` of {name} has {value} from {source!r}, which must be another method of the table. "
                        f"Methods are {', '.join(self.methods)}."
                    )

    def only(
        self,
        methods: Sequence[str] | None = None,
        data: Sequence[str] | None = None,
        folds: Sequence[int] | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Table:
        """Return a part of the table: some of its methods and data sets, and other folds and seeds.

        ``None`` keeps all of the table. A method from which another one takes values must be kept.

        Raises:
            ValueError: If the table has no method or data set of that name.
        """
        for kind, given, known in (("methods", methods, self.methods), ("data", data, self.data)):
            for name in given or ():
                check_choice(kind, name, tuple(known))
        kept = {name: method for name, method in self.methods.items() if methods is None or name in methods}
        return replace(
            self,
            data={name: entry for name, entry in self.data.items() if data is None or name in data},
            methods=kept,
            folds=list(self.folds if folds is None else folds),
            seeds=list(self.seeds if seeds is None else seeds),
            baseline=self.baseline if self.baseline in kept else "",
        )

    def check(self) -> None:
        """Raise ``ValueError`` if a class or a function of the table cannot be imported."""
        check_paths(self.callbacks)
        for data in self.data.values():
            check_paths([data.datamodule, data.model, data.callbacks, {"object": data.metric["function"]}])
        for method in self.methods.values():
            check_paths([method.callback, method.callbacks])


def read_table(source: str | os.PathLike[str] | Mapping[str, Any] | Table) -> Table:
    """Return the table of a YAML file, or of a mapping with the same content.

    Paths in a file are relative to its folder. ``include`` maps names to other files; the content of a file becomes the
    value of the name: ``include: {grid: grids/xue2021.yaml}`` and then ``$grid.mu``. ``base`` names another table; the
    entries of this file replace those of the base, and ``null`` removes an entry.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If an entry is unknown or missing.
    """
    if isinstance(source, Table):
        return source
    given = dict(source) if isinstance(source, Mapping) else _read_with_base(Path(source))
    given["data"] = {name: _make(DataSet, f"data.{name}", entry) for name, entry in (given.get("data") or {}).items()}
    methods = given.get("methods") or {}
    given["methods"] = {name: _make(Method, f"methods.{name}", entry) for name, entry in methods.items()}
    given["tuning"] = _make(Tuning, "tuning", given.get("tuning") or {})
    table: Table = _make(Table, "the table", given)
    return table


def _read_with_base(path: Path) -> dict[str, Any]:
    """Return a table's file, on top of its base, with included files among its values."""
    given = _read_yaml(path)
    base = given.pop("base", None)
    included = {name: _read_yaml(path.parent / other) for name, other in (given.pop("include", None) or {}).items()}
    given["values"] = {**included, **(given.get("values") or {})}
    return given if base is None else _merge(_read_with_base(path.parent / base), given)


def _merge(base: Any, given: Any) -> Any:
    """Return ``base`` with the given entries in place of its own; a class of another path keeps no arguments."""
    if not isinstance(base, Mapping) or not isinstance(given, Mapping):
        return given
    if "class_path" in given and given["class_path"] != base.get("class_path"):
        return given
    merged = dict(base)
    for name, value in given.items():
        merged[name] = _merge(base[name], value) if name in base else value
    return {name: value for name, value in merged.items() if value is not None or name not in given}


def _read_yaml(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a mapping, got {type(content).__name__}.")
    return content


def _make(kind: type, place: str, given: Any) -> Any:
    known = [entry.name for entry in fields(kind)]
    if not isinstance(given, Mapping):
        raise ValueError(f"{place} must be a mapping with some of {', '.join(known)}; got {given!r}.")
    for name in given:
        if name not in known:
            raise ValueError(f"{place} has an unknown entry {name!r}. It takes {', '.join(known)}.")
    try:
        return kind(**{name: value for name, value in given.items() if value is not None})
    except TypeError as error:
        raise ValueError(f"{place} is not complete: {error}.") from error


def _check_numbers(name: str, numbers: Any) -> None:
    if not isinstance(numbers, list) or not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"`{name}` must be a list of different whole numbers, at least one, got {numbers!r}.")
    for number in numbers:
        check_count(name, number, minimum=0)
