from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.drawn import drawn
from helpers.written import assert_as_in
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fl_lightning.partitioners import IIDPartitioner, Partition, plot_label_distributions

PARTITION = Partition((np.array([0]), np.array([1, 2, 3]), np.array([4, 5])))
LABELS = np.array([0, 0, 1, 1, 1, 0])


def test_names_of_clients_stand_below_their_bars_and_long_ones_are_cut() -> None:
    names = ["Aurora", "Universitätsspital Basel", "price $5 $6"]
    plot = plot_label_distributions(PARTITION, LABELS, client_names=names)

    assert plot.table.index.tolist() == [1, 2, 0]
    shown = [label.get_text() for label in plot.axes.get_xticklabels()]
    assert shown == ["Universit…asel", r"price \$5 \$6", "Aurora"]


def test_clients_can_be_drawn_in_their_own_order_and_limited() -> None:
    _, axes, table = plot_label_distributions(PARTITION, LABELS, order="client", max_clients=2)

    assert table.index.tolist() == [0, 1]
    assert axes.get_title() == "2 of 3 clients"
    one, many = Partition((np.array([0]),)), IIDPartitioner(1000)(np.arange(1000))
    assert plot_label_distributions(one, LABELS).axes.get_title() == "1 client"
    assert plot_label_distributions(many, None).axes.get_title() == "100 of 1,000 clients"
    assert plot_label_distributions(many, None, max_clients=101).figure.get_size_inches().tolist() == [17, 4.5]


@pytest.mark.parametrize(("num_classes", "legend"), [(20, True), (60, False)])
def test_many_classes_get_a_colour_bar_instead_of_a_legend(num_classes: int, legend: bool) -> None:
    labels = np.arange(120) % num_classes
    figure, axes, _ = plot_label_distributions(IIDPartitioner(3)(labels), labels)

    assert (axes.get_legend() is not None) == legend
    assert len(figure.axes) == (1 if legend else 2)
    if not legend:
        colours = [axes.patches[place].get_facecolor() for place in (0, -1)]
        assert colours == [colormaps["viridis"](share) for share in (0.0, 1.0)]
        bar = figure.axes[1]
        assert (bar.get_ylabel(), bar.get_ylim()) == ("class, in ascending order", (0.0, 59.0))
        assert bar.collections[-1].cmap.name == "viridis"


def test_a_notebook_shows_the_picture_and_a_prompt_one_line() -> None:
    plot = plot_label_distributions(PARTITION, LABELS)

    assert plot._repr_png_().startswith(b"\x89PNG")
    assert repr(plot) == "LabelPlot(3 clients, 2 classes; `.savefig(path)` writes it)"


def test_all_that_is_drawn(tmp_path: Path) -> None:
    plot = plot_label_distributions(
        PARTITION,
        LABELS,
        class_names=["catalogued animals of the zoo", "_atalogued animal of the zoo"],
        sets={"train": [0, 2], "validation": [1, 7], "test": []},
    )
    assert_as_in(Path(__file__).with_suffix(".txt"), drawn(plot.figure), tmp_path)
    assert plot.figure.get_constrained_layout()


def test_many_classes_and_clients_are_drawn_smaller() -> None:
    labels = np.arange(75) % 12
    plot = plot_label_distributions(IIDPartitioner(25)(labels), labels)
    names = [str(number) for number in range(25)]
    assert plot.axes.get_title() == "25 clients"
    assert looks(plot.axes) == (names, {(7.0, 90.0)})
    legend = plot.axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [str(number) for number in range(11, -1, -1)]
    assert ({text.get_fontsize() for text in legend.get_texts()}, legend.labelspacing) == ({7.0}, 0.25)
    # 3 inches and 0.14 for each client
    assert plot.figure.get_size_inches().tolist() == pytest.approx([3 + 0.14 * 25, 4.5])
    # Axes of 3 inches, of which the bars have 77.5 %, are 167 points wide: room for 18 names of 9 points.
    narrow = Figure(figsize=(3, 2)).add_subplot()
    plot = plot_label_distributions(IIDPartitioner(25)(labels), None, axes=narrow)
    assert looks(narrow) == (names[::2], {(7.0, 90.0)})
    assert plot.figure is narrow.figure
    assert len(narrow.patches) == 25
    turned = Figure().add_subplot()
    turned.tick_params(axis="x", rotation=45)
    plot_label_distributions(PARTITION, LABELS, axes=turned)
    assert looks(turned) == (["1", "2", "0"], {(9.0, 0.0)})


def looks(axes: Axes) -> tuple[list[str], set[tuple[float, float]]]:
    """Return the names below the bars, and their sizes and rotations."""
    labels = axes.get_xticklabels()
    return [each.get_text() for each in labels], {(each.get_fontsize(), each.get_rotation()) for each in labels}
