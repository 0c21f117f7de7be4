"""Draws the figure of a partition: samples and class shares of each client, and a histogram of sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fl_lightning.partitioners import Partition, plot_label_distributions
from fl_lightning.partitioners.client_axis import label_clients

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_WIDTH = 13.0  # inches; a wider figure cannot be read when it is printed across a page
_SIZE_BINS = 30  # roughly


def draw_partition(
    partition: Partition, labels: np.ndarray | None, class_names: Sequence[str] | None, max_clients: int, title: str
) -> Figure:
    """Draw a partition in three panels: samples by class, class shares, and a histogram of the sizes of all clients.

    If there are no classes, or one alone, there is no panel of class shares.

    Args:
        partition: The sample indices of each client.
        labels: The class of each sample of the data set, integers, shape (N,); ``None`` if there are none.
        class_names: The name of each class in ``labels``, in ascending order of the classes.
        max_clients: Number of clients in the first two panels; these are the largest ones.
        title: Title of the figure.
    """
    figure, sizes, table = plot_label_distributions(partition, labels, max_clients=max_clients, class_names=class_names)
    heights = (3.4, 2.6, 2.2) if table.shape[1] > 1 else (3.4, 2.2)
    figure.set_size_inches(min(figure.get_size_inches()[0], _MAX_WIDTH), sum(heights))
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    sizes.set_subplotspec(grid[0])
    sizes.set_title(title, loc="left", fontsize=11)
    sizes.set_title("")
    clients = "client" if len(set(partition.sizes.tolist())) == 1 else "client, largest first"
    if len(table) < partition.num_clients:
        clients += f" ({len(table):,} of {partition.num_clients:,} clients)"
    sizes.set_xlabel(clients)
    lowest = sizes
    if len(heights) == 3:
        lowest = figure.add_subplot(grid[1], sharex=sizes)
        _draw_mixes(lowest, sizes, table)
    elif (legend := sizes.get_legend()) is not None:
        legend.remove()
    label_clients(lowest, range(len(table)), [str(client) for client in table.index])
    _draw_histogram(figure.add_subplot(grid[-1]), partition.sizes)
    return figure


def _draw_mixes(axes: Axes, sizes: Axes, table: pd.DataFrame) -> None:
    """Draw the class shares of each client below its samples, in the same colours."""
    shares = table.to_numpy() / np.maximum(table.to_numpy().sum(axis=1, keepdims=True), 1)
    bottom = np.zeros(len(table))
    for column, bars in zip(shares.T, sizes.containers, strict=True):
        color = bars[0].get_facecolor()
        axes.bar(np.arange(len(table)), column, bottom=bottom, width=0.9, color=color)
        bottom += column
    axes.set_ylim(0, 1)
    axes.set_ylabel("class mix")
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.set_xlabel(sizes.get_xlabel())
    axes.spines[["top", "right"]].set_visible(False)
    sizes.set_xlabel("")
    sizes.tick_params(axis="x", labelbottom=False)


def _draw_histogram(axes: Axes, sizes: np.ndarray) -> None:
    """Draw a histogram of the sizes of all clients."""
    from matplotlib.ticker import MaxNLocator

    largest = max(1, int(sizes.max()))
    width = -(-largest // _SIZE_BINS)  # whole: a bin between two whole numbers would always be empty
    edges = np.arange(0, largest + width + 1, width) - 0.5
    axes.hist(sizes, bins=edges.tolist(), color="0.55", edgecolor="white")
    axes.axvline(sizes.mean(), color="black", linewidth=1, linestyle="--")
    axes.set_title(f"dashed: mean {sizes.mean():,.1f}", loc="right", fontsize=9)
    axes.set_xlim(0, max(edges[-1], 1.02 * largest))
    axes.set_xlabel("samples of a client")
    axes.set_ylabel("clients")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
