"""A picture of a partition: one stacked bar of classes for each client."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fl_lightning.notebook import Drawn
from fl_lightning.partitioners.partition import Partition
from fl_lightning.partitioners.statistics import label_counts
from fl_lightning.settings import Count, check
from fl_lightning.words import quantity

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Most classes of a legend; for more of them there is a colour bar instead.
_MAX_LEGEND = 20
#: Points that the name of a client takes below an axis: a line of letters of 7 points.
_ROOM_OF_NAME = 9.0


class _LabelParts(NamedTuple):
    figure: Figure
    axes: Axes
    table: pd.DataFrame


class LabelPlot(_LabelParts, Drawn):
    """The picture of a partition, which a notebook shows; it unpacks as ``figure, axes, table``.

    Attributes:
        figure: The figure; it is not pyplot's. ``savefig(path)`` writes it.
        axes: Its axes.
        table: The drawn numbers: one row for each client, one column for each class.

    Example:
        >>> import numpy as np
        >>> labels = np.arange(60) % 3
        >>> figure, axes, table = plot_label_distributions(IIDPartitioner(4)(labels), labels)
        >>> table.shape
        (4, 3)
    """

    def __repr__(self) -> str:
        clients, classes = self.table.shape
        return f"LabelPlot({clients:,} clients, {classes:,} classes; `.savefig(path)` writes it)"


def plot_label_distributions(
    partition: Partition,
    labels: np.ndarray | None,
    *,
    max_clients: int = 100,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    order: Literal["size", "client"] = "size",
    sets: Mapping[str, Sequence[int]] | None = None,
    axes: Axes | None = None,
) -> LabelPlot:
    """Draw how many samples of each class each client has.

    Args:
        partition: The samples of each client.
        labels: The class of each sample of the data set, integers, shape (num_samples,); ``None`` draws the samples of
            each client in one colour.
        max_clients: Largest number of clients to draw: the first ones, in the given order.
        class_names: Name of each class in ``labels``, ascending; the class itself if ``None``.
        client_names: Name of each client, written below its bar; its number if ``None``.
        order: ``"size"`` draws the largest client first, ``"client"`` client 0.
        sets: The clients of each set, such as ``{"train": [0, 2], "test": [1]}``. The clients of a set stand side by
            side, under its name; those of no set come last.
        axes: Axes to draw on; a new figure if ``None``.

    Returns:
        The figure, its axes, and the drawn numbers: one row for each client, one column for each class.

    Raises:
        TypeError: If the labels are not integers.
        ValueError: If an argument is out of range, or the number of names is not that of the classes.
    """
    import pandas as pd
    from matplotlib.figure import Figure

    check("`max_clients`", max_clients, Count)
    check("`order`", order, Literal["size", "client"])
    if sets is None:
        sets = {}
    if labels is None:
        counts = partition.sizes[:, np.newaxis]
        classes = ["samples"]
    else:
        counts = label_counts(partition, labels)
        classes = [str(label) for label in np.unique(labels).tolist()]
    if class_names is None:
        class_names = classes
    check_names("class_names", class_names, len(classes))
    if client_names is not None:
        check_names("client_names", client_names, partition.num_clients)

    clients = np.arange(partition.num_clients)
    if order == "size":
        clients = np.argsort(-partition.sizes, kind="stable")
    clients = _by_set(clients[:max_clients].tolist(), sets)
    table = pd.DataFrame(
        counts[clients], index=pd.Index(clients, name="client"), columns=pd.Index(class_names, name="class")
    )
    if axes is None:
        width = min(max(3 + 0.14 * len(table), 6), 17)
        axes = Figure(figsize=(width, 4.5), layout="constrained").add_subplot()
    _draw_bars(axes, table, legend=labels is not None)
    _label_axes(axes, table, partition.num_clients, order)
    label_clients(axes, range(len(table)), names_of(clients.tolist(), client_names))
    is_first = True
    for name, ids in sets.items():
        places = np.flatnonzero(np.isin(clients, ids))
        _mark_set(axes, name, places, len(set(ids)), first=is_first)
        is_first = False
    return LabelPlot(axes.figure, axes, table)  # type: ignore[arg-type]


def _by_set(clients: Sequence[int], sets: Mapping[str, Sequence[int]]) -> np.ndarray:
    """Return clients set after set, those of no set last; in the given order within a set."""
    set_of = {}
    for number, ids in enumerate(sets.values()):
        for client in ids:
            set_of[client] = number
    return np.array(sorted(clients, key=lambda client: set_of.get(client, len(sets))))


def check_names(name: str, names: Any, number: int) -> None:
    """Raise an error unless there are so many names."""
    check(f"`{name}`", names, Sequence[str])
    if len(names) != number:
        raise ValueError(f"`{name}` must have {number} names, got {len(names)}.")


def _draw_bars(axes: Axes, table: pd.DataFrame, legend: bool) -> None:
    from matplotlib import color_sequences, colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    number = table.shape[1]
    colors: Any
    if number <= 10:
        # The ten colours are told apart without colour vision, too.
        colors = color_sequences["petroff10"][:number]
    elif number <= _MAX_LEGEND:
        colors = color_sequences["tab20"][:number]
    else:
        colors = colormaps["viridis"](np.linspace(0, 1, number))
    places = np.arange(len(table))
    bottom = np.zeros(len(table))
    for name, heights, color in zip(table.columns, table.to_numpy().T, colors, strict=True):
        axes.bar(places, heights, bottom=bottom, width=0.9, color=color, label=label(name))
        bottom += heights
    if legend and number <= _MAX_LEGEND:
        axes.legend(
            title="class",
            loc="upper left",
            bbox_to_anchor=(1.0, 1.02),
            frameon=False,
            reverse=True,
            fontsize=7 if number > 10 else None,
            labelspacing=0.25 if number > 10 else None,
        )
    elif legend:
        mappable = ScalarMappable(Normalize(0, number - 1), colormaps["viridis"])
        axes.figure.colorbar(mappable, ax=axes, label="class, in ascending order", pad=0.01)


def _label_axes(axes: Axes, table: pd.DataFrame, num_clients: int, order: str) -> None:
    from matplotlib.ticker import MaxNLocator

    size = len(table)
    sizes = table.sum(axis=1)
    axes.set_xlim(-0.6, size - 0.4)
    axes.set_ylim(0, 1.04 * max(1, sizes.max()))
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    is_sorted = order == "size" and sizes.nunique() > 1
    axes.set_xlabel("client, largest first" if is_sorted else "client")
    title = quantity(num_clients, "client")
    if size < num_clients:
        title = f"{size:,} of {title}"
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)


def _mark_set(axes: Axes, name: str, places: np.ndarray, total: int, *, first: bool) -> None:
    """Write the name of a set above its clients, with a line before them."""
    if not len(places):
        return
    shown = f"{len(places):,}"
    if len(places) < total:
        shown += f" of {total:,}"
    axes.text(
        places.mean(),
        1.0,
        f"{name}\n({shown})",
        transform=axes.get_xaxis_transform(),
        ha="center",
        va="bottom",
        fontsize=9,
    )
    axes.set_title(axes.get_title(), fontsize=11, pad=29)
    if not first:
        axes.axvline(places[0] - 0.5, color="0.4", linewidth=0.8, linestyle="--")


def label_clients(axes: Axes, places: Sequence[int], names: Sequence[str]) -> None:
    """Write the names of clients below their bars: of many every second, fifth or so, as the axes have room.

    Args:
        axes: The axes.
        places: The place of each client on the x axis.
        names: The name of each client.
    """
    width = 72 * axes.get_position().width * axes.figure.bbox.width / axes.figure.dpi
    # Where no score of a run is finite there is no client to label.
    step = max(1, math.ceil(len(names) * _ROOM_OF_NAME / width))
    axes.set_xticks(places[::step], names[::step])
    letters = sum(len(name) for name in names)
    if letters > 30:
        axes.tick_params(axis="x", labelsize=7, rotation=90, length=2)
    else:
        axes.tick_params(axis="x", labelsize=9, rotation=0, length=2)


def names_of(clients: Sequence[int], names: Sequence[str] | None) -> list[str]:
    """Return what to write below the bars of clients: their names, shortened, or their numbers if ``None``."""
    if names is None:
        return [str(client) for client in clients]
    return [label(names[client], 14) for client in clients]


def label(text: str, longest: int = 28) -> str:
    """Return a string as matplotlib draws it: without formulas between dollars, in one line, long ones cut."""
    text = " ".join(text.split())
    if len(text) > longest:
        end = longest // 3
        text = f"{text[: longest - end - 1]}…{text[-end:]}"
    text = text.replace("$", r"\$")
    # Matplotlib leaves a name that begins with an underscore out of legends.
    return f" {text}" if text.startswith("_") else text
