"""The texts of reports, which one template holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
import pandas as pd

from fl_lightning.experiment.readings import describe_reading
from fl_lightning.experiment.statistics import LEVEL
from fl_lightning.report.page import Table
from fl_lightning.report.results import BETTER, WORSE, Results
from fl_lightning.words import quantity


def text(name: str, *facts: Any) -> str:
    """Return a text of ``texts.j2`` in one line, given the arguments of its macro."""
    return " ".join(_template()[name](*facts).split())


def table(name: str, frame: pd.DataFrame, results: Results, *facts: Any, texts: Sequence[str] = ()) -> Table:
    """Return a table with its caption and its note.

    Args:
        name: Its file name, and that of the macro in ``texts.j2``.
        frame: The cells.
        results: The results.
        facts: The macro's other arguments.
        texts: Columns of texts.
    """
    caption, _, note = _template()[name](results, *facts).strip().partition("\n\n")
    return Table(name, " ".join(caption.split()), frame, " ".join(note.split()), texts)


@cache
def _template() -> dict[str, Callable[..., str]]:
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"LEVEL": LEVEL, "BETTER": BETTER, "WORSE": WORSE}
    environment.globals |= {"quantity": quantity, "thousands": "{:,}".format, "describe_reading": describe_reading}
    source = files(__package__).joinpath("texts.j2").read_text(encoding="utf-8")
    return vars(environment.from_string(source).module)
