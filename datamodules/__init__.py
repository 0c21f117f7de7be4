"""Data sets, each a FederatedDataModule."""

from datamodules.cifar10 import CIFAR10DataModule
from datamodules.covertype import CovertypeDataModule
from datamodules.digits import DigitsDataModule
from datamodules.eicu import EICUDataModule
from datamodules.huggingface import HuggingFaceDataModule
from datamodules.synthetic import FedDynSyntheticDataModule, FedProxSyntheticDataModule
from datamodules.tables import TableDataModule
from datamodules.torch_dataset import TorchDatasetDataModule

__all__ = [
    "CIFAR10DataModule",
    "CovertypeDataModule",
    "DigitsDataModule",
    "EICUDataModule",
    "FedDynSyntheticDataModule",
    "FedProxSyntheticDataModule",
    "HuggingFaceDataModule",
    "TableDataModule",
    "TorchDatasetDataModule",
]
