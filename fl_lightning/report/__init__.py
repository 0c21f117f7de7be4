"""What a federation looks like: a table, a figure and a page to keep or hand on."""

from fl_lightning.report.partition import PartitionReport, partition_report
from fl_lightning.report.summary import PartitionSummary

__all__ = ["PartitionReport", "PartitionSummary", "partition_report"]
