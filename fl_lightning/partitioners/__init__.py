"""Partitioners distribute a data set among clients; statistics measure how heterogeneous the result is."""

from fl_lightning.partitioners.base import Partitioner
from fl_lightning.partitioners.classwise_dirichlet import ClasswiseDirichletPartitioner
from fl_lightning.partitioners.dirichlet import DirichletPartitioner
from fl_lightning.partitioners.feature_noise import add_feature_noise
from fl_lightning.partitioners.iid import IIDPartitioner, QuantitySkewPartitioner
from fl_lightning.partitioners.known_clients import ExplicitPartitioner, FlowerPartitioner, NaturalPartitioner
from fl_lightning.partitioners.limited_classes import (
    LimitedClassesPartitioner,
    PathologicalPartitioner,
    PowerLawPartitioner,
    device_experiment_partitioner,
)
from fl_lightning.partitioners.partition import Partition
from fl_lightning.partitioners.plot import LabelPlot, plot_label_distributions
from fl_lightning.partitioners.quadratic.feature_qp import (
    FeatureQPPartitioner,
    FeatureQPSolution,
    SampleFeatures,
    quantile_buckets,
)
from fl_lightning.partitioners.quadratic.qp import QPPartitioner, QPSolution
from fl_lightning.partitioners.quadratic.rounding import RoundingMethod
from fl_lightning.partitioners.shards import ShardPartitioner
from fl_lightning.partitioners.statistics import (
    PartitionStatistics,
    c_score,
    label_counts,
    label_entropy,
    partition_statistics,
)
from fl_lightning.partitioners.topics import (
    TopicGraph,
    TopicGraphPartitioner,
    diffuse,
    entropy_curve,
    pick_client_topics,
)

__all__ = [
    "ClasswiseDirichletPartitioner",
    "DirichletPartitioner",
    "ExplicitPartitioner",
    "FeatureQPPartitioner",
    "FeatureQPSolution",
    "FlowerPartitioner",
    "IIDPartitioner",
    "LabelPlot",
    "LimitedClassesPartitioner",
    "NaturalPartitioner",
    "Partition",
    "PartitionStatistics",
    "Partitioner",
    "PathologicalPartitioner",
    "PowerLawPartitioner",
    "QPPartitioner",
    "QPSolution",
    "QuantitySkewPartitioner",
    "RoundingMethod",
    "SampleFeatures",
    "ShardPartitioner",
    "TopicGraph",
    "TopicGraphPartitioner",
    "add_feature_noise",
    "c_score",
    "device_experiment_partitioner",
    "diffuse",
    "entropy_curve",
    "label_counts",
    "label_entropy",
    "partition_statistics",
    "pick_client_topics",
    "plot_label_distributions",
    "quantile_buckets",
]
