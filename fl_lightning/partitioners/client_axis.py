"""The names of clients below an axis: all that fit, or some of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 60  # names; more cannot be read
_SIDEWAYS = 25  # names; more are written from below to above
_LETTER_WIDTH, _LINE_HEIGHT = 0.08, 0.1  # inches
_LONGEST = 14  # letters of a name


def label_clients(axes: Axes, places: Sequence[int], names: Sequence[str], *, all_or_none: bool = False) -> None:
    """Write the names of clients below their bars; where they do not fit, every second, fifth or tenth is there.

    Args:
        axes: The axes, in their figure's final size.
        places: The place of each client on the x axis, ascending.
        names: The name of each client.
        all_or_none: Whether there are no names where not all of them fit.
    """
    width = axes.figure.get_figure(root=True).get_figwidth() * axes.get_position().width
    span = 1 + places[-1] - places[0]
    least = max(span * _LINE_HEIGHT / width, len(names) / _MOST)  # clients for each name that is there
    step = next(digit * 10**power for power in range(10) for digit in (1, 2, 5) if digit * 10**power >= least)
    shown = slice(0, 0) if all_or_none and step > 1 else slice(None, None, step)
    axes.set_xticks(places[shown], names[shown])
    turned = len(names) > _SIDEWAYS or span * _LETTER_WIDTH * max(map(len, names)) > width
    axes.tick_params(axis="x", labelsize=7 if turned else 9, rotation=90 if turned else 0, length=2)


def names_of(clients: Sequence[int], names: Sequence[str] | None) -> list[str]:
    """Return what to write below the bars of clients: their names, shortened, or their numbers if ``None``."""
    if names is None:
        return [str(client) for client in clients]
    return [label(names[client], _LONGEST) for client in clients]


def label(text: str, longest: int = 28) -> str:
    """Return a text as matplotlib draws it: no formula between dollars, in one line, the middle of long ones left out.

    Matplotlib leaves a name that begins with an underscore out of legends, so a blank precedes it.
    """
    text = " ".join(text.split())
    if len(text) > longest:
        end = longest // 3
        text = f"{text[: longest - end - 1]}…{text[-end:]}"
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")
