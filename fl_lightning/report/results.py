"""The results of an experiment as frames, from which its tables, figures and sentences are made."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.experiment.files import read_csv, read_json
from fl_lightning.experiment.readings import Select
from fl_lightning.experiment.statistics import LEVEL, holm, signed_rank_test, summarize
from fl_lightning.report.names import Scale, is_share, metric_name

#: The method whose clients train alone.
ALONE = "Local"
#: Marks of methods that are significantly better and worse than the baseline.
BETTER, WORSE = "†", "‡"
RUN = ["data", "method", "fold", "seed"]
DIAGNOSTICS = {
    "fed/central_distance": "DC: relative distance to the central model",
    "fed/divergence": "DL: mean pairwise cosine divergence of local models",
}
#: Whose data a guarantee of privacy protects, and against whom; the columns of its epsilon and delta.
PRIVACY = {
    "a client, from other clients": ("fed/epsilon", "fed/delta"),
    "a client, from the server too": ("fed/local_epsilon", "fed/local_delta"),
    "a sample, from the server too": ("fed/example_epsilon", "fed/example_delta"),
}
_COUNTS = ["fed/clients", "fed/dropped", "fed/models_sent", "fed/aggregated"]
_RUNS = [*RUN, "status", "score", "constant_score", "rounds", "partition", "code", "cell", "error"]
_TUNING = ["data", "method", "values", "val", "chosen"]
_ABOUT = ["begun", "ended", "seconds", "device", "python", "torch", "lightning", "numpy"]
_TESTS = ["data", "method", "difference", "low", "high", "pairs", "zeros", "p", "gain"]
_CLIENTS = {"fold": int, "seed": int, "client": int, "samples": int, "score": float, "own": float}
#: Means are rounded to so many decimals, so that those of the same numbers in another order are equal.
DIGITS = 12


@dataclass(frozen=True, eq=False)
class Results:
    """The results in a folder that :func:`fl_lightning.experiment.run_table` has written.

    Attributes:
        folder: The folder.
        table: The settings of the table.
        runs: The runs that failed, or have a score: the rows of ``results.csv``.
        tuning: The rows of ``tuning.csv``.
    """

    folder: Path
    table: dict[str, Any]
    runs: pd.DataFrame
    tuning: pd.DataFrame

    @property
    def baseline(self) -> str:
        """The method with which the report compares the others."""
        return str(self.table["baseline"])

    @cached_property
    def data(self) -> list[str]:
        """The data sets with a score, in the order of the table."""
        found = set(self.scored["data"])
        return [name for name in self.table["data"] if name in found]

    @cached_property
    def methods(self) -> list[str]:
        """The methods with a score, in the order of the table."""
        found = set(self.scored["method"])
        return [name for name in self.table["methods"] if name in found]

    def place(self, method: str) -> int:
        """Return the place of a method in the table, which is that of its colour in all figures."""
        return list(self.table["methods"]).index(method)

    @property
    def others(self) -> list[str]:
        """The methods that are compared with the baseline; none if the baseline has no score."""
        if self.baseline not in self.methods:
            return []
        return [name for name in self.methods if name != self.baseline]

    # ---- runs ----

    @property
    def num_expected(self) -> int:
        """Number of runs of each method on each data set."""
        return len(self.table["folds"]) * len(self.table["seeds"])

    @property
    def num_cells(self) -> int:
        """Number of all runs."""
        return self.num_expected * len(self.table["data"]) * len(self.table["methods"])

    @property
    def failed(self) -> pd.DataFrame:
        """The runs that failed."""
        return self.runs[self.runs["status"] == "failed"]

    @property
    def diverged(self) -> pd.DataFrame:
        """The finished runs whose score is NaN or infinite."""
        is_diverged = (self.runs["status"] == "finished") & ~np.isfinite(self.runs["score"])
        diverged: pd.DataFrame = self.runs[is_diverged]
        return diverged

    @cached_property
    def scored(self) -> pd.DataFrame:
        """The finished runs with a finite score; with their times, devices and versions, NaN if not known."""
        runs: pd.DataFrame = self.runs[np.isfinite(self.runs["score"])]
        about = []
        for cell in runs["cell"]:
            file = self.folder / "cells" / str(cell) / "run.json"
            about.append(read_json(file) if file.is_file() else {})
        return runs.join(pd.DataFrame(about, index=runs.index).reindex(columns=_ABOUT))

    @cached_property
    def curves(self) -> pd.DataFrame:
        """The curves of the runs with a score: a row for each run and round, NaN where a round has no value.

        ``cost`` is the number of models sent until then, in rounds of FedAvg (Acar et al. 2021): a round of FedAvg
        sends one model to each of its clients and one back.

        Raises:
            ValueError: If a file cannot be read.
        """
        shown: set[str] = set()
        for settings in self.table["data"].values():
            shown |= {settings["monitor"], *settings["curves"]}
        # A dict keeps the order, and the first of equal names.
        spent = [column for columns in PRIVACY.values() for column in columns]
        columns = list(dict.fromkeys(["round", *_COUNTS, *spent, *DIAGNOSTICS, *sorted(shown)]))
        runs: list[list[Any]] = []
        values: list[np.ndarray] = []
        for *run, cell in self.scored[[*RUN, "cell"]].itertuples(index=False):
            path = self.folder / "cells" / str(cell) / "curve.csv"
            try:
                curve = _read_numbers(path, columns)
            except (OSError, ValueError, csv.Error) as error:
                raise ValueError(
                    f"{path} cannot be read ({error}). Delete the folder {path.parent} and run the table again; it "
                    "runs only this cell."
                ) from error
            runs += [run] * len(curve)
            values.append(curve)
        names = pd.DataFrame(runs, columns=RUN)
        numbers = pd.DataFrame(np.concatenate(values), columns=columns)
        curves = pd.concat([names, numbers], axis=1)
        clients = curves["fed/clients"] + curves["fed/dropped"].fillna(0)
        clients_a_round = clients.groupby([curves[key] for key in RUN]).cumsum() / curves["round"]
        cost = curves["fed/models_sent"] / (2 * clients_a_round)
        # Where no client has trained yet, nothing was sent.
        return curves.assign(cost=cost.mask(clients_a_round == 0, 0.0))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """The scores of the test clients: a row for each run and client, with its name and its number of samples.

        ``score`` is that of the model which the table's score names: the client's own, if it has one, or the one that
        all share. ``gain`` is how much better it is than the client's own model by ``Local``, with the same fold and
        seed. ``name`` is the client's number, if clients have no names.
        """
        rows: list[tuple[Any, ...]] = []
        for *run, cell in self.scored[[*RUN, "cell"]].itertuples(index=False):
            path = self.folder / "cells" / str(cell) / "clients.csv"
            if not path.is_file():
                continue
            with path.open(encoding="utf-8", newline="") as file:
                columns, *lines = csv.reader(file)
            names = [line[columns.index("name" if "name" in columns else "client")] for line in lines]
            # The column of the clients' own models, if they have some, is behind that of the shared model.
            scores = columns[columns.index("samples") + 1 :]
            own = scores[-1]
            score = own if self.scores_own_models(run[0]) else scores[0]
            values = _read_numbers(path, ["client", "samples", score, own]).tolist()
            for name, numbers in zip(names, values, strict=True):
                rows.append((*run, name, *numbers))
        found = pd.DataFrame(rows, columns=[*RUN, "name", "client", "samples", "score", "own"])
        found = found.dropna(subset=["score"]).astype(_CLIENTS)
        # What the same client reaches with the same fold and seed when it trains alone.
        same = ["data", "fold", "seed", "client"]
        alone = found[found["method"] == ALONE].set_index(same)["own"].rename("alone")
        found = found.drop(columns="own").join(alone, on=same)
        signs = found["data"].map(self.sign).astype(float)
        return found.assign(gain=(found["score"] - found["alone"]) * signs)

    # ---- scores ----

    @cached_property
    def scores(self) -> pd.DataFrame:
        """The scores: a row for each data set, fold and seed, a column for each method, NaN without a run."""
        scores = self.scored.pivot(index=["data", "fold", "seed"], columns="method", values="score")
        return scores.sort_index()[self.methods]

    def scores_of(self, data: str) -> pd.DataFrame:
        """Return the scores of a data set: a row by fold and seed, a column by method, NaN without a run."""
        return self.scores.loc[[data]].droplevel("data")

    @cached_property
    def means(self) -> pd.DataFrame:
        """The mean scores: a row for each data set, a column for each method, NaN without a run."""
        return self.scores.groupby("data").mean().round(DIGITS).loc[self.data]

    def mean(self, data: str, method: str) -> float:
        """Return the mean score of a method on a data set; NaN without a run."""
        return float(self.means[method][data])

    @cached_property
    def gains(self) -> pd.DataFrame:
        """The mean scores, with the sign that makes larger ones better."""
        return self.means.mul([self.sign(data) for data in self.data], axis=0)

    @cached_property
    def differences(self) -> pd.DataFrame:
        """The differences of means relative to the baseline's, in per cent; no row where that is 0 or not known."""
        base = self.means.get(self.baseline, pd.Series(dtype=float))
        base = base[base != 0].dropna()
        ratios = self.means.loc[base.index, self.others].div(base, axis=0)
        # A score of -1 is more than one of -2.
        return (100 * (ratios - 1)).mul(np.sign(base), axis=0)

    @cached_property
    def tests(self) -> pd.DataFrame:
        """The signed-rank tests of methods with two pairs of runs against the baseline, by data set and method.

        Holm's correction takes the tests on a data set as one family.
        """
        rows = []
        for data in self.data:
            for method in self.others:
                pairs = self.scores_of(data)[[method, self.baseline]].dropna()
                if len(pairs) < 2:
                    continue
                scores = pairs[method].to_numpy()
                baselines = pairs[self.baseline].to_numpy()
                test = signed_rank_test(scores, baselines)
                difference = summarize(scores - baselines)
                rows.append(
                    {
                        "data": data,
                        "method": method,
                        "difference": difference.mean,
                        "low": difference.low,
                        "high": difference.high,
                        "pairs": test.num_pairs,
                        "zeros": test.num_zeros,
                        "p": test.p_value,
                        "gain": self.sign(data) * (test.positive - test.negative),
                    }
                )
        tests = pd.DataFrame(rows, columns=_TESTS).set_index(["data", "method"])
        tests["holm"] = tests.groupby("data")["p"].transform(lambda p: np.array(holm(p.to_numpy())))
        direction = np.where(tests["gain"] > 0, BETTER, WORSE)
        tests["mark"] = np.where(tests["holm"] < LEVEL, direction, "")
        return tests

    # ---- metrics ----

    def curve_columns(self, data: str) -> list[str]:
        """Return the columns of the curves of a data set that the report draws."""
        settings = self.table["data"][data]
        return list(settings["curves"] or [settings["monitor"]])

    def scores_own_models(self, data: str) -> bool:
        """Return whether the score of a data set is one of clients' own models."""
        return "_personal" in str(self.table["data"][data]["score"])

    def sign(self, data: str) -> int:
        """Return 1 if larger scores are better, else -1."""
        settings: dict[str, Any] = self.table["data"][data]
        mode = settings.get("score_mode") or settings["mode"]
        return 1 if mode == "max" else -1

    def scale(self, data: str) -> Scale:
        """Return how the scores of a data set are written: in per cent if they are shares of 1."""
        scores = self.scores_of(data).to_numpy()
        is_within = bool(np.nanmin(scores) >= 0 and np.nanmax(scores) <= 1)
        percent = is_within and is_share(str(self.table["data"][data]["score"]))
        return Scale(percent, largest=float(np.nanmax(np.abs(scores))))

    def metric(self, data: str) -> str:
        """Return the score of a data set with its unit, such as ``"accuracy, %"``; the same ones can be averaged.

        A score that was selected on the test set says so: ``"accuracy, best on test, %"``.
        """
        name = metric_name(str(self.table["data"][data]["score"]))
        if self.table["select"] == "best on test":
            name += ", best on test"
        return f"{name}, %" if self.scale(data).percent else name

    def tuned_on_test(self) -> list[str]:
        """Return the methods whose hyper-parameters were chosen by scores of the test set."""
        on_test = [data for data, settings in self.table["data"].items() if settings["validate_on_test"]]
        tuned = self.tuning[self.tuning["data"].isin(on_test)]
        return list(dict.fromkeys(tuned["method"]))

    def scores_by(self, select: Select | None, data: str) -> pd.DataFrame | None:
        """Return the scores of a data set by a reading: a row for each fold and seed, a column for each method.

        If the fits validate on the test set by the metric of the score, then a curve has the score after each round.

        Args:
            select: The reading; ``None`` for that of the table.
            data: Name of the data set.

        Returns:
            The scores, NaN without a run; ``None`` if the runs do not have them.
        """
        if select in (None, self.table["select"]):
            return self.scores_of(data)
        settings = self.table["data"][data]
        monitor = settings["monitor"]
        is_score = monitor.partition("_")[2] == settings["score"].partition("_")[2]
        if select == "best on validation" or not settings["validate_on_test"] or not is_score:
            return None
        curves = self.curves[self.curves["data"] == data].dropna(subset=[monitor])
        runs = curves.groupby(["fold", "seed", "method"])[monitor]
        if select == "last":
            found = runs.last()
        elif self.sign(data) > 0:
            found = runs.max()
        else:
            found = runs.min()
        scores: pd.DataFrame = found.unstack("method")
        return scores.reindex(columns=self.methods)


