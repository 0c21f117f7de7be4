"""Experiments: methods x data sets x folds x seeds, tuned, resumed, tested for significance."""

from fl_lightning.experiment.estimate import describe_plan, describe_time, measure_paces
from fl_lightning.experiment.presets import run_presets
from fl_lightning.experiment.runner import run_table
from fl_lightning.experiment.sweep import run_sweep
from fl_lightning.experiment.table import DataSet, Method, Table, Tuning, read_table

__all__ = [
    "DataSet",
    "Method",
    "Table",
    "Tuning",
    "describe_plan",
    "describe_time",
    "measure_paces",
    "read_table",
    "run_presets",
    "run_sweep",
    "run_table",
]
