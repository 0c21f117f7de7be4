"""The tables of an experiment's report; each is ``None`` if there is nothing to show.

A function here makes a dict of rows, each a dict of strings by column, and :func:`_frame` makes a frame of it. For the
scores these are such as ``{("digits", "accuracy, %"): {"FedAvg": "91.20 ± 0.31", "RADFed": "92.02 ± 0.28 †"}}``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.experiment.search import describe_point
from fl_lightning.experiment.statistics import (
    LEVEL,
    average_ranks,
    mean_relative_difference,
    relative_difference_of_means,
    signed_rank_test,
    smallest_p,
)
from fl_lightning.report.names import Scale, is_share, metric_name, p_text, signed
from fl_lightning.report.page import Table, bold
from fl_lightning.report.published import published_pairs
from fl_lightning.report.results import ALONE, BETTER, DIGITS, PRIVACY, RUN, Results, groups_of, rows_of
from fl_lightning.report.texts import table
from fl_lightning.words import duration

#: Of data sets with more clients, single clients are in files alone.
_MOST_CLIENTS = 100


def score_table(results: Results) -> Table:
    """Return the mean and the standard deviation of each method's test score on each data set."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    marks = results.tests["mark"]
    for data, gains in rows_of(results.gains):
        scale = results.scale(data)
        spreads = results.scores_of(data).std()
        # Where all methods are equal, none is the best.
        best = gains.max() if gains.nunique() > 1 else math.nan
        row: dict[str, str] = {}
        for method in results.methods:
            sd = spreads[method]
            score = _plus_minus(scale.text(results.mean(data, method), spread=sd), scale.text(sd, spread=sd))
            mark = marks.get((data, method), "")
            row[method] = _bold_if(gains[method] == best, f"{score} {mark}".strip())
        rows[data, results.metric(data)] = row
    of_clients = any("(clients)" in metric for _, metric in rows)
    return table("scores", _frame(rows, ["data", "metric"]), results, marks.any(), of_clients)


def relative_table(results: Results) -> Table | None:
    """Return the differences relative to the baseline, and averages over data sets of the same metric."""
    changes = results.differences
    base = results.baseline
    if changes.empty:
        return None
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for data, change in rows_of(changes):
        gains = results.sign(data) * change
        row = {base: results.scale(data).text(results.mean(data, base))}
        largest = gains.max()
        for method in results.others:
            is_largest = gains[method] > 0 and gains[method] == largest
            row[method] = _bold_if(is_largest, signed(change[method]))
        rows[data, results.metric(data)] = row

    # Averages take the data sets of one metric that all methods have finished.
    finished = results.means.loc[changes.index].dropna().index
    by_metric: dict[str, list[str]] = {}
    for data in finished:
        by_metric.setdefault(results.metric(data), []).append(data)
    averaged = {metric: names for metric, names in by_metric.items() if len(names) > 1}
    averages = {"ratio of means": relative_difference_of_means, "mean of ratios": mean_relative_difference}
    for metric, names in averaged.items():
        means = results.means.loc[names]
        total = results.scale(names[0]).text(means[base].mean())
        for title, average in averages.items():
            row = {base: total}
            for method in results.others:
                relative = average(means[method].to_numpy(), means[base].to_numpy())
                row[method] = signed(100 * relative)
            rows[f"{title}, {len(names)} sets", metric] = row
    made = table("relative", _frame(rows, ["data", "metric"]), results, averaged, len(by_metric))
    return made.turned_if_wide("method")


def finished_table(results: Results) -> Table | None:
    """Return the number of runs with a score by data set and method."""
    counts = pd.crosstab(results.scored["data"], results.scored["method"])
    counts = counts.reindex(index=list(results.table["data"]), columns=list(results.table["methods"]), fill_value=0)
    if (counts == results.num_expected).all(axis=None):
        return None
    return table("finished", counts.astype(str), results).turned_if_wide("method")


