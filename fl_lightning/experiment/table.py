"""A table of experiments: data sets, methods, folds and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fl_lightning.experiment.build import Spec, check_spec, references, refuse_unknown
from fl_lightning.experiment.readings import Among, Select, check_reading
from fl_lightning.experiment.search import SearchKind
from fl_lightning.metrics import larger_is_better
from fl_lightning.notebook import as_table
from fl_lightning.settings import Count, Finite, Natural, NotNegative, Seed, check, check_fields

Mode = Literal["max", "min"]
Pruner = Literal["none", "asha", "hyperband"]
_ACCURACY = {"name": "acc", "function": "fl_lightning.callbacks.client_metrics.accuracy"}


@dataclass
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
        score_mode: Whether larger or smaller values of ``score`` are better; ``None`` if that follows from its name, or
            if it is the metric of ``monitor``.
        targets: Values of ``monitor``; the report shows the communication that each method needs to reach them.
        validate_on_test: Whether the fits validate on the test set, as in papers without a validation set.
        stand_in: A sentence that says how data or settings differ from those of the paper; ``None`` if they do not.
        curves: Columns of the curves that the report draws; ``monitor`` if empty.
        smoothing: Number of successive validations in one point of the report's curves, a mean.
        paper: The numbers of the paper: the score of the baseline, and the differences of the other methods relative
            to it in per cent.
        published: Numbers of others by their source: ``scores`` of the methods, of shares in per cent, each a number
            or ``{score, sd}`` with the standard deviation over runs; ``runs``, how many runs a score is the mean of
            (1); ``select``, the model whose scores they are, as a table's, if the source says so; and ``rounds`` of
            their fits, where those of this table, or of one that has it as its base, may have fewer.
    """

    datamodule: Spec
    model: Spec
    trainer: dict[str, Any] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    callbacks: list[Spec] = field(default_factory=list)
    metric: dict[str, str] = field(default_factory=lambda: dict(_ACCURACY))
    monitor: str = "val_acc_clients"
    mode: Mode = "max"
    score: str = "test_acc_clients"
    score_mode: Mode | None = None
    targets: list[Finite] = field(default_factory=list)
    validate_on_test: bool = False
    stand_in: str | None = None
    curves: list[str] = field(default_factory=list)
    smoothing: Count = 1
    paper: dict[str, float] = field(default_factory=dict)
    published: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)
        check_spec("datamodule", self.datamodule)
        check_spec("model", self.model)
        for method, number in self.paper.items():
            check(f"`paper.{method}`", number, Finite)
        for source, entry in self.published.items():
            _check_published(f"published.{source}", entry)
        if self.score_mode is None:
            self.score_mode = self._mode_of_score()

    def _mode_of_score(self) -> Mode:
        """Return whether larger or smaller scores are better, by the name of the score.

        Raises:
            ValueError: If the name does not say so.
        """
        score = _without_stage(self.score)
        if score == _without_stage(self.monitor):
            return self.mode
        larger = larger_is_better(score)
        if larger is None:
            raise ValueError(
                f"`score_mode` must be max or min: the name {self.score!r} does not say which values are better."
            )
        return "max" if larger else "min"


@dataclass
class Method:
    """A federated algorithm and the values that are tuned.

    Attributes:
        callback: Spec of the aggregation callback.
        values: Values for references; they replace those of the data set.
        tune: Lists or ranges by name, from which validation clients choose the values, or a reference to these.
        take: Other methods by name of a value: the value that was chosen for them is used here too.
        callbacks: Specs of further callbacks.
    """

    callback: Spec
    values: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, Any] | str = field(default_factory=dict)
    take: dict[str, str] = field(default_factory=dict)
    callbacks: list[Spec] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_fields(self)
        check_spec("callback", self.callback)
        for name, source in self.take.items():
            check(f"`take.{name}`", source, str)


@dataclass
class Tuning:
    """The settings of the search for hyper-parameters.

    Attributes:
        search: ``"grid"``, ``"random"``, or ``"tpe"``, in which Optuna proposes points by the scores so far.
        count: Number of points for each method and data set; only a grid search does without.
        folds: Folds of the fits; their validation clients give the scores.
        seeds: Seeds of the fits.
        max_epochs: Number of rounds of the fits; that of the table if ``None``.
        seed: Seed of the draws.
        pruner: Whether Optuna ends fits that are worse than those of earlier points after as many rounds: ``"none"``,
            ``"asha"`` or ``"hyperband"``.
        at_once: Number of points that ``"tpe"`` or a pruner tries at a time. Each learns from the groups before it
            alone, so that no result depends on who is faster.
    """

    search: SearchKind = "grid"
    count: Count | None = None
    folds: list[Natural] = field(default_factory=lambda: [0])
    seeds: list[Seed] = field(default_factory=lambda: [0])
    max_epochs: Count | None = None
    seed: Natural = 0
    pruner: Pruner = "none"
    at_once: Count = 4

    def __post_init__(self) -> None:
        check_fields(self)
        _check_different(self)


