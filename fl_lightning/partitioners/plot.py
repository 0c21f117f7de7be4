"""A picture of a partition: one stacked bar of classes for each client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from fl_lightning.arguments import check_choice, check_count, check_texts
from fl_lightning.partitioners.partition import Partition
from fl_lightning.partitioners.statistics import label_counts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LEGEND = 20  # classes; with more a colour bar takes the legend's place


def plot_label_distributions(
    partition: Partition,
    labels: np.ndarray,
    *,
    max_clients: int = 100,
    class_names: Sequence[str] | None = None,
    order: Literal["size", "client"] = "size",
) -> tuple[Figure, Axes, pd.DataFrame]:
    """Draw how many samples of each class each client has.

    Args:
        partition: The samples of each client.
        labels: The class of each sample of the data set, integers, shape (num_samples,).
        max_clients: Most clients to draw: the first ones, in the given order.
        class_names: Name of each class in ``labels``, ascending; the class itself if ``None``.
        order: ``"size"`` draws the largest client first, ``"client"`` client 0.

    Returns:
        The figure, its axes, and the drawn numbers: one row for each client, one column for each class. The figure is
        not pyplot's; write it with ``figure.savefig(path)``.

    Raises:
        TypeError: If the labels are no integers.
        ValueError: If an argument is out of range, or the number of names is not that of the classes.
    """
    import pandas as pd
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_count("max_clients", max_clients)
    check_choice("order", order, ("size", "client"))
    counts = label_counts(partition, labels)
    names = _names(labels, class_names)
    clients = np.arange(len(counts)) if order == "client" else np.argsort(-counts.sum(axis=1), kind="stable")
    clients = clients[:max_clients]
    table = pd.DataFrame(counts[clients], index=pd.Index(clients, name="client"), columns=pd.Index(names, name="class"))
    figure = Figure(figsize=(float(np.clip(3 + 0.14 * len(clients), 6, 17)), 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_bars(axes, table)
    _label_axes(axes, table, partition.num_clients, order)
    return figure, axes, table


def _names(labels: np.ndarray, class_names: Sequence[str] | None) -> list[str]:
    classes = np.unique(labels)
    if class_names is None:
        return [str(label) for label in classes]
    check_texts("class_names", class_names)
    if len(class_names) != len(classes):
        raise ValueError(
            f"`class_names` must have one name for each of the {len(classes)} classes in `labels`, "
            f"got {len(class_names)}."
        )
    return list(class_names)


def _draw_bars(axes: Axes, table: pd.DataFrame) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    num_classes = table.shape[1]
    if num_classes <= _MAX_LEGEND:
        palette = colormaps["tab10" if num_classes <= 10 else "tab20"]
        colors = [palette(index) for index in range(num_classes)]
    else:
        palette = colormaps["turbo"]
        colors = [palette(index / (num_classes - 1)) for index in range(num_classes)]
    bottom = np.zeros(len(table))
    for name, color in zip(table.columns, colors, strict=True):
        heights = table[name].to_numpy()
        axes.bar(np.arange(len(table)), heights, bottom=bottom, width=0.9, color=color, label=name)
        bottom += heights
    if num_classes <= _MAX_LEGEND:
        small = {"fontsize": 7, "labelspacing": 0.25} if num_classes > 10 else {}
        axes.legend(title="class", loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, reverse=True, **small)
    else:
        mappable = ScalarMappable(Normalize(0, num_classes - 1), palette)
        axes.figure.colorbar(mappable, ax=axes, label="class, in ascending order", pad=0.01)


def _label_axes(axes: Axes, table: pd.DataFrame, num_clients: int, order: str) -> None:
    from matplotlib.ticker import MaxNLocator

    size = len(table)
    axes.set_xticks(np.arange(size), [str(client) for client in table.index])
    axes.tick_params(axis="x", labelsize=7 if size > 25 else 9, rotation=90 if size > 25 else 0, length=2)
    axes.set_xlim(-0.6, size - 0.4)
    axes.set_ylim(0, 1.04 * max(1, table.to_numpy().sum(axis=1).max()))
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(
        MaxNLocator(integer=True, steps=[1, 2, 5, 10])
    )  # the formatter would write 2.5 samples as 2
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("client" + (", largest first" if order == "size" else ""))
    axes.set_title(f"{size} of {num_clients} clients" if size < num_clients else f"{size} clients")
    axes.spines[["top", "right"]].set_visible(False)