def significance_table(results: Results) -> Table | None:
    """Return the tests against the baseline."""
    rows = {}
    for test in results.tests.reset_index().to_dict("records"):
        data = test["data"]
        scale = results.scale(data)
        half = (test["high"] - test["low"]) / 2
        low = scale.text(test["low"], half, sign=True)
        high = scale.text(test["high"], half, sign=True)
        interval = f"[{low}, {high}]"
        if low == high:
            interval = low
        corrected = f"{p_text(test['holm'])} {test['mark']}".strip()
        rows[data, test["method"], results.metric(data)] = {
            "difference": scale.text(test["difference"], half, sign=True),
            "95 % interval": interval,
            "pairs": str(test["pairs"]),
            "zeros": str(test["zeros"]),
            "p": p_text(test["p"]),
            "p, Holm": _bold_if(test["mark"] == BETTER, corrected),
        }
    if not rows:
        return None
    return table("significance", _frame(rows, ["data", "method", "metric"]), results)


def rank_table(results: Results) -> Table | None:
    """Return the average ranks over the data sets that all methods have finished."""
    gains = results.gains.dropna()
    base = results.baseline
    if len(gains) < 2 or len(results.methods) < 2:
        return None
    ranks = average_ranks({method: gains[method].to_numpy() for method in results.methods})
    # Differences of different metrics have no common scale. Ranks have.
    is_one_metric = len({results.metric(data) for data in gains.index}) == 1
    is_tested = is_one_metric and base in gains
    rows = {}
    for method, rank in sorted(ranks.average.items(), key=lambda item: item[1]):
        row = {"average rank": f"{rank:.2f}"}
        if is_tested:
            row["p"] = ""
            if method != base:
                test = signed_rank_test(gains[method].to_numpy(), gains[base].to_numpy())
                row["p"] = p_text(test.p_value)
        rows[method] = row
    smallest = ""
    if is_tested:
        smallest = p_text(smallest_p(len(gains)))
    return table("ranks", _frame(rows, ["method"]), results, len(gains), p_text(ranks.p_value), smallest)


