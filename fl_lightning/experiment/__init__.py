"""Experiments: tables of methods x data sets x folds x seeds, with tuning, resuming and significance tests."""

from fl_lightning.experiment.check import Findings, check_table
from fl_lightning.experiment.estimate import describe_plan, describe_time, measure_paces
from fl_lightning.experiment.kept_model import FittedCell, load_cell
from fl_lightning.experiment.runner import run_table
from fl_lightning.experiment.sweep import run_sweep
from fl_lightning.experiment.table import DataSet, Method, Table, Tuning
from fl_lightning.experiment.table_file import read_table

__all__ = [
    "DataSet",
    "Findings",
    "FittedCell",
    "Method",
    "Table",
    "Tuning",
    "check_table",
    "describe_plan",
    "describe_time",
    "load_cell",
    "measure_paces",
    "read_table",
    "run_sweep",
    "run_table",
]
