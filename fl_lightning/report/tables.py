"""The tables of an experiment's report; each is ``None`` if there is nothing to show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from fl_lightning.experiment.search import describe_point
from fl_lightning.experiment.statistics import (
    average_ranks,
    mean_relative_difference,
    relative_difference_of_means,
    signed_rank_test,
)
from fl_lightning.report.names import Scale, is_share, metric_name, p_text, signed
from fl_lightning.report.page import Table, bold
from fl_lightning.report.results import ALONE, BETTER, LEVEL, RUN, Results
from fl_lightning.report.texts import table
from fl_lightning.words import duration


def score_table(results: Results) -> Table:
    """Return the mean and the standard deviation of each method's test score on each data set."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for data, gains in results.gains.iterrows():
        scale, row = results.scale(data), rows.setdefault((data, results.metric(data)), {})
        best = gains.max() if gains.nunique() > 1 else math.nan
        for method, sd in results.scores.loc[data].std().items():
            numbers = [scale.text(number, spread=sd) for number in (results.means.loc[data, method], sd)]
            mark = results.tests["mark"].get((data, method), "")
            text = f"{' ± '.join(filter(None, numbers))} {mark}".strip()
            row[method] = bold(text) if gains[method] == best else text
    of_clients = any("(clients)" in metric for _, metric in rows)
    return table("scores", _frame(rows, ["data", "metric"]), results, results.tests["mark"].any(), of_clients)


def relative_table(results: Results) -> Table | None:
    """Return the differences relative to the baseline, and averages over data sets of the same metric."""
    changes, base = results.differences, results.baseline
    if changes.empty:
        return None
    metrics = pd.Series({data: results.metric(data) for data in changes.index})
    rows = {}
    for data, change in changes.iterrows():
        gains, texts = results.sign(data) * change, change.map(signed)
        texts = texts.mask((gains > 0) & (gains == gains.max()), texts.map(bold))
        rows[data, metrics[data]] = {base: results.scale(data).text(results.means.loc[data, base]), **texts}
    whole = metrics[results.means.loc[changes.index].notna().all(axis=1)]
    averaged = [(metric, names.index) for metric, names in whole.groupby(whole, sort=False) if len(names) > 1]
    for metric, names in averaged:
        means = results.means.loc[names]
        total = results.scale(names[0]).text(means[base].mean())
        for title, average in (
            ("ratio of means", relative_difference_of_means),
            ("mean of ratios", mean_relative_difference),
        ):
            averages = {
                name: signed(100 * average(means[name].to_numpy(), means[base].to_numpy())) for name in results.others
            }
            rows[f"{title}, {len(names)} sets", metric] = {base: total, **averages}
    made = table("relative", _frame(rows, ["data", "metric"]), results, averaged, whole.nunique())
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
    for (data, method), test in results.tests.iterrows():
        scale, half = results.scale(data), (test["high"] - test["low"]) / 2
        ends = [scale.text(test[end], half, sign=True) for end in ("low", "high")]
        corrected = f"{p_text(test['holm'])} {test['mark']}".strip()
        rows[data, method, results.metric(data)] = {
            "difference": scale.text(test["difference"], half, sign=True),
            "95 % interval": ends[0] if ends[0] == ends[1] else f"[{', '.join(ends)}]",
            "pairs": str(test["pairs"]),
            "zeros": str(test["zeros"]),
            "p": p_text(test["p"]),
            "p, Holm": bold(corrected) if test["mark"] == BETTER else corrected,
        }
    if not rows:
        return None
    return table("significance", _frame(rows, ["data", "method", "metric"]), results)


