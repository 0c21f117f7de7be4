"""The public names of the package."""

from typing import TYPE_CHECKING

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.algorithms.diloco import DiLoCo
from fl_lightning.algorithms.fedasync import FedAsync
from fl_lightning.algorithms.fedavg import FedAvg
from fl_lightning.algorithms.fedbuff import DynamicWeightFedBuff, FedBuff
from fl_lightning.algorithms.feddyn import FedDyn
from fl_lightning.algorithms.federated import Federated
from fl_lightning.algorithms.fedexp import MIFA, FedExP
from fl_lightning.algorithms.fednova import FedNova
from fl_lightning.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fl_lightning.algorithms.fedprox import FedProx
from fl_lightning.algorithms.hierfavg import HierFAVG
from fl_lightning.algorithms.lora import FedLoRA
from fl_lightning.algorithms.losses import MOON, FedDecorr, FedLC, FedNTD, FedProto, FedRoD, FedSAM
from fl_lightning.algorithms.mime import Mime, MimeLite
from fl_lightning.algorithms.personal import (
    APFL,
    IFCA,
    Ditto,
    FedALA,
    FedAvgFineTuned,
    FedBABU,
    FedBN,
    FedPer,
    FedRep,
    LGFedAvg,
    Local,
    PerFedAvg,
    PFedMe,
)
from fl_lightning.algorithms.public_data import FedDF, FedMD
from fl_lightning.algorithms.qfedavg import QFedAvg
from fl_lightning.algorithms.radfed import RADFed
from fl_lightning.algorithms.scaffold import Scaffold
from fl_lightning.algorithms.sub_models import FjORD, HeteroFL
from fl_lightning.algorithms.versions import __version__ as __version__
from fl_lightning.callbacks import (
    ClientMetrics,
    ExamplePrivacy,
    FederatedCheckpoint,
    FrozenPrefixCache,
    client_model,
    load_preprocessing,
)
from fl_lightning.data import (
    ClientDatasetsModule,
    ClientSplit,
    FederatedDataModule,
    SampleSplit,
    TensorDataModule,
    WithinClientSplit,
)
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

if TYPE_CHECKING:  # training needs no reports
    from fl_lightning.report import partition_report

__all__ = [
    "APFL",
    "IFCA",
    "MIFA",
    "MOON",
    "AggregationCallback",
    "BernoulliSampler",
    "ClientDatasetsModule",
    "ClientMetrics",
    "ClientSplit",
    "Clip",
    "DiLoCo",
    "Ditto",
    "DynamicWeightFedBuff",
    "ExamplePrivacy",
    "FedALA",
    "FedAdagrad",
    "FedAdam",
    "FedAsync",
    "FedAvg",
    "FedAvgFineTuned",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedBuff",
    "FedDF",
    "FedDecorr",
    "FedDyn",
    "FedExP",
    "FedLC",
    "FedLoRA",
    "FedMD",
    "FedNTD",
    "FedNova",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedRoD",
    "FedSAM",
    "FedYogi",
    "Federated",
    "FederatedCheckpoint",
    "FederatedDataModule",
    "FederatedLoop",
    "FjORD",
    "FrozenPrefixCache",
    "HeteroFL",
    "HierFAVG",
    "ImportanceSampler",
    "LGFedAvg",
    "Local",
    "Mime",
    "MimeLite",
    "PFedMe",
    "Participation",
    "PerFedAvg",
    "PersonalParameters",
    "Proximal",
    "QFedAvg",
    "RADFed",
    "SampleSplit",
    "Scaffold",
    "TensorDataModule",
    "UniformSampler",
    "VirtualClock",
    "WithinClientSplit",
    "client_model",
    "load_preprocessing",
    "partition_report",
]
