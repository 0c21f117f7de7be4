"""A table of experiments: data sets, methods, folds and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from fl_lightning.checks import Count, Natural, check, joined
from fl_lightning.experiment.search import Search
from fl_lightning.experiment.specs import Spec, references
from fl_lightning.metrics import larger_is_better
from fl_lightning.partitioners.notebook import as_table

Select = Literal["aggregated", "virtual", "last"]
Mode = Literal["max", "min"]
Pruner = Literal["none", "asha", "hyperband"]
_MOST_CHARACTERS = 100  # of a table's name, which names a folder
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
        score_mode: Whether larger or smaller values of ``score`` are better; ``None`` if that follows from its name, or
            if it is the metric of ``monitor``.
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
    mode: Mode = "max"
    score: str = "test_acc_clients"
    score_mode: Mode | None = None
    targets: list[float] = field(default_factory=list)
    validate_on_test: bool = False
    stand_in: str | None = None
    curves: list[str] = field(default_factory=list)
    smoothing: int = 1
    paper: dict[str, float] = field(default_factory=dict)

    @property
    def uses_fold(self) -> bool:
        """Whether the data depend on ``$fold``."""
        return "fold" in references([self.datamodule, *self.values.values()])

    def __post_init__(self) -> None:
        _check_kinds(self)
        check("`mode`", self.mode, Literal["max", "min"])
        check("`smoothing`", self.smoothing, Count)
        if set(self.metric) != {"name", "function"}:
            raise ValueError(
                f"`metric` must have a `name` and a `function`, got {', '.join(map(str, self.metric)) or 'nothing'}."
            )
        for target in self.targets:
            if isinstance(target, bool) or not isinstance(target, (int, float)):
                raise ValueError(f"`targets` must be numbers, got {target!r} among them.")
        if self.score_mode is None:
            object.__setattr__(self, "score_mode", self._mode_of_score())
        check("`score_mode`", self.score_mode, Literal["max", "min"])

    def _mode_of_score(self) -> Mode:
        names = [name.partition("_")[2] or name for name in (self.score, self.monitor)]
        if names[0] == names[1]:
            return self.mode
        larger = larger_is_better(names[0])
        if larger is not None:
            return "max" if larger else "min"
        raise ValueError(
            f"`score` is {self.score!r}, and `monitor` is another metric, {self.monitor!r}, so it is not known whether "
            "larger scores are better. Give `score_mode: max` or `score_mode: min`."
        )


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

    def __post_init__(self) -> None:
        _check_kinds(self)


@dataclass(frozen=True)
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

    search: Search = "grid"
    count: int | None = None
    folds: list[int] = field(default_factory=lambda: [0])
    seeds: list[int] = field(default_factory=lambda: [0])
    max_epochs: int | None = None
    seed: int = 0
    pruner: Pruner = "none"
    at_once: int = 4

    def __post_init__(self) -> None:
        _check_kinds(self)
        check("`search`", self.search, Literal["grid", "random", "tpe"])
        check("`pruner`", self.pruner, Literal["none", "asha", "hyperband"])
        check("`at_once`", self.at_once, Count)
        for name, numbers in (("folds", self.folds), ("seeds", self.seeds)):
            _check_numbers(name, numbers)
        if self.search != "grid" and self.count is None:
            raise ValueError(
                f"`tuning.search: {self.search}` needs `tuning.count`, the number of points to draw; got None."
            )


@dataclass(frozen=True, repr=False)
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
        reproduces: What the table reproduces, such as ``"Table III of Xue et al. 2021"``; empty if nothing.
        reference: The table in whose file ``reproduces`` is, as plain data: the report says what differs from it.
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
    reproduces: str = ""
    reference: dict[str, Any] = field(default_factory=dict)
    file = ""  # that the table was read from; no field, because it is no entry of that file
    _whole = None  # of which this is a part

    def __repr__(self) -> str:
        return f"Table({self.name!r}: {', '.join(f'{len(things)} {kind}' for kind, things in self._axes().items())})"

    def _repr_html_(self) -> str:
        rows = [(kind, ", ".join(map(str, things))) for kind, things in self._axes().items()]
        return as_table([("table", self.name), *rows])

    @property
    def whole(self) -> Table:
        """The table of which this one is a part, as :meth:`only` made it; else the table itself."""
        return self if self._whole is None else self._whole

    def _axes(self) -> dict[str, list[Any]]:
        axes = {"methods": list(self.methods), "data sets": list(self.data)}
        return {**axes, "folds": list(self.folds), "seeds": list(self.seeds)}

    def __post_init__(self) -> None:
        _check_kinds(self)
        check_file_name("name", self.name, "runs/<name>")
        check("`select`", self.select, Literal["aggregated", "virtual", "last"])
        for name, entries in (("data", self.data), ("methods", self.methods)):
            if not entries:
                raise ValueError(f"`{name}` must name at least one, got none.")
            _check_names(name, entries)
        for name, numbers in (("folds", self.folds), ("seeds", self.seeds)):
            _check_numbers(name, numbers)
        object.__setattr__(self, "baseline", self.baseline or next(iter(self.methods)))
        check("`baseline`", self.baseline, Literal[*self.methods])
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
            ValueError: If the table has no method or data set of that name, a method takes a value from one that is
                left out, or a data set is the same in all folds.
        """
        for kind, given, known in (("methods", methods, self.methods), ("data", data, self.data)):
            for name in given or ():
                check(f"`{kind}`", name, Literal[*known])
        same = [name for name in (self.data if data is None else data) if not self.data[name].uses_fold]
        if folds is not None and list(folds) != list(self.folds) and same:
            raise ValueError(
                f"`folds` are {list(folds)}, but the data set {same[0]} does not depend on $fold, so that every fold "
                "is the same. Leave `folds` out, or give its data module a split with `fold: $fold`."
            )
        kept = {name: method for name, method in self.methods.items() if methods is None or name in methods}
        for name, method in kept.items():
            if missing := sorted(set(method.take.values()) - set(kept)):
                sources = joined(missing)
                values = ", ".join(value for value, source in method.take.items() if source in missing)
                raise ValueError(
                    f"`methods` have {name} without {sources}, for which values are tuned that {name} takes "
                    f"({values}). Name {sources}, too."
                )
        part = replace(
            self,
            data={name: entry for name, entry in self.data.items() if data is None or name in data},
            methods=kept,
            folds=list(self.folds if folds is None else folds),
            seeds=list(self.seeds if seeds is None else seeds),
            baseline=self.baseline if self.baseline in kept else "",
        )
        object.__setattr__(part, "file", self.file)
        object.__setattr__(part, "_whole", self.whole)
        return part


