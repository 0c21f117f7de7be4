"""Partitions by quadratic programs: sizes, classes and features drawn independently, then reconciled."""

from fl_lightning.partitioners.quadratic.feature_qp import (
    FeatureQPPartitioner,
    FeatureQPSolution,
    SampleFeatures,
    quantile_buckets,
)
from fl_lightning.partitioners.quadratic.qp import QPPartitioner, QPSolution
from fl_lightning.partitioners.quadratic.rounding import RoundingMethod

__all__ = [
    "FeatureQPPartitioner",
    "FeatureQPSolution",
    "QPPartitioner",
    "QPSolution",
    "RoundingMethod",
    "SampleFeatures",
    "quantile_buckets",
]
