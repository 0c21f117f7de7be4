"""Reports of partitions and of experiments: tables, figures and one HTML page."""

from fl_lightning.report.experiment_report import ReportPage, experiment_report
from fl_lightning.report.partition import PartitionReport, PartitionSummary, partition_report
from fl_lightning.report.run import RunPicture, plot_run, read_curves

__all__ = [
    "PartitionReport",
    "PartitionSummary",
    "ReportPage",
    "RunPicture",
    "experiment_report",
    "partition_report",
    "plot_run",
    "read_curves",
]