def check_file_name(argument: str, name: object, folder: str) -> None:
    """Raise ``ValueError`` unless a name can be that of a folder below the present one."""
    plain = isinstance(name, str) and name.isprintable() and not set(name) & set("/\\") and name.strip(". ") != ""
    if not plain or len(str(name)) > _MOST_CHARACTERS:
        raise ValueError(
            f"`{argument}` must be a string of at most {_MOST_CHARACTERS} characters without slashes, because {folder} "
            f"is a folder; got {name!r}. Give the folder of the results by `--output`."
        )


def _check_kinds(entry: Any) -> None:
    """Raise ``ValueError`` if a field of an entry has another kind than its annotation says."""
    for item in fields(entry):
        value = getattr(entry, item.name)
        for annotation, kind, text in _KINDS:
            fits = isinstance(value, kind) or (value is None and "None" in str(item.type))
            if str(item.type).startswith(annotation) and not fits and not _is_reference(item.name, value):
                raise ValueError(f"`{item.name}` must be {text}{_EXAMPLES.get(item.name, '')}, got {value!r}.")


_EXAMPLES = dict.fromkeys(("folds", "seeds"), ", such as [0, 1, 2]")
_KINDS: tuple[tuple[str, type, str], ...] = (
    ("dict", Mapping, "a mapping, lines of `name: value`"),
    ("list", list, "a list"),
    ("str", str, "a string"),
    ("bool", bool, "true or false"),
)


def _is_reference(name: str, value: object) -> bool:
    """Whether a search space is a value of another place."""
    return name == "tune" and isinstance(value, str) and value.startswith("$")


def _check_names(kind: str, entries: Mapping[Any, Any]) -> None:
    for name in entries:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(
                f"`{kind}` must have texts for names, got {name!r}, a {type(name).__name__}. Write it in quotes."
            )


def _check_numbers(name: str, numbers: Any) -> None:
    if not isinstance(numbers, list) or not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"`{name}` must be a list of different whole numbers, at least one{_EXAMPLES[name]}, got {numbers!r}."
        )
    for number in numbers:
        check(f"`{name}`", number, Natural)
