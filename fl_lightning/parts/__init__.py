"""What a federated algorithm is made of: torch and numpy alone, no Lightning."""

from fl_lightning.parts.aggregation import Aggregation, CurrentMean, StaleMean, WeightedMean
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.asynchronous import (
    ArrivalRecord,
    Asynchronous,
    AsynchronousAlgorithm,
    DynamicWeightMean,
    SampledStaleness,
    StalenessMixing,
    StalenessWeightedDeltas,
    VirtualClock,
)
from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.exchange import BufferExchange, Clip, Exchange, PersonalParameters
from fl_lightning.parts.federation import ClientResult, Federation, LocalClient, Task
from fl_lightning.parts.objectives import ControlVariates, Correction, DynamicRegularizer, LocalObjective, Proximal
from fl_lightning.parts.part import Part
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.redistribution import Redistribution
from fl_lightning.parts.running_mean import RunningMean
from fl_lightning.parts.sampling import BernoulliSampler, ClientSampler, ImportanceSampler, UniformSampler
from fl_lightning.parts.schedules import Schedule, Synchronous
from fl_lightning.parts.server import Server
from fl_lightning.parts.server_optimizers import Adaptive, DynamicServer, Mixing, Momentum, ServerOptimizer
from fl_lightning.parts.synchronous import SynchronousAlgorithm
from fl_lightning.parts.traffic import Payload, RoundReport, Traffic

__all__ = [
    "Adaptive",
    "Aggregation",
    "Algorithm",
    "ArrivalRecord",
    "Asynchronous",
    "AsynchronousAlgorithm",
    "BernoulliSampler",
    "BufferExchange",
    "ClientResult",
    "ClientSampler",
    "ClientStates",
    "Clip",
    "ControlVariates",
    "Correction",
    "CurrentMean",
    "DynamicRegularizer",
    "DynamicServer",
    "DynamicWeightMean",
    "Exchange",
    "Federation",
    "ImportanceSampler",
    "LocalClient",
    "LocalObjective",
    "Mixing",
    "Momentum",
    "Part",
    "Participation",
    "Payload",
    "PersonalParameters",
    "Proximal",
    "Redistribution",
    "RoundReport",
    "RunningMean",
    "SampledStaleness",
    "Schedule",
    "Server",
    "ServerOptimizer",
    "StaleMean",
    "StalenessMixing",
    "StalenessWeightedDeltas",
    "Synchronous",
    "SynchronousAlgorithm",
    "Task",
    "Traffic",
    "UniformSampler",
    "VirtualClock",
    "WeightedMean",
]