def client_table(results: Results) -> Table | None:
    """Return what each method gives to single clients, and how many of them are better off alone."""
    if ALONE not in results.methods or results.clients.empty:
        return None
    rows = {}
    for (data, method), clients in groups_of(results.clients, "data", "method"):
        scale = results.scale(data)
        means = []
        weighted = []
        worst = []
        for _, run in clients.groupby(["fold", "seed"]):
            scores = run["score"].to_numpy()
            means.append(scores.mean())
            weighted.append(np.average(scores, weights=run["samples"].to_numpy()))
            worst_first = np.sort(scores)[:: results.sign(data)]
            a_tenth = max(1, len(run) // 10)
            worst.append(worst_first[:a_tenth].mean())
        row = {
            "mean": scale.text(float(np.mean(means))),
            "weighted by samples": scale.text(float(np.mean(weighted))),
            "worst tenth": scale.text(float(np.mean(worst))),
            "gain over alone": "",
            "worse off than alone": "",
        }
        gains = clients["gain"].dropna()
        if method != ALONE and len(gains):
            row["gain over alone"] = scale.text(gains.mean(), sign=True)
            row["worse off than alone"] = f"{100 * (gains < 0).mean():.0f} %"
        rows[data, method, results.metric(data)] = row
    return table("clients", _frame(rows, ["data", "method", "metric"]), results)


def client_score_table(results: Results) -> Table | None:
    """Return the mean and the standard deviation of each method's test score of each client.

    A client must be the same one in all runs of a data set: by its name, or since the runs have one partition.
    """
    rows: dict[tuple[str, str], dict[str, str]] = {}
    left_out: dict[str, str] = {}
    for (data,), of_data in groups_of(results.clients, "data"):
        partitions = results.scored.loc[results.scored["data"] == data, "partition"]
        has_names = bool((of_data["name"] != of_data["client"].astype(str)).any())
        if partitions.nunique() > 1 and not has_names:
            left_out[data] = "its clients differ from run to run"
            continue
        if of_data["client"].nunique() > _MOST_CLIENTS:
            left_out[data] = f"it has over {_MOST_CLIENTS} clients"
            continue
        scale = results.scale(data)
        for (_, name), of_client in of_data.groupby(["client", "name"]):
            row = {"test samples": f"{of_client['samples'].mean():.0f}", **dict.fromkeys(results.methods, "")}
            scores = of_client.groupby("method")["score"]
            means = scores.mean().round(DIGITS)
            spreads = scores.std()
            gains = results.sign(data) * means
            best = gains.max() if gains.nunique() > 1 else math.nan
            for method in means.index:
                sd = spreads[method]
                score = _plus_minus(scale.text(means[method], spread=sd), scale.text(sd, spread=sd))
                row[method] = _bold_if(gains[method] == best, score)
            rows[data, str(name)] = row
    if not rows:
        return None
    return table("client_scores", _frame(rows, ["data", "client"]), results, left_out)


def paper_table(results: Results) -> Table | None:
    """Return the relative differences beside those of the paper."""
    rows = {}
    for data, changes in rows_of(results.differences):
        paper = results.table["data"][data]["paper"]
        for method in results.methods:
            if method not in paper:
                continue
            place = data, results.metric(data), method
            if method == results.baseline:
                here = results.scale(data).text(results.mean(data, method))
                rows[place] = [here, f"{paper[method]:.2f}", "", ""]
            elif math.isfinite(changes[method]):
                p = results.tests["holm"].get((data, method), math.nan)
                agrees = _agreement(changes[method], paper[method], p)
                rows[place] = [signed(changes[method]), signed(paper[method]), agrees, p_text(p)]
    if not rows:
        return None
    frame = _frame(rows, ["data", "metric", "method"], ["here", "paper", "same sign", "p, Holm"])
    return table("paper", frame, results, texts=["same sign"])


def _agreement(here: float, paper: float, p: float) -> str:
    """Return whether a difference, with its corrected p-value, has the sign of the paper's."""
    if math.isnan(p):
        return "not tested"
    if p >= LEVEL:
        return "not significant"
    # The difference is compared as it is printed.
    return "yes" if np.sign(round(here, 2)) == np.sign(paper) else "no"


def published_table(results: Results) -> Table | None:
    """Return the scores beside those that others have published, and whether these are met."""
    rows = {}
    for pair in published_pairs(results):
        scale = results.scale(pair.data)
        here = ""
        runs = ""
        if pair.here is not None:
            here = _plus_minus(scale.text(pair.here.mean), scale.text(pair.here.sd))
            runs = str(pair.here.runs)
        rows[pair.data, pair.method, pair.source] = {
            "model": pair.select or "not said",
            "published": _plus_minus(scale.text(pair.there.mean), scale.text(pair.there.sd)),
            "here": here,
            "runs": runs,
            "difference": scale.text(pair.difference, sign=True),
            "error": scale.text(pair.error),
            "met": {True: "yes", False: "no", None: ""}[pair.is_met],
        }
    if not rows:
        return None
    frame = _frame(rows, ["data", "method", "source"])
    return table("published", frame, results, texts=["model", "met"])


def _plus_minus(mean: str, sd: str) -> str:
    """Return a mean and its standard deviation; one run has none."""
    return f"{mean} ± {sd}" if sd else mean


def communication_table(results: Results) -> Table | None:
    """Return each method's cost to reach each target: the number of models sent."""
    rows = {}
    for data in results.data:
        for target in results.table["data"][data]["targets"]:
            costs = costs_to_target(results, data, target)
            if len(costs):
                rows[data, _target(results, data, target)] = _costs_of_methods(results, costs)
    if not rows:
        return None
    return table("communication", _frame(rows, ["data", "target"]), results).turned_if_wide("method")


def _costs_of_methods(results: Results, costs: pd.DataFrame) -> dict[str, str]:
    """Return the cost of each method to reach a target, of which the least is in bold unless all are equal."""
    runs = {str(method): own for method, own in costs.groupby("method")}
    # Methods of which each run has reached the target.
    means = {}
    for method, own in runs.items():
        if own["cost"].notna().all():
            means[method] = own["cost"].mean()
    differ = len(set(means.values())) > 1 or len(means) < len(runs)
    least = min(means.values(), default=math.nan)
    row = dict.fromkeys(results.methods, "")
    for method, own in runs.items():
        # The baseline is not compared with itself.
        base = None
        if method != results.baseline:
            base = means.get(results.baseline)
        is_least = differ and method in means and means[method] == least
        row[method] = _bold_if(is_least, _cost(own, base))
    return row


def costs_to_target(results: Results, data: str, target: float) -> pd.DataFrame:
    """Return the ``cost`` of each run until it reaches a target, NaN if it does not, and ``sent`` of all rounds."""
    settings = results.table["data"][data]
    curves = results.curves[results.curves["data"] == data]
    values = curves[settings["monitor"]]
    is_reached = values >= target if settings["mode"] == "max" else values <= target
    first = curves[is_reached].groupby(RUN)["cost"].first()
    last = curves.dropna(subset=["cost"]).groupby(RUN)["cost"].last()
    return pd.DataFrame({"cost": first.reindex(last.index), "sent": last})


def _cost(runs: pd.DataFrame, base: float | None) -> str:
    """Return the mean cost and its ratio to the baseline's; if a run has not reached the target, what it has sent."""
    unreached = runs[runs["cost"].isna()]
    if len(unreached):
        text = f"{_short(unreached['sent'].max())}+"
        if len(runs) > 1:
            text += f" ({len(runs) - len(unreached)} of {len(runs)} runs)"
        return text
    mean = runs["cost"].mean()
    text = _short(mean)
    if base is not None:
        text += f" ({mean / base:.2f}x)"
    return text


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _target(results: Results, data: str, target: float) -> str:
    """Return a target as ``accuracy ≥ 90 %``."""
    settings = results.table["data"][data]
    monitor = settings["monitor"]
    relation = "≥" if settings["mode"] == "max" else "≤"
    value = f"{target:g}"
    if is_share(monitor):
        value = f"{100 * target:g} %"
    return f"{metric_name(monitor)} {relation} {value}"


def privacy_table(results: Results) -> Table | None:
    """Return epsilon at the end of the runs of each method, for each kind of guarantee that some method gives."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for protected, (epsilon, delta) in PRIVACY.items():
        of_runs = results.curves.groupby(RUN)[[epsilon, delta]].last()
        spent = of_runs.groupby(["data", "method"]).max().dropna()
        for values in spent.reset_index().to_dict("records"):
            row = rows.setdefault((values["data"], protected), dict.fromkeys(results.methods, ""))
            row[values["method"]] = f"{values[epsilon]:.3g} at {values[delta]:.3g}"
    if not rows:
        return None
    ordered = {key: rows[key] for key in sorted(rows, key=lambda key: results.data.index(key[0]))}
    return table("privacy", _frame(ordered, ["data", "protected"]), results).turned_if_wide("method")


def tuning_table(results: Results) -> Table | None:
    """Return the values that the searches have chosen."""
    rows = {}
    for (data, method), tried in results.tuning.groupby(["data", "method"], sort=False):
        # Results may have a data set that the table has no more.
        monitor = str(results.table["data"].get(data, {}).get("monitor", ""))
        failed = (tried["val"] == "").sum()
        chosen = tried[tried["chosen"] != ""]
        for values, val in zip(chosen["values"], chosen["val"], strict=True):
            rows[data, method] = {
                "chosen": describe_point(json.loads(values)),
                "validation metric": metric_name(monitor),
                "its value": _validation_score(monitor, val),
                "points": str(len(tried)),
                "failed": str(failed) if failed else "",
            }
    if not rows:
        return None
    return table("tuning", _frame(rows, ["data", "method"]), results, texts=["chosen", "validation metric"])


def _validation_score(monitor: str, val: str) -> str:
    """Return the score of a point with its unit, as ``tuning.csv`` has it: empty if there is none."""
    if not val:
        return "none"
    number = float(val)
    if is_share(monitor):
        return f"{Scale(percent=True, largest=1.0).text(number)} %"
    return Scale(percent=False, largest=abs(number)).text(number)


def failed_table(results: Results) -> Table | None:
    """Return the runs that failed, and those whose score is not finite."""
    diverged = results.diverged
    errors = []
    for data, score in zip(diverged["data"], diverged["score"], strict=True):
        name = results.table["data"][data]["score"]
        errors.append(f"`{name}` is {score}: the model may have diverged.")
    runs = pd.concat([results.failed, diverged.assign(error=errors)])
    if runs.empty:
        return None
    frame = runs[[*RUN, "error"]].astype(str).set_index(["data", "method"])
    return table("failed", frame, results, texts=["error"])


def run_table(results: Results) -> Table:
    """Return the runs of each data set."""
    rows = {}
    for data in results.data:
        settings = results.table["data"][data]
        runs = results.scored[results.scored["data"] == data]
        rounds = sorted(set(runs["rounds"].astype(int)))
        time = ""
        if runs["seconds"].notna().any():
            time = duration(runs["seconds"].mean())
        rows[data] = {
            "data module": _class_name(settings["datamodule"]),
            "model": _class_name(settings["model"]),
            "runs": str(len(runs)),
            "rounds": ", ".join(f"{number:,}" for number in rounds),
            "score": f"{settings['score']}, best by {settings['monitor']}",
            "time of a fit": time,
            "partitions": ", ".join(sorted(set(runs["partition"].str[:8]))),
        }
    texts = ["data module", "model", "score", "partitions"]
    return table("runs", _frame(rows, ["data"]), results, texts=texts)


def version_table(results: Results) -> Table:
    """Return versions, dates and times as facts."""
    columns = {
        "code": "code",
        "Python": "python",
        "PyTorch": "torch",
        "Lightning": "lightning",
        "NumPy": "numpy",
        "device": "device",
    }
    facts = {title: _several(results.scored[column]) for title, column in columns.items()}
    facts["dates of the runs"] = dates_of(results)
    facts["time of all fits"] = time_of(results)
    known = {title: text for title, text in facts.items() if text}
    frame = pd.DataFrame({"value": known}).rename_axis("fact")
    return Table("versions", "", frame, texts=["value"], header=False)


def dates_of(results: Results) -> str:
    """Return when the runs were made; empty if that is not known."""
    first = results.scored["begun"].dropna().min()
    last = results.scored["ended"].dropna().max()
    # Without any date the minimum is NaN.
    if not (isinstance(first, str) and isinstance(last, str)):
        return ""
    first_day, first_minute = _day_and_minute(first)
    last_day, last_minute = _day_and_minute(last)
    if first_day == last_day:
        return f"{first_day} {first_minute} to {last_minute} UTC"
    return f"{first_day} {first_minute} to {last_day} {last_minute} UTC"


def _day_and_minute(moment: str) -> tuple[str, str]:
    """Return ``"2026-11-29"`` and ``"08:15"`` of ``2026-11-29T08:15:30+00:00``."""
    day, _, time = moment.partition("T")
    return day, time[:5]


def time_of(results: Results) -> str:
    """Return the time of all fits together; empty if that is not known."""
    seconds = results.scored["seconds"].dropna()
    if seconds.empty:
        return ""
    return duration(seconds.sum())


def _several(values: pd.Series) -> str:
    """Return the different values, sorted; those that are not known are left out."""
    known = {str(value) for value in values.dropna()}
    return ", ".join(sorted(known))


def _class_name(spec: Any) -> str:
    """Return the class of a spec without its package: ``"CovertypeDataModule.named"``."""
    if isinstance(spec, dict):
        spec = spec["class_path"]
    parts = str(spec).split(".")
    for place, part in enumerate(parts):
        if part[:1].isupper():
            return ".".join(parts[place:])
    return parts[-1]


def _bold_if(condition: bool, text: str) -> str:
    return bold(text) if condition else text


def _frame(rows: Mapping[Any, Any], names: list[str], columns: list[str] | None = None) -> pd.DataFrame:
    """Return a frame of rows by their names, of which there are several if the index has several levels."""
    if len(names) > 1:
        index: pd.Index = pd.MultiIndex.from_tuples(rows, names=names)
    else:
        index = pd.Index(rows, name=names[0])
    return pd.DataFrame(list(rows.values()), index=index, columns=columns)
