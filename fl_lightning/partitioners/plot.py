"""A picture of a partition: one stacked bar of classes for each client."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from fl_lightning.arguments import check_choice, check_count, check_texts
from fl_lightning.partitioners.client_axis import label_clients, names_of, width_of
from fl_lightning.partitioners.notebook import Drawn
from fl_lightning.partitioners.partition import Partition
from fl_lightning.partitioners.short_texts import labels as plain
from fl_lightning.partitioners.statistics import label_counts
from fl_lightning.representation import counted

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTER_WIDTH = 0.066  # inches of a letter of a set's name, at most
_MAX_LEGEND = 20  # classes; with more a colour bar takes the legend's place
#: Ten colours that can be told apart without full colour vision (Petroff 2021).
_COLORS = (
    *("#3f90da", "#ffa90e", "#bd1f01", "#94a4a2", "#832db6"),
    *("#a96b59", "#e76300", "#b9ac70", "#717581", "#92dadd"),
)


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
    """

    def __repr__(self) -> str:
        clients, classes = self.table.shape
        return (
            f"LabelPlot({counted(clients, 'client')}, {classes:,} {'class' if classes == 1 else 'classes'}; "
            "`.savefig(path)` writes it)"
        )


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
        TypeError: If the labels are no integers.
        ValueError: If an argument is out of range, or the number of names is not that of the classes.
    """
    import pandas as pd
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    check_count("max_clients", max_clients)
    check_choice("order", order, ("size", "client"))
    if client_names is not None:
        check_texts("client_names", client_names)
        if len(client_names) != partition.num_clients:
            raise ValueError(
                f"`client_names` must have one name for each of the {partition.num_clients} clients, got "
                f"{len(client_names)}."
            )
    if labels is None:
        counts, names = partition.sizes[:, np.newaxis], ["samples"]
    else:
        counts, names = label_counts(partition, labels), _names(labels, class_names)
    clients = np.arange(len(counts)) if order == "client" else np.argsort(-counts.sum(axis=1), kind="stable")
    set_of = {client: place for place, ids in enumerate((sets or {}).values()) for client in ids}
    drawn = clients[:max_clients].tolist()
    clients = np.array(sorted(drawn, key=lambda client: set_of.get(client, len(set_of))), dtype=np.int64)
    table = pd.DataFrame(counts[clients], index=pd.Index(clients, name="client"), columns=pd.Index(names, name="class"))
    if axes is None:
        figure = Figure(figsize=(float(np.clip(3 + 0.14 * len(clients), 6, 17)), 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
    _draw_bars(axes, table, legend=labels is not None)
    _label_axes(axes, table, partition.num_clients, order)
    label_clients(axes, range(len(clients)), names_of(clients.tolist(), client_names))
    if sets:
        where = {name: [place for place, client in enumerate(clients) if client in set(sets[name])] for name in sets}
        totals = {name: len(set(sets[name]) & set(range(partition.num_clients))) for name in sets}
        _mark_sets(axes, where, totals)
    return LabelPlot(axes.figure, axes, table)  # type: ignore[arg-type]


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


def _draw_bars(axes: Axes, table: pd.DataFrame, legend: bool) -> None:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    num_classes = table.shape[1]
    colors = _class_colors(num_classes)
    bottom = np.zeros(len(table))
    for name, heights, color in zip(plain(table.columns), table.to_numpy().T, colors, strict=True):
        axes.bar(np.arange(len(table)), heights, bottom=bottom, width=0.9, color=color, label=name)
        bottom += heights
    if not legend:
        return
    if num_classes <= _MAX_LEGEND:
        small = {"fontsize": 7, "labelspacing": 0.25} if num_classes > 10 else {}
        axes.legend(title="class", loc="upper left", bbox_to_anchor=(1.0, 1.02), frameon=False, reverse=True, **small)
    else:
        mappable = ScalarMappable(Normalize(0, num_classes - 1), colormaps["viridis"])
        axes.figure.colorbar(mappable, ax=axes, label="class, in ascending order", pad=0.01)


def _class_colors(count: int) -> list[Any]:
    """Return the colours of classes; those of very many go from dark to bright."""
    from matplotlib import colormaps

    if count <= len(_COLORS):
        return list(_COLORS[:count])
    if count <= _MAX_LEGEND:
        return [colormaps["tab20"](place) for place in range(count)]
    return [colormaps["viridis"](place / (count - 1)) for place in range(count)]


def _label_axes(axes: Axes, table: pd.DataFrame, num_clients: int, order: str) -> None:
    from matplotlib.ticker import MaxNLocator

    size = len(table)
    axes.set_xlim(-0.6, size - 0.4)
    axes.set_ylim(0, 1.04 * max(1, table.to_numpy().sum(axis=1).max()))
    axes.set_ylabel("samples")
    axes.yaxis.set_major_locator(
        MaxNLocator(integer=True, steps=[1, 2, 5, 10])
    )  # the formatter would write 2.5 samples as 2
    axes.yaxis.set_major_formatter("{x:,.0f}")
    is_ordered = order == "size" and table.sum(axis=1).nunique() > 1
    axes.set_xlabel("client" + (", largest first" if is_ordered else ""))
    axes.set_title((f"{size:,} of " if size < num_clients else "") + counted(num_clients, "client"))
    axes.spines[["top", "right"]].set_visible(False)


def _mark_sets(axes: Axes, places: Mapping[str, Sequence[int]], totals: Mapping[str, int]) -> None:
    """Write the name of each set above its clients, with a line between two sets."""
    drawn = {name: where for name, where in places.items() if where}
    centres = [(min(where) + max(where)) / 2 for where in drawn.values()]
    texts = [f"{name} ({_part(len(where), totals[name])})" for name, where in drawn.items()]
    gaps = np.diff(centres) * width_of(axes) / sum(map(len, drawn.values()))
    needed = [(len(left) / 2 + len(right) / 2 + 2) * _LETTER_WIDTH for left, right in itertools.pairwise(texts)]
    touch = any(gap < width for gap, width in zip(gaps, needed, strict=True))
    for number, where in enumerate(drawn.values()):
        axes.text(
            centres[number],
            1.0,
            texts[number].replace(" (", "\n(") if touch else texts[number],
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=9,
        )
        if number:
            axes.axvline(min(where) - 0.5, color="0.4", linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_title(axes.get_title(), fontsize=11, pad=29 if touch else 18)


def _part(drawn: int, total: int) -> str:
    return f"{total:,}" if drawn == total else f"{drawn:,} of {total:,}"