def rank_table(results: Results) -> Table | None:
    """Return the average ranks over the data sets that all methods have finished."""
    gains, base = results.gains.dropna(), results.baseline
    if len(gains) < 2 or len(results.methods) < 2:
        return None
    ranks = average_ranks({method: gains[method].to_numpy() for method in results.methods})
    rows = {
        method: {"average rank": f"{rank:.2f}"}
        for method, rank in sorted(ranks.average.items(), key=lambda item: item[1])
    }
    smallest = ""
    # differences of different metrics have no common scale; ranks have
    if len({results.metric(data) for data in gains.index}) == 1 and base in gains:
        for method, row in rows.items():
            test = signed_rank_test(gains[method].to_numpy(), gains[base].to_numpy())
            row["p"] = "" if method == base else p_text(test.p_value)
        smallest = p_text(2.0 ** (1 - len(gains)))
    return table("ranks", _frame(rows, ["method"]), results, len(gains), p_text(ranks.p_value), smallest)


def client_table(results: Results) -> Table | None:
    """Return what each method gives to single clients, and how many of them are better off alone."""
    if ALONE not in results.methods or results.clients.empty:
        return None
    rows = {}
    for (data, method), clients in results.clients.groupby(["data", "method"], sort=False):
        scale, runs = results.scale(data), [run for _, run in clients.groupby(["fold", "seed"])]
        worst = [run["score"].sort_values(ascending=results.sign(data) > 0)[: max(1, len(run) // 10)] for run in runs]
        means = {
            "mean": [run["score"].mean() for run in runs],
            "weighted by samples": [np.average(run["score"], weights=run["samples"]) for run in runs],
            "worst tenth": [scores.mean() for scores in worst],
        }
        gains = clients["gain"].dropna() if method != ALONE else pd.Series(dtype=float)
        rows[data, method, results.metric(data)] = {
            **{name: scale.text(float(np.mean(values))) for name, values in means.items()},
            "gain over alone": scale.text(gains.mean(), sign=True),
            "worse off than alone": f"{100 * (gains < 0).mean():.0f} %" if len(gains) else "",
        }
    return table("clients", _frame(rows, ["data", "method", "metric"]), results)


def paper_table(results: Results) -> Table | None:
    """Return the relative differences beside those of the paper."""
    rows = {}
    for data, changes in results.differences.iterrows():
        paper = results.table["data"][data].get("paper") or {}
        for method in results.methods:
            if method == results.baseline and method in paper:
                here, there = results.scale(data).text(results.means.loc[data, method]), f"{paper[method]:.2f}"
                rows[data, results.metric(data), method] = [here, there, "", ""]
            elif method in paper and math.isfinite(changes[method]):
                p = results.tests["holm"].get((data, method), math.nan)
                same = "yes" if np.sign(round(changes[method], 2)) == np.sign(paper[method]) else "no"
                agrees = "not tested" if math.isnan(p) else same if p < LEVEL else "not significant"
                here, there = signed(changes[method]), signed(paper[method])
                rows[data, results.metric(data), method] = [here, there, agrees, p_text(p)]
    if not rows:
        return None
    frame = _frame(rows, ["data", "metric", "method"], ["here", "paper", "same sign", "p, Holm"])
    return table("paper", frame, results, texts=["same sign"])


def published_table(results: Results) -> Table | None:
    """Return the scores beside those that others have published, and whether these are met."""
    rows = {}
    for data in results.data:
        scale, spreads = results.scale(data), results.scores.loc[data].std()
        for source, numbers in (results.table["data"][data].get("published") or {}).items():
            for method in results.means.loc[data].dropna().index.intersection(list(numbers), sort=False):
                number = numbers[method] if isinstance(numbers[method], Mapping) else {"score": numbers[method]}
                here = results.means.loc[data, method], spreads[method]
                there = number["score"] / scale.factor, number.get("sd", math.nan) / scale.factor
                difference, allowed = here[0] - there[0], 2 * math.hypot(*np.nan_to_num([here[1], there[1]]))
                rows[data, method, source] = [
                    *(" ± ".join(filter(None, map(scale.text, score))) for score in (here, there)),
                    scale.text(difference, sign=True),
                    scale.text(allowed or math.nan),
                    "" if not allowed else "yes" if abs(difference) <= allowed else "no",
                ]
    if not rows:
        return None
    frame = _frame(rows, ["data", "method", "source"], ["here", "published", "difference", "allowed", "met"])
    return table("published", frame, results, texts=["met"])


def communication_table(results: Results) -> Table | None:
    """Return each method's cost to reach each target: the number of models sent."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    base = results.baseline
    for data in results.data:
        for target in results.table["data"][data].get("targets") or ():
            runs = dict(iter(costs_to_target(results, data, target).groupby("method")))
            means = {method: run["cost"].mean() for method, run in runs.items() if run["cost"].notna().all()}
            if not runs:
                continue
            differ = len(set(means.values())) > 1 or len(means) < len(runs)
            least = min(means.values(), default=None) if differ else None
            row = rows.setdefault((data, _target(results, data, target)), dict.fromkeys(results.methods, ""))
            for method, own in runs.items():
                text = _cost(own, means.get(base) if method != base else None)
                row[method] = bold(text) if method in means and means[method] == least else text
    if not rows:
        return None
    return table("communication", _frame(rows, ["data", "target"]), results).turned_if_wide("method")


def costs_to_target(results: Results, data: str, target: float) -> pd.DataFrame:
    """Return the ``cost`` of each run until it reaches a target, NaN if it does not, and ``sent`` of all rounds."""
    curves, settings = results.curves[results.curves["data"] == data], results.table["data"][data]
    values = curves[settings["monitor"]]
    reached = curves[values >= target if settings["mode"] == "max" else values <= target]
    first, last = reached.groupby(RUN)["cost"].first(), curves.dropna(subset=["cost"]).groupby(RUN)["cost"].last()
    return pd.DataFrame({"cost": first.reindex(last.index), "sent": last})


def _cost(runs: pd.DataFrame, base: float | None) -> str:
    """Return the mean cost and its ratio to the baseline's; if a run has not reached the target, what it has sent."""
    unreached = runs[runs["cost"].isna()]
    if len(unreached):
        reached = f" ({len(runs) - len(unreached)} of {len(runs)} runs)" if len(runs) > 1 else ""
        return f"{_short(unreached['sent'].max())}+{reached}"
    mean = runs["cost"].mean()
    return _short(mean) + ("" if base is None else f" ({mean / base:.2f}x)")


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def _target(results: Results, data: str, target: float) -> str:
    settings = results.table["data"][data]
    relation = "≥" if settings["mode"] == "max" else "≤"
    value = f"{100 * target:g} %" if is_share(settings["monitor"]) else f"{target:g}"
    return f"{metric_name(settings['monitor'])} {relation} {value}"


def privacy_table(results: Results) -> Table | None:
    """Return epsilon at the end of the runs of each method: the differential privacy that it spent."""
    runs = results.curves.groupby(RUN)[["fed/epsilon", "fed/delta"]].last()
    spent = runs.groupby(["data", "method"]).max().dropna()
    if spent.empty:
        return None
    cells = spent["fed/epsilon"].map("{:.3g}".format) + " at " + spent["fed/delta"].map("{:.3g}".format)
    frame = cells.unstack().reindex(index=results.data, columns=results.methods).fillna("")
    return table("privacy", frame, results).turned_if_wide("method")


def tuning_table(results: Results) -> Table | None:
    """Return the values that the searches have chosen."""
    rows = {}
    for (data, method), tried in results.tuning.groupby(["data", "method"], sort=False):
        monitor = str(results.table["data"].get(data, {}).get("monitor", ""))
        for values, val in tried.loc[tried["chosen"] != "", ["values", "val"]].itertuples(index=False):
            scale = Scale(percent=True, largest=1.0) if is_share(monitor) else Scale(False, abs(float(val or 0)))
            rows[data, method] = {
                "chosen": describe_point(json.loads(values)),
                "validation metric": metric_name(monitor),
                "its value": f"{scale.text(float(val))}{' %' if scale.percent else ''}" if val else "none",
                "points": str(len(tried)),
                "failed": str((tried["val"] == "").sum() or ""),
            }
    if not rows:
        return None
    return table("tuning", _frame(rows, ["data", "method"]), results, texts=["chosen", "validation metric"])


def failed_table(results: Results) -> Table | None:
    """Return the runs that failed, and those whose score is not finite."""
    diverged = results.diverged
    errors = [
        f"`{results.table['data'][data]['score']}` is {score}: the model may have diverged."
        for data, score in zip(diverged["data"], diverged["score"], strict=True)
    ]
    runs = pd.concat([results.failed, diverged.assign(error=errors)])
    if runs.empty:
        return None
    frame = runs[[*RUN, "error"]].astype(str).set_index(["data", "method"])
    return table("failed", frame, results, texts=["error"])


def run_table(results: Results) -> Table:
    """Return the runs of each data set."""
    rows = {}
    for data in results.data:
        runs, settings = results.scored[results.scored["data"] == data], results.table["data"][data]
        rows[data] = {
            "data module": _class_name(settings["datamodule"]),
            "model": _class_name(settings["model"]),
            "runs": str(len(runs)),
            "rounds": ", ".join(f"{number:,}" for number in sorted(set(runs["rounds"].astype(int)))),
            "score": f"{settings['score']}, best by {settings['monitor']}",
            "time of a fit": duration(runs["seconds"].mean()) if runs["seconds"].notna().any() else "",
            "partitions": ", ".join(sorted(set(runs["partition"].str[:8]))),
        }
    texts = ["data module", "model", "score", "partitions"]
    return table("runs", _frame(rows, ["data"]), results, texts=texts)


def version_table(results: Results) -> Table:
    """Return versions, dates and times as facts."""
    names = {"code": "code", "python": "Python", "torch": "PyTorch", "lightning": "Lightning", "numpy": "NumPy"}
    facts = {title: _several(results.scored[name]) for name, title in (names | {"device": "device"}).items()}
    facts |= {"dates of the runs": dates_of(results), "time of all fits": time_of(results)}
    frame = pd.DataFrame({"value": {name: text for name, text in facts.items() if text}}).rename_axis("fact")
    return Table("versions", "", frame, texts=["value"], header=False)


def dates_of(results: Results) -> str:
    """Return when the runs were made; empty if that is not known."""
    first, last = results.scored["begun"].dropna().min(), results.scored["ended"].dropna().max()
    if not (isinstance(first, str) and isinstance(last, str)):
        return ""
    first, last = (moment[:16].replace("T", " ") for moment in (first, last))
    return f"{first} to {last if last[:10] != first[:10] else last[11:]} UTC"


def time_of(results: Results) -> str:
    """Return the time of all fits together; empty if that is not known."""
    seconds = results.scored["seconds"].dropna()
    return duration(seconds.sum()) if len(seconds) else ""


def _several(values: pd.Series) -> str:
    return ", ".join(sorted({str(value) for value in values.dropna() if value}))


def _class_name(spec: Any) -> str:
    """Return the class of a spec without its package: ``"CovertypeDataModule.named"``."""
    parts = str(spec["class_path"] if isinstance(spec, dict) else spec).split(".")
    classes = [place for place, part in enumerate(parts) if part[:1].isupper()]
    return ".".join(parts[classes[0] if classes else -1 :])


def _frame(rows: Mapping[Any, Any], names: Sequence[str], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a frame of rows by their names, of which there are several if the index has several levels."""
    index = pd.MultiIndex.from_tuples(rows, names=names) if len(names) > 1 else pd.Index(rows, name=names[0])
    return pd.DataFrame(list(rows.values()), index=index, columns=columns)
