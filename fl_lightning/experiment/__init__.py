"""Experiments: tables of methods x data sets x folds x seeds, with tuning, resuming and significance tests."""

from importlib import import_module
from typing import TYPE_CHECKING

from fl_lightning.experiment.check import Findings, check_table
from fl_lightning.experiment.estimate import describe_plan, describe_time, measure_paces
from fl_lightning.experiment.runner import run_table
from fl_lightning.experiment.sweep import run_sweep
from fl_lightning.experiment.table import DataSet, Method, Table, Tuning
from fl_lightning.experiment.table_file import read_table

__all__ = [
    "DataSet",
    "Findings",
    "Method",
    "Table",
    "Tuning",
    "check_table",
    "describe_plan",
    "describe_time",
    "measure_paces",
    "read_table",
    "run_sweep",
    "run_table",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # the earlier place of this function, which also writes a report; this room knows nothing of reports
        if name == "run_presets":
            return import_module("fl_lightning.report").run_presets
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
