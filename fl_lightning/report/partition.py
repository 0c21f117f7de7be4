"""Makes the report of a partition, writes it and logs it."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fl_lightning.data import ClientDatasetsModule, FederatedDataModule
from fl_lightning.files import write_new
from fl_lightning.notebook import in_frame
from fl_lightning.partitioners import (
    PartitionStatistics,
    SampleFeatures,
    c_score,
    label_counts,
    plot_label_distributions,
)
from fl_lightning.pictures import content_of
from fl_lightning.report.drawing import in_percent, style
from fl_lightning.report.page import Picture, Section, Table, page
from fl_lightning.settings import Count, PathLike, check
from fl_lightning.words import quantity

_MEANINGS = (
    "C-score: mean over clients of the summed absolute differences between the class shares of the client and those of "
    "all samples; 0 if all clients have the same mix. Feature skew: the same for the values of a categorical feature. "
    "Joint entropy: the entropy of client and class. Standard deviation: of the population."
)


@dataclass(frozen=True)
class PartitionSummary:
    """The facts of a data module's partition.

    Equations are numbered as in ``docs/references.md``.

    Attributes:
        data: Class name of the data module.
        partitioner: The partitioner with its arguments.
        split: The split with its arguments; "as given" if the user has made the sets.
        sets: Clients and samples of the training, validation and test set, and the samples that are in none, if any.
        statistics: Sizes, C-score and entropy over all clients.
        feature_skew: The C-score of each categorical feature: eq. (52) with the values of the feature as classes.
        fingerprint: SHA-256 of the partition; equal partitions have the same one.
    """

    data: str
    partitioner: str
    split: str
    sets: dict[str, str]
    statistics: PartitionStatistics
    feature_skew: dict[str, float]
    fingerprint: str

    def rows(self) -> dict[str, str]:
        """Return the table: the texts by their names."""
        rows = {
            "data": self.data,
            "partitioner": self.partitioner,
            "split": self.split,
            **self.sets,
            **self.statistics.rows("samples of all clients"),
        }
        rows |= {f"feature skew, {name}": f"{value:.3f}" for name, value in self.feature_skew.items()}
        return rows | {"fingerprint": self.fingerprint[:16]}

    def numbers(self) -> dict[str, int | float]:
        """Return the numbers by their names, for a logger."""
        return self.statistics.as_dict() | {f"feature_skew/{name}": value for name, value in self.feature_skew.items()}

    def __str__(self) -> str:
        rows = self.rows()
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())


@dataclass(frozen=True, eq=False, repr=False)
class PartitionReport:
    """The table and the figure of a partition; ``print(report)`` shows the table, a notebook the page.

    Attributes:
        summary: The facts and numbers.
        figure: The matplotlib figure; pyplot does not know it, so that nobody has to close it.
        png: The figure, as the content of a PNG file.
        html: The page, as the content of an HTML file.
    """

    summary: PartitionSummary
    figure: Figure
    png: bytes
    html: str

    def __repr__(self) -> str:
        return str(self.summary)

    def _repr_html_(self) -> str:
        return in_frame(self.html)

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, Path]:
        """Write ``partition.png`` and ``partition.html`` into a folder and return their paths.

        The folder is made if there is none. A file appears whole or not at all. A folder that holds the same report
        stays as it is.

        Raises:
            FileExistsError: If one of the files has another content and ``overwrite`` is false.
        """
        png = Path(folder) / "partition.png"
        html = Path(folder) / "partition.html"
        write_new(png, self.png, "report", overwrite=overwrite)
        write_new(html, self.html.encode(), "report", overwrite=overwrite)
        return png, html

    @rank_zero_only
    def log(self, logger: Logger) -> None:
        """Log the numbers as ``partition/...``; a Weights & Biases logger gets the figure and the page too."""
        numbers = {f"partition/{name}": value for name, value in self.summary.numbers().items()}
        if not isinstance(logger, WandbLogger):
            logger.log_metrics(numbers, step=0)
            return
        import wandb
        from PIL import Image

        run = logger.experiment
        # They go into the summary of the run, because a partition has no course over time that could be plotted.
        run.summary.update(numbers)
        figure = wandb.Image(Image.open(io.BytesIO(self.png)))
        run.log({"partition/figure": figure, "partition/report": wandb.Html(self.html, inject=False)})


def partition_report(
    datamodule: FederatedDataModule,
    out: str | os.PathLike[str] | None = None,
    *,
    features: SampleFeatures | None = None,
    logger: Logger | None = None,
    max_clients: int = 100,
    overwrite: bool = False,
) -> PartitionReport:
    """Report the partition of a data module: the samples of each client, in numbers and as a figure.

    The table has the number of clients and samples, the smallest, largest and mean size of a client and their standard
    deviation, the C-score (eq. (52)), the joint entropy (eq. (53)) and the skew of categorical features. The figure has
    the label distribution of each client and a histogram of sizes. Both include the clients of validation and test.

    Equations are numbered as in ``docs/references.md``.

    Args:
        datamodule: The data module, after ``prepare_data()`` and ``setup()``.
        out: Folder for ``partition.png`` and ``partition.html``; ``None`` writes no files.
        features: Categorical features of all samples, as whole numbers: an array of shape (N, J), or arrays of shape
            (N,) by name. ``None`` takes ``categorical_features`` and ``categorical_names`` of the data module, if it
            has them.
        logger: A Lightning logger for the numbers; a Weights & Biases logger gets the figure and the page too.
        max_clients: Number of clients that are drawn one by one; these are the largest ones.
        overwrite: Whether another report in ``out`` may be replaced.

    Returns:
        The report; ``print`` shows its table.

    Raises:
        RuntimeError: If the data module is not set up.
        TypeError: If ``datamodule`` is not a federated data module, or ``logger`` is not a Lightning logger.
        ValueError: If a client has no samples, if ``features`` are not categories or not one for each sample, or if
            ``max_clients`` is below 1.
        FileExistsError: If ``out`` holds another report and ``overwrite`` is false.
    """
    check("`datamodule`", datamodule, FederatedDataModule)
    check("`out`", out, PathLike | None)
    check("`logger`", logger, Logger | None)
    check("`max_clients`", max_clients, Count)
    summary = _summary(datamodule, features)
    numbers = summary.statistics
    title = f"{summary.data}: {quantity(numbers.num_samples, 'sample')}, {quantity(numbers.num_clients, 'client')}"
    if numbers.has_classes:
        title += f", C-score {numbers.c_score:.3f}"
    with style():
        figure = _draw(datamodule, max_clients, title)
        # "tight" keeps the labels of colour bars whole.
        png = content_of(figure, "png", dpi=150, bbox_inches="tight")
    report = PartitionReport(summary, figure, png, _page(title, summary, png))
    if out is not None:
        report.save(out, overwrite=overwrite)
    if logger is not None:
        report.log(logger)
    return report


# ---- numbers ----


def _summary(datamodule: FederatedDataModule, features: SampleFeatures | None) -> PartitionSummary:
    sizes = datamodule.client_sizes
    sets = {
        "training": f"{quantity(len(sizes), 'client')}, {quantity(int(sizes.sum()), 'sample')}",
        "validation": _evaluation_set(datamodule, "val"),
        "test": _evaluation_set(datamodule, "test"),
    }
    if datamodule.num_unused:
        sets["left out"] = quantity(datamodule.num_unused, "sample")
    partitioner = datamodule.partitioner or getattr(datamodule, "feature_partitioner", None)
    given = isinstance(datamodule, ClientDatasetsModule) and not datamodule.splits_clients
    return PartitionSummary(
        data=type(datamodule).__name__,
        partitioner="the data's own clients" if partitioner is None else _call(partitioner),
        split="as given" if given else _call(datamodule.split),
        sets=sets,
        statistics=datamodule.statistics(),
        feature_skew=_skews(datamodule, features),
        fingerprint=datamodule.partition.fingerprint(),
    )


def _skews(datamodule: FederatedDataModule, features: SampleFeatures | None) -> dict[str, float]:
    """Return the C-score of each categorical feature, with its values as classes."""
    names = None
    if features is None:
        features = getattr(datamodule, "categorical_features", None)
        names = getattr(datamodule, "categorical_names", None)
    if features is None:
        return {}
    given = features if isinstance(features, Mapping) else np.asarray(features)
    columns = pd.DataFrame(given, columns=names)
    partition = datamodule.partition
    needed = 1 + max(int(indices.max(initial=-1)) for indices in partition.indices)
    if len(columns) < needed or any(kind.kind not in "iub" for kind in columns.dtypes):
        raise ValueError(
            f"`features` must be categories, whole numbers of at least {needed} samples, got {len(columns)} values of "
            f"{', '.join(map(str, columns.dtypes))}. Put numbers into buckets by `numpy.digitize`."
        )
    skews = {}
    for name, values in columns.items():
        skews[str(name)] = c_score(label_counts(partition, values.to_numpy(int)))
    return skews


def _evaluation_set(datamodule: FederatedDataModule, stage: Literal["val", "test"]) -> str:
    loader = datamodule.val_dataloader() if stage == "val" else datamodule.test_dataloader()
    if not loader:
        return "none"
    samples = quantity(len(loader.dataset), "sample")
    clients = datamodule.eval_client_ids(stage)
    if clients is None:
        return f"{samples} that belong to no client"
    return f"{quantity(len(np.unique(clients)), 'client')}, {samples}"


def _call(part: Any) -> str:
    """Return the name of a function, or the call that makes an object."""
    return str(getattr(part, "__name__", None) or repr(part))


# ---- figure and page ----


def _page(title: str, summary: PartitionSummary, png: bytes) -> str:
    facts = pd.DataFrame({"value": summary.rows()}).rename_axis("fact")
    table = Table("partition", "", facts, _MEANINGS, texts=["value"], header=False)
    caption = "Samples and, if there are classes, class shares of each client. Bottom: number of clients of each size."
    picture = Picture("partition", caption, {"png": png})
    return page(title, [Section("Numbers", tables=[table]), Section("Clients", pictures=[picture])])


def _draw(datamodule: FederatedDataModule, max_clients: int, title: str) -> Figure:
    """Draw the samples by class, their shares (unless there is one class alone), and the sizes of all clients."""
    partition = datamodule.partition
    labels = datamodule.labels
    has_classes = labels is not None and len(np.unique(labels)) > 1
    # Inches. A figure of 13 inches can be read across a printed page.
    heights = (3.4, 2.6, 2.2) if has_classes else (3.4, 2.2)
    width = 3 + 0.14 * min(max_clients, partition.num_clients)
    figure = Figure(figsize=(min(max(width, 6.0), 13.0), sum(heights)))
    top, *middle, bottom = figure.subplots(len(heights), height_ratios=heights)
    names = datamodule.present_class_names
    table = plot_label_distributions(partition, labels, max_clients=max_clients, class_names=names, axes=top).table
    top.set_title("")
    top.set_title(title, loc="left", fontsize=11)
    if len(table) < partition.num_clients:
        top.set_xlabel(f"client, largest first ({len(table):,} of {partition.num_clients:,} clients)")
    legend = top.get_legend()
    if has_classes:
        _draw_mixes(middle[0], top, table)
    elif legend is not None:
        legend.remove()
    _draw_histogram(bottom, partition.sizes)
    return figure


def _draw_mixes(axes: Axes, top: Axes, table: pd.DataFrame) -> None:
    """Draw the class shares of each client below its samples, in the same colours."""
    shares = table.div(table.sum(axis=1), axis=0).to_numpy()
    bottoms = shares.cumsum(axis=1) - shares
    for column, bottom, bars in zip(shares.T, bottoms.T, top.containers, strict=True):
        axes.bar(range(len(table)), column, bottom=bottom, width=0.9, color=bars[0].get_facecolor())
    axes.set(xlim=top.get_xlim(), ylim=(0, 1), xticks=[], ylabel="class mix")
    in_percent(axes.yaxis)


def _draw_histogram(axes: Axes, sizes: np.ndarray) -> None:
    """Draw a histogram of the sizes of all clients, in at most some 30 bins.

    Their width is a whole number, because some narrower bins would always be empty.
    """
    largest = int(sizes.max())
    width = math.ceil(largest / 30)
    edges = np.arange(0, largest + width + 1, width) - 0.5
    axes.hist(sizes, edges.tolist(), color="0.55", edgecolor="white")
    axes.axvline(sizes.mean(), color="black", linewidth=1, linestyle="--")
    axes.set_title(f"dashed: mean {sizes.mean():,.1f}", loc="right", fontsize=9)
    axes.set(xlim=(0, None), xlabel="samples of a client", ylabel="clients")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        axis.set_major_formatter("{x:,.0f}")
