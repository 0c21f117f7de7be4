"""Data of many clients: reading, splitting, standardising and batching."""

from fl_lightning.data.batches import client_batches, make_loader
from fl_lightning.data.changes import Changes, ClassArrival, ClientRotation
from fl_lightning.data.client_datasets import ClientDatasetsModule, TensorDataModule
from fl_lightning.data.datamodule import FederatedDataModule
from fl_lightning.data.federated_split import FederatedSplit, Split
from fl_lightning.data.images import ImageDataModule
from fl_lightning.data.inputs import apply_statistics, fit_statistics
from fl_lightning.data.poisoning import Backdoor, LabelFlipping, Poison
from fl_lightning.data.preprocessing import Preprocessing
from fl_lightning.data.source import Source
from fl_lightning.data.splits import ClientSplit, SampleSplit, WithinClientSplit
from fl_lightning.data.targets import find_targets
from fl_lightning.partitioners.base import PartitionFunction

__all__ = [
    "Backdoor",
    "Changes",
    "ClassArrival",
    "ClientDatasetsModule",
    "ClientRotation",
    "ClientSplit",
    "FederatedDataModule",
    "FederatedSplit",
    "ImageDataModule",
    "LabelFlipping",
    "PartitionFunction",
    "Poison",
    "Preprocessing",
    "SampleSplit",
    "Source",
    "Split",
    "TensorDataModule",
    "WithinClientSplit",
    "apply_statistics",
    "client_batches",
    "find_targets",
    "fit_statistics",
    "make_loader",
]
