"""The figures of an experiment's report, with their captions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fl_lightning.experiment.statistics import most_representative_fold
from fl_lightning.experiment.store import partition_picture
from fl_lightning.pictures import ENDINGS, content_of
from fl_lightning.report.drawing import COLORS, DASHES, MARKS, add_legend, color, in_percent, label, shade, whole_rounds
from fl_lightning.report.names import is_share, metric_name
from fl_lightning.report.page import Picture
from fl_lightning.report.published import Pair, published_pairs
from fl_lightning.report.results import ALONE, DIAGNOSTICS, Results, groups_of

#: A column of 3.25 inches has 748 pixels.
_DPI = 230
#: Characters of the longest name of a file.
_LONGEST = 80
#: A curve of fewer points has marks.
_FEW_POINTS = 30
#: Characters of a line of a name in a legend or beside an axis, of the label of an axis, and of a title.
_NAME = 24
_LABEL = 28
_TITLE = 40
#: So many runs are drawn themselves, because a standard deviation of two numbers says little.
_FEW_RUNS = 2


def curves(results: Results) -> Iterator[Picture]:
    """Yield the validation curves of each data set, with a line for each method."""
    for data in results.data:
        settings = results.table["data"][data]
        interval = int(settings["smoothing"])
        how = ""
        if settings["validate_on_test"]:
            how += " on the test set"
        if interval > 1:
            how += f", means over {interval} validations"
        lines = _lines_of_methods(results, data)
        for column in results.curve_columns(data):
            figure, text = draw_curves(results, lines, column, data, interval=interval)
            if text:
                caption = f"{data}: {metric_name(column, stage=True)}{how}; {text}."
                yield _picture("curve", f"{data}-{column}", caption, figure)


def diagnostics(results: Results) -> Iterator[Picture]:
    """Yield the curves of diagnostics."""
    for data in results.data:
        lines = _lines_of_methods(results, data)
        for column, title in DIAGNOSTICS.items():
            short, _, _ = title.partition(":")
            figure, text = draw_curves(results, lines, column, data, y_label=short)
            if text:
                yield _picture(column.removeprefix("fed/"), data, f"{data}: {title}; {text}.", figure)


def comparisons(results: Results) -> Iterator[Picture]:
    """Yield the comparisons of data sets that the table asks for."""
    asked_for: dict[str, list[str]] = results.table["comparisons"]
    for title, wanted in asked_for.items():
        names = [name for name in wanted if name in results.data]
        if len(names) < 2:
            continue
        compared = [name for name in names if name in results.differences.index]
        if len(compared) > 1 and results.others:
            caption = f"{title}: mean score relative to {results.baseline}; dots: pairs of runs."
            yield _picture("comparison", title, caption, draw_comparison(results, title, compared))
        interval = int(results.table["data"][names[0]]["smoothing"])
        lines = {name: (name, results.baseline) for name in names}
        for column in results.curve_columns(names[0]):
            name = f"{title}: {results.baseline}"
            figure, text = draw_curves(results, lines, column, name, interval=interval, of_data=True)
            if text:
                caption = f"{title}: {metric_name(column, stage=True)} of {results.baseline}; {text}."
                yield _picture("across", f"{title}-{column}", caption, figure)


def _lines_of_methods(results: Results, data: str) -> dict[str, tuple[str, str]]:
    """Return the lines of a figure of one data set: the data set and the method of each, by its name."""
    return {method: (data, method) for method in results.methods}


def draw_curves(
    results: Results,
    lines: Mapping[str, tuple[str, str]],
    column: str,
    title: str,
    y_label: str = "",
    interval: int = 1,
    of_data: bool = False,
) -> tuple[Figure, str]:
    """Draw the mean over runs of a column of the curves, and the runs or one standard deviation around it.

    Args:
        results: The results.
        lines: The data set and the method of each line, by its name.
        column: The column.
        title: Title of the figure.
        y_label: Label of the y axis; the metric's name if empty.
        interval: Number of successive values in one point, a mean.
        of_data: Whether the lines are of one method on several data sets, so that they are grey. Otherwise each has the
            colour of its method.

    Returns:
        The figure, and what lines and bands are, for a caption: the empty string if no run has the column.
    """
    figure = Figure()
    axes = figure.subplots()
    counts = []
    is_cut = False
    no_curves = results.curves.head(0)
    by_method = dict(iter(results.curves.groupby(["data", "method"])))
    for number, (name, group) in enumerate(lines.items()):
        curves = by_method.get(group, no_curves)
        runs = curves.pivot(index="round", columns=["fold", "seed"], values=column).dropna(axis=1, how="all")
        # A mean over runs is of rounds in which all of them have a value.
        shared = runs.dropna()
        if shared.empty:
            continue
        counts.append(runs.shape[1])
        if (runs.count() > len(shared)).any():
            is_cut = True
        numbers_of_points = np.arange(len(shared)) // interval
        points = shared.reset_index().groupby(numbers_of_points).mean().set_index("round")
        place = number if of_data else results.place(group[1])
        hue = shade(number, len(lines)) if of_data else color(place)
        _draw_runs(axes, place, hue, label(name, _NAME), points)
    if not counts:
        return figure, ""
    if not y_label:
        y_label = metric_name(column, stage=True)
    axes.set(xlabel="round", ylabel=label(y_label, _LABEL), title=label(title, _TITLE))
    whole_rounds(axes)
    if is_share(column):
        in_percent(axes.yaxis)
    add_legend(figure, axes.get_legend_handles_labels()[0])
    return figure, _text_of_lines(counts, is_cut)


def _text_of_lines(counts: Sequence[int], is_cut: bool) -> str:
    """Return what the lines of a figure are, for its caption.

    Args:
        counts: Number of runs of each line.
        is_cut: Whether a line lacks rounds in which some of its runs have values.
    """
    least = min(counts)
    most = max(counts)
    if most == 1:
        text = "one run each"
    else:
        number = f"{most}" if least == most else f"{least} to {most}"
        around = "band: ± one sd" if most > _FEW_RUNS else "thin lines: the runs"
        text = f"line: mean over {number} runs, {around}"
    if is_cut:
        text += ", where all runs of a line have values"
    return text


def _draw_runs(axes: Axes, place: int, hue: str, name: str, runs: pd.DataFrame) -> None:
    """Draw the mean of the columns of ``runs``, and the columns or their standard deviation around it.

    Args:
        axes: The axes.
        place: The number of the line, for its dashes, its marks and its width.
        hue: Its colour.
        name: Its name.
        runs: A row for each round, a column for each run.
    """
    rounds = runs.index
    mean = runs.mean(axis=1)
    # There are ten colours: the lines of one of them have different dashes.
    dashes = DASHES[(place + place // len(COLORS)) % len(DASHES)]
    mark = ""
    if len(runs) < _FEW_POINTS:
        mark = MARKS[place % len(MARKS)]
    axes.plot(
        rounds,
        mean,
        color=hue,
        label=name,
        # The first lines are wider, so that a line on top of them hides none.
        linewidth=max(0.9, 1.7 - 0.25 * place),
        linestyle=dashes,
        marker=mark,
    )
    num_runs = runs.shape[1]
    if 1 < num_runs <= _FEW_RUNS:
        axes.plot(rounds, runs, color=hue, linewidth=0.4, alpha=0.55, zorder=1)
    elif num_runs > _FEW_RUNS:
        sd = runs.std(axis=1)
        axes.fill_between(rounds, mean - sd, mean + sd, color=hue, alpha=0.13, linewidth=0)


def spread(results: Results) -> Iterator[Picture]:
    """Yield the scores of single runs of each data set."""
    for data in results.data:
        if results.scores_of(data).count().max() < 2:
            continue
        fold = representative_fold(results, data)
        notes = []
        if len(results.table["folds"]) > 1:
            notes.append("the shape of a mark is its fold")
        if fold is not None:
            notes.append(f"in full colour fold {fold}, whose gap is nearest to the mean gap")
        note = f" ({'; '.join(notes)})" if notes else ""
        caption = f"{data}: test score of each run{note}; line: mean."
        yield _picture("spread", data, caption, draw_spread(results, data))


def draw_spread(results: Results, data: str) -> Figure:
    """Draw the test score of each run, with one row for each method; folds other than the representative are pale."""
    figure, axes = _rows(results.methods)
    fold = representative_fold(results, data)
    factor = results.scale(data).factor
    for place, method in enumerate(results.methods):
        scores = factor * results.scores_of(data)[method].dropna()
        # The marks of a row are spread over its height; a single one is in the middle.
        offsets = np.linspace(-0.22, 0.22, len(scores))
        if len(scores) == 1:
            offsets = np.zeros(1)
        heights = place + offsets
        folds = scores.index.get_level_values("fold").to_numpy()
        for run_fold in np.unique(folds):
            is_of_fold = folds == run_fold
            alpha = 1.0 if fold in (None, run_fold) else 0.35
            mark = MARKS[run_fold % len(MARKS)]
            hue = color(results.place(method))
            axes.plot(scores[is_of_fold], heights[is_of_fold], mark, color=hue, alpha=alpha, markersize=3.5)
        if len(scores) > 1:
            axes.plot([scores.mean()] * 2, [place - 0.3, place + 0.3], color="black", linewidth=1.0)
    axes.set(xlabel=label(f"test {results.metric(data)}", _LABEL), title=label(data, _LABEL))
    return figure


def gains(results: Results) -> Iterator[Picture]:
    """Yield the gain of each client over training alone, for each data set and method."""
    for (data,), clients in groups_of(results.clients.dropna(), "data"):
        figure = Figure()
        axes = figure.subplots()
        others = [name for name in results.methods if name != ALONE]
        factor = results.scale(data).factor
        for method in others:
            of_method = clients.loc[clients["method"] == method, "gain"]
            found = factor * np.sort(of_method)
            share = 100 * (np.arange(len(found)) + 0.5) / len(found)
            hue = color(results.place(method))
            axes.plot(share, found, color=hue, label=label(method, _NAME), marker=".", linewidth=0.8)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set(
            xlabel="clients, %", ylabel=label(f"gain in {results.metric(data)}", _LABEL), title=label(data, _TITLE)
        )
        add_legend(figure, axes.get_legend_handles_labels()[0])
        caption = f"{data}: gain of each client over training alone, sorted; below the line it is better off alone."
        yield _picture("gains", data, caption, figure)


def agreement(results: Results) -> Iterator[Picture]:
    """Yield the scores here over those that others have published, for each data set that has some."""
    for data in results.data:
        pairs = [pair for pair in published_pairs(results) if pair.data == data and pair.here is not None]
        if pairs:
            caption = f"{data}: scores here and published ones; bars: standard errors, where they are known."
            yield _picture("agreement", data, caption, draw_agreement(results, data, pairs))


def draw_agreement(results: Results, data: str, pairs: Sequence[Pair]) -> Figure:
    """Draw the scores here over published ones: a colour for each method, a mark for each source."""
    figure = Figure()
    axes = figure.subplots()
    factor = results.scale(data).factor
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    methods = list(dict.fromkeys(pair.method for pair in pairs))
    ends = []
    for pair in pairs:
        assert pair.here is not None
        x = factor * pair.there.mean
        y = factor * pair.here.mean
        ends += [x, y]
        if pair.here.runs > 1:
            ends += [y - factor * pair.here.error, y + factor * pair.here.error]
        axes.errorbar(
            x,
            y,
            xerr=_bar(factor * pair.there.error),
            yerr=_bar(factor * pair.here.error),
            color=color(results.place(pair.method)),
            marker=MARKS[sources.index(pair.source) % len(MARKS)],
            markersize=5,
            linestyle="",
            linewidth=1.0,
        )
    # On the line both are equal.
    axes.axline((min(ends), min(ends)), slope=1, color="0.6", linewidth=0.8, zorder=0)
    margin = 0.08 * (max(ends) - min(ends)) or 1.0
    both = (min(ends) - margin, max(ends) + margin)
    axes.set(xlim=both, ylim=both)
    axes.set(xlabel=label(f"published {results.metric(data)}", _LABEL), ylabel="here", title=label(data, _TITLE))
    handles = []
    for method in methods:
        handles.append(Line2D([], [], color=color(results.place(method)), linewidth=3, label=label(method, _NAME)))
    if len(sources) > 1:
        for place, source in enumerate(sources):
            mark = MARKS[place % len(MARKS)]
            handles.append(
                Line2D([], [], color="0.3", marker=mark, linestyle="", markersize=5, label=label(source, _LABEL))
            )
    add_legend(figure, handles)
    return figure


def _bar(error: float) -> float | None:
    """Return the length of an error bar; ``None`` if it is not known."""
    return None if np.isnan(error) else error


def representative_fold(results: Results, data: str) -> int | None:
    """Return the fold whose gap between a method and the baseline is nearest to the mean gap over folds.

    The method is RADFed, or the last one of a table without RADFed.

    Returns:
        The fold; ``None`` if fewer than three folds have both methods: of two folds none is nearer to their mean.
    """
    if not results.others:
        return None
    method = "RADFed" if "RADFed" in results.others else results.others[-1]
    scores = results.scores_of(data)[[method, results.baseline]]
    means = scores.groupby("fold").mean().dropna()
    if len(means) < 3:
        return None
    of_method = {fold: [means[method][fold]] for fold in means.index}
    of_baseline = {fold: [means[results.baseline][fold]] for fold in means.index}
    return most_representative_fold(of_method, of_baseline)


def draw_comparison(results: Results, title: str, names: Sequence[str]) -> Figure:
    """Draw the differences relative to the baseline on some data sets, with a group of bars for each method.

    A bar is the difference of the means, a dot that of one pair of runs.
    """
    figure, axes = _rows(results.others, bars=len(names))
    width = 0.8 / len(names)
    places = np.arange(len(results.others))
    bars = []
    for number, data in enumerate(names):
        # The bars of a group lie side by side, around its place.
        from_middle = number - (len(names) - 1) / 2
        at = places + from_middle * width
        lengths = results.differences.loc[data, results.others]
        hue = shade(number, len(names))
        bars.append(axes.barh(at, lengths, 0.92 * width, color=hue, alpha=0.55, label=label(data, _NAME)))
        scores = results.scores_of(data)
        base = scores[results.baseline]
        # Relative to a score of 0 there is no difference.
        sizes = base.where(base != 0).abs()
        differences = scores[results.others].sub(base, axis=0)
        relative = 100 * differences.div(sizes, axis=0)
        for place, method in zip(at, results.others, strict=True):
            dots = relative[method].dropna()
            if len(dots) > 1:
                axes.plot(dots, [place] * len(dots), "o", color="black", markersize=1.5, alpha=0.7)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set(xlabel=label(f"relative to {results.baseline}, %", _LABEL), title=label(title, _LABEL))
    add_legend(figure, bars)
    return figure


def _rows(names: Sequence[str], bars: int = 1) -> tuple[Figure, Axes]:
    """Return a figure with a row for each name, and for the bars in each row."""
    shown = [label(name, _NAME) for name in names]
    lines = 1 + max(name.count("\n") for name in shown)
    # Inches.
    row = max(0.18, 0.11 * bars, 0.12 * lines)
    width, _ = matplotlib.rcParams["figure.figsize"]
    figure = Figure(figsize=(width, 0.8 + max(1.0, len(shown) * row)))
    axes = figure.subplots()
    axes.set_yticks(range(len(shown)), shown)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    return figure, axes


def partitions(results: Results) -> Iterator[Picture]:
    """Yield the clients of each data set, in one of its partitions."""
    for data in results.data:
        runs = results.scored[results.scored["data"] == data]
        path = partition_picture(results.folder, fingerprint=runs["partition"].iloc[0])
        if path is not None:
            # The name of the file is such as abcdef0123456789-fold_0-seed_1.
            _, fold, seed = path.stem.replace("_", " ").split("-", 2)
            caption = f"{data}: samples of each client by class; {fold}, {seed}."
            files = {}
            for ending in ENDINGS:
                file = path.with_suffix(f".{ending}")
                if file.is_file():
                    files[ending] = file.read_bytes()
            yield Picture(_file_name("partition", data), caption, files)


def _picture(kind: str, name: str, caption: str, figure: Figure) -> Picture:
    files = {ending: content_of(figure, ending, dpi=_DPI) for ending in ENDINGS}
    return Picture(_file_name(kind, name), caption, files)


def _file_name(kind: str, name: str) -> str:
    """Return a name that every file system takes."""
    plain = re.sub(r"[^\w.-]", "_", name)
    return f"{kind}-{plain}"[:_LONGEST]
