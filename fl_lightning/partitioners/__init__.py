"""Partitioners share a data set out over clients; the statistics say how heterogeneous the result is."""

from fl_lightning.partitioners.base import Partition, Partitioner
from fl_lightning.partitioners.dirichlet import DirichletPartitioner
from fl_lightning.partitioners.iid import IIDPartitioner
from fl_lightning.partitioners.plot import plot_label_distributions
from fl_lightning.partitioners.qp import QPPartitioner, QPSolution
from fl_lightning.partitioners.statistics import (
    PartitionStatistics,
    c_score,
    label_counts,
    label_entropy,
    partition_statistics,
)
from fl_lightning.partitioners.topic_graph import TopicGraph, TopicGraphPartitioner, diffuse, entropy_curve
from fl_lightning.partitioners.topic_picking import pick_client_topics

__all__ = [
    "DirichletPartitioner",
    "IIDPartitioner",
    "Partition",
    "PartitionStatistics",
    "Partitioner",
    "QPPartitioner",
    "QPSolution",
    "TopicGraph",
    "TopicGraphPartitioner",
    "c_score",
    "diffuse",
    "entropy_curve",
    "label_counts",
    "label_entropy",
    "partition_statistics",
    "pick_client_topics",
    "plot_label_distributions",
]
