"""Callbacks that measure a federated fit, and log what they find once a round."""

from fl_lightning.diagnostics.backdoor import BackdoorSuccess
from fl_lightning.diagnostics.central_twin import CentralTwin, relative_distance
from fl_lightning.diagnostics.contribution import Contribution
from fl_lightning.diagnostics.cost import Communication, LocalCompute
from fl_lightning.diagnostics.divergence import LocalDivergence, UpdateNorms, pairwise_divergence
from fl_lightning.diagnostics.local_accuracy import LocalAccuracy
from fl_lightning.diagnostics.observer import RoundObserver
from fl_lightning.diagnostics.timeline import Timeline
from fl_lightning.diagnostics.virtual_time import VirtualTime

__all__ = [
    "BackdoorSuccess",
    "CentralTwin",
    "Communication",
    "Contribution",
    "LocalAccuracy",
    "LocalCompute",
    "LocalDivergence",
    "RoundObserver",
    "Timeline",
    "UpdateNorms",
    "VirtualTime",
    "pairwise_divergence",
    "relative_distance",
]
