"""What a federated algorithm is made of: torch and numpy alone, no Lightning."""

from fl_lightning.parts.aggregation import Aggregation, CurrentMean, StaleMean, WeightedMean
from fl_lightning.parts.objectives import ControlVariates, Correction, DynamicRegularizer, LocalObjective, Proximal
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.redistribution import Redistribution
from fl_lightning.parts.sampling import BernoulliSampler, ClientSampler, ImportanceSampler, UniformSampler
from fl_lightning.parts.schedules import Schedule, Synchronous
from fl_lightning.parts.server_optimizers import Adaptive, DynamicServer, Mixing, Momentum, ServerOptimizer

__all__ = [
    "Adaptive",
    "Aggregation",
    "BernoulliSampler",
    "ClientSampler",
    "ControlVariates",
    "Correction",
    "CurrentMean",
    "DynamicRegularizer",
    "DynamicServer",
    "ImportanceSampler",
    "LocalObjective",
    "Mixing",
    "Momentum",
    "Participation",
    "Proximal",
    "Redistribution",
    "Schedule",
    "ServerOptimizer",
    "StaleMean",
    "Synchronous",
    "UniformSampler",
    "WeightedMean",
]
