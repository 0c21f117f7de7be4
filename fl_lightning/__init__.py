"""Federated learning with the Lightning Trainer that you already use."""

from importlib import import_module
from typing import TYPE_CHECKING

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.fedasync import FedAsync
from fl_lightning.algorithms.fedavg import FedAvg
from fl_lightning.algorithms.fedbuff import DynamicWeightFedBuff, FedBuff
from fl_lightning.algorithms.feddyn import FedDyn
from fl_lightning.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fl_lightning.algorithms.fedprox import FedProx
from fl_lightning.algorithms.radfed import RADFed
from fl_lightning.algorithms.scaffold import Scaffold
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.callbacks.frozen_prefix_cache import FrozenPrefixCache
from fl_lightning.data import FederatedDataModule, TensorDataModule
from fl_lightning.loop import FederatedLoop

if TYPE_CHECKING:
    from fl_lightning.report import partition_report
else:

    def __getattr__(name: str) -> object:
        # scripts that train need neither reports nor experiments: both are imported on first use
        if name in ("experiment", "report"):
            return import_module(f"{__name__}.{name}")
        if name == "partition_report":
            return import_module(f"{__name__}.report").partition_report
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"

__all__ = [
    "AggregationCallback",
    "ClientMetrics",
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
    "FederatedDataModule",
    "FederatedLoop",
    "FrozenPrefixCache",
    "RADFed",
    "Scaffold",
    "TensorDataModule",
    "partition_report",
]