def rows_of(frame: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
    """Yield the name and the values of each row of a frame whose rows are data sets."""
    for name, row in frame.iterrows():
        yield str(name), row


def groups_of(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[list[str], pd.DataFrame]]:
    """Yield the rows that have the same strings in some columns, after these strings, in the order of the frame."""
    for names, group in frame.groupby(list(columns), sort=False):
        yield [str(name) for name in names], group


def _read_numbers(path: Path, columns: list[str]) -> np.ndarray:
    """Return columns of a CSV file, NaN where it has no value, shape (rows, columns).

    A table may have thousands of cells, and ``pandas.read_csv`` takes milliseconds for the smallest file.

    Raises:
        ValueError: If the file is empty, a row is not whole, or a value is no number.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.reader(file))
    if not lines:
        raise ValueError("it is empty")
    names = lines[0]
    rows = lines[1:]
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise ValueError(f"line {number} has {len(row)} values for {len(names)} columns")
    numbers = np.full((len(rows), len(columns)), np.nan)
    for place, column in enumerate(columns):
        if column in names:
            at = names.index(column)
            numbers[:, place] = [float(row[at] or "nan") for row in rows]
    return numbers


def read_results(folder: str | os.PathLike[str]) -> Results:
    """Return the results in a folder.

    Raises:
        FileNotFoundError: If the folder has no results.
        ValueError: If no run has a score, or a file cannot be read.
    """
    folder = Path(folder)
    results = folder / "results.csv"
    table = folder / "table.json"
    tuning = folder / "tuning.csv"
    if not results.is_file() or not table.is_file():
        raise FileNotFoundError(
            f"`results` must hold results.csv and table.json, and {folder} does not. Give the folder that "
            "`fl-lightning run` wrote, its `--output`."
        )
    try:
        runs = pd.DataFrame(read_csv(results)).reindex(columns=_RUNS, fill_value="")
        # The `score` of the table may be no test metric, so that a run is finished without a score.
        runs = runs[(runs["status"] != "finished") | (runs["score"] != "")]
        runs = runs.replace({"score": {"": "nan"}, "constant_score": {"": "nan"}})
        runs = runs.astype({"fold": int, "seed": int, "score": float, "constant_score": float})
        tried = pd.DataFrame(read_csv(tuning) if tuning.is_file() else [], columns=_TUNING)
        read = Results(folder, read_json(table), runs, tried)
    except (csv.Error, ValueError) as error:
        what = str(error).rstrip(".")
        raise ValueError(
            f"results.csv, table.json and tuning.csv in {folder} must be whole: {what}. Run the table again; it "
            "writes these files again."
        ) from error
    if not read.data:
        raise ValueError(
            f"No run in {folder} has a finite score. No run is finished (results.csv says why), or `score` of the "
            "table is no test metric, or the score of every finished run is NaN or infinite: lower the learning rates."
        )
    return read
