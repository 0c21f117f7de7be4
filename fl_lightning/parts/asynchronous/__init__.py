"""Asynchronous federated learning in virtual time."""

from fl_lightning.parts.asynchronous.algorithm import AsynchronousAlgorithm
from fl_lightning.parts.asynchronous.arrivals import ArrivalRule, DeltaBuffer, DynamicWeightBuffer, StalenessMixing
from fl_lightning.parts.asynchronous.calibration import PAPER_STALENESS, calibrate_staleness
from fl_lightning.parts.asynchronous.clock import VirtualClock
from fl_lightning.parts.asynchronous.report import ArrivalRecord
from fl_lightning.parts.asynchronous.schedule import Asynchronous, SampledStaleness
from fl_lightning.parts.asynchronous.staleness import constant, exponential, hinge, polynomial

__all__ = [
    "PAPER_STALENESS",
    "ArrivalRecord",
    "ArrivalRule",
    "Asynchronous",
    "AsynchronousAlgorithm",
    "DeltaBuffer",
    "DynamicWeightBuffer",
    "SampledStaleness",
    "StalenessMixing",
    "VirtualClock",
    "calibrate_staleness",
    "constant",
    "exponential",
    "hinge",
    "polynomial",
]
