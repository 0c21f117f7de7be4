"""Federated learning with the Lightning Trainer that you already use."""

from typing import Any

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.fedasync import FedAsync
from fl_lightning.algorithms.fedavg import FedAvg
from fl_lightning.algorithms.fedbuff import DynamicWeightFedBuff, FedBuff
from fl_lightning.algorithms.feddyn import FedDyn
from fl_lightning.algorithms.federated import Federated
from fl_lightning.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fl_lightning.algorithms.fedprox import FedProx
from fl_lightning.algorithms.radfed import RADFed
from fl_lightning.algorithms.scaffold import Scaffold
from fl_lightning.callbacks import ClientMetrics, FederatedCheckpoint, FrozenPrefixCache
from fl_lightning.data import FederatedDataModule, TensorDataModule
from fl_lightning.loop import FederatedLoop
from fl_lightning.parts import (
    BernoulliSampler,
    Clip,
    ImportanceSampler,
    Participation,
    PersonalParameters,
    Proximal,
    UniformSampler,
    VirtualClock,
)

__version__ = "0.1.0"

__all__ = [
    "AggregationCallback",
    "BernoulliSampler",
    "ClientMetrics",
    "Clip",
    "DynamicWeightFedBuff",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgM",
    "FedBuff",
    "FedDyn",
    "FedProx",
    "FedYogi",
    "Federated",
    "FederatedCheckpoint",
    "FederatedDataModule",
    "FederatedLoop",
    "FrozenPrefixCache",
    "ImportanceSampler",
    "Participation",
    "PersonalParameters",
    "Proximal",
    "RADFed",
    "Scaffold",
    "TensorDataModule",
    "UniformSampler",
    "VirtualClock",
    "partition_report",
]


def __getattr__(name: str) -> Any:
    """Import reports when they are used first: they need much that training does not."""
    if name == "partition_report":
        from fl_lightning.report import partition_report

        return partition_report
    raise AttributeError(f"module 'fl_lightning' has no attribute {name!r}")
