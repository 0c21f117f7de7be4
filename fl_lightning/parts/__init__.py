"""The parts of federated algorithms. They need only torch and numpy, not Lightning."""

from fl_lightning.parts.aggregations.adapters import AdapterMean, AdapterStack
from fl_lightning.parts.aggregations.base import Aggregation
from fl_lightning.parts.aggregations.distilled import EnsembleDistillation
from fl_lightning.parts.aggregations.extrapolated import ExtrapolatedMean
from fl_lightning.parts.aggregations.fair import FairMean
from fl_lightning.parts.aggregations.holders import HolderMean
from fl_lightning.parts.aggregations.means import CurrentMean, MeanAggregation, RunningMean, StaleMean, WeightedMean
from fl_lightning.parts.aggregations.normalized import NormalizedMean
from fl_lightning.parts.aggregations.remembered import RememberedUpdates
from fl_lightning.parts.aggregations.robust import (
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
from fl_lightning.parts.aggregations.stale import DynamicWeightMean, StalenessMixing, StalenessWeightedDeltas
from fl_lightning.parts.aggregations.staleness import constant, exponential, hinge, polynomial
from fl_lightning.parts.algorithm import Algorithm
from fl_lightning.parts.client_vectors import ClientVectors
from fl_lightning.parts.clock import VirtualClock
from fl_lightning.parts.exchanges.attacks import (
    ALittleIsEnough,
    Attack,
    Collusion,
    GaussianAttack,
    InnerProductManipulation,
    LocalAttack,
    Mimic,
    SignFlipping,
)
from fl_lightning.parts.exchanges.base import Exchange
from fl_lightning.parts.exchanges.buffers import BufferExchange
from fl_lightning.parts.exchanges.clip import Clip
from fl_lightning.parts.exchanges.compression import QSGD, Compressor, LowRank, RandomK, SignSGD, TopK
from fl_lightning.parts.exchanges.partial import AdapterRanks, PartialModel, Span
from fl_lightning.parts.exchanges.personal import PersonalParameters
from fl_lightning.parts.exchanges.privacy.client_level import DifferentialPrivacy
from fl_lightning.parts.exchanges.privacy.local import LocalDifferentialPrivacy
from fl_lightning.parts.exchanges.privacy.secure import SecureAggregation
from fl_lightning.parts.exchanges.stacks import StackMessages
from fl_lightning.parts.exchanges.sub_models import SubModels
from fl_lightning.parts.federation import Federation, ForwardPass, LocalClient
from fl_lightning.parts.layout import Layout
from fl_lightning.parts.links import SharedLink
from fl_lightning.parts.messages import (
    ArrivalRecord,
    ClientResult,
    Payload,
    RoundReport,
    Task,
    Traffic,
    Upload,
    further_tasks,
)
from fl_lightning.parts.objectives.base import LocalObjective
from fl_lightning.parts.objectives.control_variates import ControlVariates
from fl_lightning.parts.objectives.corrections import ChangedLoss, Correction, Passes, Term, Walk
from fl_lightning.parts.objectives.dynamic import DynamicRegularizer
from fl_lightning.parts.objectives.frozen import Frozen
from fl_lightning.parts.objectives.held import HeldGradients, OrderedDropout
from fl_lightning.parts.objectives.losses import (
    CalibratedLogits,
    Decorrelation,
    ModelContrast,
    NotTrueDistillation,
    Prototypes,
    TwoHeads,
)
from fl_lightning.parts.objectives.measured import MeasuredLoss
from fl_lightning.parts.objectives.proximal import Proximal
from fl_lightning.parts.objectives.several_points import MetaLearning, ModelMixture, MoreauEnvelope, SharpnessAware
from fl_lightning.parts.objectives.shared_momentum import SharedMomentum
from fl_lightning.parts.part import Part
from fl_lightning.parts.round import Round
from fl_lightning.parts.run import Run
from fl_lightning.parts.samplers.base import ClientSampler
from fl_lightning.parts.samplers.groups import GroupSampler
from fl_lightning.parts.samplers.importance import ImportanceSampler
from fl_lightning.parts.samplers.participation import Participation
from fl_lightning.parts.samplers.selection import ActiveSampler, Oort, PowerOfChoice, TierSampler
from fl_lightning.parts.samplers.uniform import BernoulliSampler, UniformSampler
from fl_lightning.parts.schedules.asynchronous import Asynchronous
from fl_lightning.parts.schedules.base import Schedule
from fl_lightning.parts.schedules.calibration import PAPER_STALENESS, calibrate_staleness
from fl_lightning.parts.schedules.clusters import Clusters
from fl_lightning.parts.schedules.consensus import PublicConsensus
from fl_lightning.parts.schedules.gradient_first import GradientFirst
from fl_lightning.parts.schedules.hierarchical import Hierarchical
from fl_lightning.parts.schedules.own_models import AdaptiveStart, FineTuning, ProximalModels
from fl_lightning.parts.schedules.personal_first import PersonalFirst
from fl_lightning.parts.schedules.redistribution import Redistribution
from fl_lightning.parts.schedules.sampled_staleness import SampledStaleness
from fl_lightning.parts.schedules.synchronous import ClientAverage, Synchronous
from fl_lightning.parts.server import Server
from fl_lightning.parts.servers.adaptive import Adaptive
from fl_lightning.parts.servers.base import ServerOptimizer
from fl_lightning.parts.servers.dynamic import DynamicServer
from fl_lightning.parts.servers.mixing import Mixing, Momentum
from fl_lightning.parts.servers.torch import TorchServer

__all__ = [
    "PAPER_STALENESS",
    "QSGD",
    "ALittleIsEnough",
    "ActiveSampler",
    "AdapterMean",
    "AdapterRanks",
    "AdapterStack",
    "Adaptive",
    "AdaptiveStart",
    "Aggregation",
    "Algorithm",
    "ArrivalRecord",
    "Asynchronous",
    "Attack",
    "BernoulliSampler",
    "Bucketing",
    "BufferExchange",
    "CalibratedLogits",
    "CenteredClipping",
    "ChangedLoss",
    "ClientAverage",
    "ClientResult",
    "ClientSampler",
    "ClientVectors",
    "Clip",
    "Clusters",
    "Collusion",
    "Compressor",
    "ControlVariates",
    "Correction",
    "CurrentMean",
    "Decorrelation",
    "DifferentialPrivacy",
    "DynamicRegularizer",
    "DynamicServer",
    "DynamicWeightMean",
    "EnsembleDistillation",
    "Exchange",
    "ExtrapolatedMean",
    "FairMean",
    "Federation",
    "FineTuning",
    "ForwardPass",
    "Frozen",
    "GaussianAttack",
    "GeometricMedian",
    "GradientFirst",
    "GroupSampler",
    "HeldGradients",
    "Hierarchical",
    "HolderMean",
    "ImportanceSampler",
    "InnerProductManipulation",
    "Krum",
    "Layout",
    "LocalAttack",
    "LocalClient",
    "LocalDifferentialPrivacy",
    "LocalObjective",
    "LowRank",
    "MeanAggregation",
    "MeasuredLoss",
    "Median",
    "MetaLearning",
    "Mimic",
    "Mixing",
    "ModelContrast",
    "ModelMixture",
    "Momentum",
    "MoreauEnvelope",
    "NearestNeighborMixing",
    "NormBounding",
    "NormalizedMean",
    "NotTrueDistillation",
    "Oort",
    "OrderedDropout",
    "Part",
    "PartialModel",
    "Participation",
    "Passes",
    "Payload",
    "PersonalFirst",
    "PersonalParameters",
    "PowerOfChoice",
    "PreAggregation",
    "Prototypes",
    "Proximal",
    "ProximalModels",
    "PublicConsensus",
    "RandomK",
    "Redistribution",
    "RememberedUpdates",
    "RobustAggregation",
    "Round",
    "RoundReport",
    "Run",
    "RunningMean",
    "SampledStaleness",
    "Schedule",
    "SecureAggregation",
    "Server",
    "ServerOptimizer",
    "SharedLink",
    "SharedMomentum",
    "SharpnessAware",
    "SignFlipping",
    "SignSGD",
    "Span",
    "StackMessages",
    "StaleMean",
    "StalenessMixing",
    "StalenessWeightedDeltas",
    "SubModels",
    "Synchronous",
    "Task",
    "Term",
    "TierSampler",
    "TopK",
    "TorchServer",
    "Traffic",
    "TrimmedMean",
    "TwoHeads",
    "UniformSampler",
    "Updates",
    "Upload",
    "VirtualClock",
    "Walk",
    "WeightedMean",
    "calibrate_staleness",
    "constant",
    "exponential",
    "further_tasks",
    "hinge",
    "polynomial",
]
