"""The parts of federated algorithms. They need only torch and numpy, not Lightning."""

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
from fl_lightning.parts.attacks import (
    ALittleIsEnough,
    Attack,
    Collusion,
    GaussianAttack,
    InnerProductManipulation,
    LocalAttack,
    Mimic,
    SignFlipping,
)
from fl_lightning.parts.client_states import ClientStates
from fl_lightning.parts.exchange import (
    QSGD,
    BufferExchange,
    Clip,
    Compressor,
    Exchange,
    LowRank,
    PersonalParameters,
    RandomK,
    SecureAggregation,
    SignSGD,
    TopK,
)
from fl_lightning.parts.fair_mean import FairMean, MeasuredLoss
from fl_lightning.parts.federation import ClientResult, Federation, LocalClient, Task
from fl_lightning.parts.normalized_mean import NormalizedMean
from fl_lightning.parts.objectives import ControlVariates, Correction, DynamicRegularizer, LocalObjective, Proximal
from fl_lightning.parts.part import Part
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.privacy import DifferentialPrivacy, LocalDifferentialPrivacy
from fl_lightning.parts.redistribution import Redistribution
from fl_lightning.parts.robust import (
    Bucketing,
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    NearestNeighborMixing,
    NormBounding,
    PreAggregation,
    RobustAggregation,
    TrimmedMean,
    Updates,
)
from fl_lightning.parts.running_mean import RunningMean
from fl_lightning.parts.sampling import BernoulliSampler, ClientSampler, ImportanceSampler, UniformSampler
from fl_lightning.parts.schedules import BaseSchedule, Schedule, Synchronous
from fl_lightning.parts.server import Server
from fl_lightning.parts.server_optimizers import Adaptive, DynamicServer, Mixing, Momentum, ServerOptimizer
from fl_lightning.parts.synchronous import SynchronousAlgorithm
from fl_lightning.parts.traffic import Payload, RoundReport, Traffic

__all__ = [
    "QSGD",
    "ALittleIsEnough",
    "Adaptive",
    "Aggregation",
    "Algorithm",
    "ArrivalRecord",
    "Asynchronous",
    "AsynchronousAlgorithm",
    "Attack",
    "BaseSchedule",
    "BernoulliSampler",
    "Bucketing",
    "BufferExchange",
    "CenteredClipping",
    "ClientResult",
    "ClientSampler",
    "ClientStates",
    "Clip",
    "Collusion",
    "Compressor",
    "ControlVariates",
    "Correction",
    "CurrentMean",
    "DifferentialPrivacy",
    "DynamicRegularizer",
    "DynamicServer",
    "DynamicWeightMean",
    "Exchange",
    "FairMean",
    "Federation",
    "GaussianAttack",
    "GeometricMedian",
    "ImportanceSampler",
    "InnerProductManipulation",
    "Krum",
    "LocalAttack",
    "LocalClient",
    "LocalDifferentialPrivacy",
    "LocalObjective",
    "LowRank",
    "MeasuredLoss",
    "Median",
    "Mimic",
    "Mixing",
    "Momentum",
    "NearestNeighborMixing",
    "NormBounding",
    "NormalizedMean",
    "Part",
    "Participation",
    "Payload",
    "PersonalParameters",
    "PreAggregation",
    "Proximal",
    "RandomK",
    "Redistribution",
    "RobustAggregation",
    "RoundReport",
    "RunningMean",
    "SampledStaleness",
    "Schedule",
    "SecureAggregation",
    "Server",
    "ServerOptimizer",
    "SignFlipping",
    "SignSGD",
    "StaleMean",
    "StalenessMixing",
    "StalenessWeightedDeltas",
    "Synchronous",
    "SynchronousAlgorithm",
    "Task",
    "TopK",
    "Traffic",
    "TrimmedMean",
    "UniformSampler",
    "Updates",
    "VirtualClock",
    "WeightedMean",
]
