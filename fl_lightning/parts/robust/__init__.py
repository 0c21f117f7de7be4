"""Aggregations that tolerate some arbitrary updates."""

from fl_lightning.parts.robust.base import PreAggregation, RobustAggregation
from fl_lightning.parts.robust.centered_clipping import CenteredClipping
from fl_lightning.parts.robust.geometric_median import GeometricMedian
from fl_lightning.parts.robust.krum import Krum
from fl_lightning.parts.robust.median import Median, TrimmedMean
from fl_lightning.parts.robust.mixing import Bucketing, NearestNeighborMixing, NormBounding
from fl_lightning.parts.robust.updates import Updates

__all__ = [
    "Bucketing",
    "CenteredClipping",
    "GeometricMedian",
    "Krum",
    "Median",
    "NearestNeighborMixing",
    "NormBounding",
    "PreAggregation",
    "RobustAggregation",
    "TrimmedMean",
    "Updates",
]
