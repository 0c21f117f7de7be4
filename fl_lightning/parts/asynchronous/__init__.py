"""Asynchronous federated learning in virtual time."""

from fl_lightning.parts.asynchronous.aggregations import DynamicWeightMean, StalenessMixing, StalenessWeightedDeltas
from fl_lightning.parts.asynchronous.calibration import PAPER_STALENESS, calibrate_staleness
from fl_lightning.parts.asynchronous.clock import VirtualClock
from fl_lightning.parts.asynchronous.schedule import Asynchronous, SampledStaleness
from fl_lightning.parts.asynchronous.staleness import constant, exponential, hinge, polynomial

__all__ = [
    "PAPER_STALENESS",
    "Asynchronous",
    "DynamicWeightMean",
    "SampledStaleness",
    "StalenessMixing",
    "StalenessWeightedDeltas",
    "VirtualClock",
    "calibrate_staleness",
    "constant",
    "exponential",
    "hinge",
    "polynomial",
]