@dataclass(repr=False)
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
        select: The model that is tested: the ``"last"`` one, the ``"best on validation"``, or the ``"best on test"``
            for tables of papers that select so. The last kind needs data sets with ``validate_on_test``.
        among: The models of which the best is chosen: ``"aggregated"`` ones, or all (``"virtual"`` includes the means
            between two aggregations of RADFed).
        keep_models: Whether each cell keeps the model that is tested, in ``model.ckpt`` of its folder.
        wandb: Arguments of a WandbLogger for every fit; no logger if empty.
        comparisons: Lists of data sets by title; the report shows them side by side.
        reproduces: What the table reproduces, such as ``"Table III of Xue et al. 2021"``; empty if nothing.
        reference: The table in whose file ``reproduces`` is, as plain data: the report says what differs from it.
    """

    data: dict[str, DataSet]
    methods: dict[str, Method]
    name: str = "experiment"
    folds: list[Natural] = field(default_factory=lambda: [0])
    seeds: list[Seed] = field(default_factory=lambda: [0])
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: list[Spec] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    baseline: str = ""
    select: Select = "last"
    among: Among = "aggregated"
    keep_models: bool = False
    wandb: dict[str, Any] = field(default_factory=dict)
    comparisons: dict[str, list[str]] = field(default_factory=dict)
    reproduces: str = ""
    reference: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        counts = [f"{len(names)} {kind}" for kind, names in self._axes().items()]
        return f"Table({self.name!r}: {', '.join(counts)})"

    def _repr_html_(self) -> str:
        rows = [("table", self.name)]
        for kind, names in self._axes().items():
            rows.append((kind, ", ".join(map(str, names))))
        return as_table(rows)

    def _axes(self) -> dict[str, list[Any]]:
        return {
            "methods": list(self.methods),
            "data sets": list(self.data),
            "folds": list(self.folds),
            "seeds": list(self.seeds),
        }

    def __post_init__(self) -> None:
        check_fields(self)
        _check_different(self)
        if Path(self.name).name != self.name or self.name == "..":
            raise ValueError(f"`name` must be the name of a folder, without a path, got {self.name!r}.")
        for name in (*self.data, *self.methods):
            if not name.strip():
                raise ValueError(f"`data` and `methods` must have names, got {name!r}.")
        check("The number of `data`", len(self.data), Count)
        check("The number of `methods`", len(self.methods), Count)
        self.baseline = self.baseline or next(iter(self.methods))
        check("`baseline`", self.baseline, Literal[*self.methods])
        for name, method in self.methods.items():
            unknown = set(method.take.values()) - set(self.methods)
            if unknown:
                raise ValueError(f"`take` of {name} must name methods of the table, got {', '.join(sorted(unknown))}.")
        for name, data in self.data.items():
            check_reading(self.select, name, data.validate_on_test)
            # Otherwise the fits of all folds would be one and the same.
            if self.folds != [0] and "fold" not in references([data.datamodule, data.values, self.values]):
                raise ValueError(f"`folds` are {self.folds}, but the data set {name} does not depend on $fold.")

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
            ValueError: If the table has no method or data set of that name, a method takes a value from one that is
                left out, or a data set is the same in all folds.
        """
        changes: dict[str, Any] = {}
        if methods is not None:
            for name in methods:
                check("`methods`", name, Literal[*self.methods])
            changes["methods"] = {name: method for name, method in self.methods.items() if name in methods}
            if self.baseline not in methods:
                changes["baseline"] = ""
        if data is not None:
            for name in data:
                check("`data`", name, Literal[*self.data])
            changes["data"] = {name: entry for name, entry in self.data.items() if name in data}
        if folds is not None:
            changes["folds"] = list(folds)
        if seeds is not None:
            changes["seeds"] = list(seeds)
        return replace(self, **changes)


def _without_stage(metric: str) -> str:
    """Return "acc_clients" for "test_acc_clients"."""
    return metric.partition("_")[2] or metric


def _check_published(name: str, entry: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless an entry has the ``scores`` of one source."""
    check(f"`{name}`", entry, Mapping)
    refuse_unknown(f"`{name}`", entry, ("scores", "runs", "select", "rounds"))
    # A source may not say which model it scored.
    if entry.get("select") is not None:
        check(f"`{name}.select`", entry["select"], Select)
    for count in ("runs", "rounds"):
        check(f"`{name}.{count}`", entry.get(count, 1), Count)
    for method, score in check(f"`{name}.scores`", entry.get("scores"), Mapping).items():
        if not isinstance(score, Mapping):
            check(f"`{name}.scores.{method}`", score, Finite)
            continue
        refuse_unknown(f"`{name}.scores.{method}`", score, ("score", "sd"))
        check(f"`{name}.scores.{method}.score`", score.get("score"), Finite)
        check(f"`{name}.scores.{method}.sd`", score.get("sd", 0.0), NotNegative)


def _check_different(entry: Table | Tuning) -> None:
    """Raise ``ValueError`` if folds or seeds are none, or some are there twice, so that fits would count twice."""
    for name, numbers in (("folds", entry.folds), ("seeds", entry.seeds)):
        if not numbers or len(set(numbers)) < len(numbers):
            raise ValueError(f"`{name}` must be different whole numbers, such as [0, 1, 2], got {numbers!r}.")
