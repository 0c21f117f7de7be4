"""Data sets, each a FederatedDataModule."""

from datamodules.cifar10 import CIFAR10DataModule, CIFAR100DataModule
from datamodules.covertype import CovertypeDataModule
from datamodules.digits import DigitsDataModule
from datamodules.dmoz import DMOZDataModule
from datamodules.eicu import EICUDataModule
from datamodules.huggingface import HuggingFaceDataModule
from datamodules.mnist import EMNISTDataModule, FashionMNISTDataModule, MNISTDataModule
from datamodules.shakespeare import ShakespeareDataModule
from datamodules.synthetic import FedDynSyntheticDataModule, FedProxSyntheticDataModule
from datamodules.tables import TableDataModule
from datamodules.text_splits import CropSplit, OrderedSplit
from datamodules.torch_dataset import TorchDatasetDataModule

__all__ = [
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "CovertypeDataModule",
    "CropSplit",
    "DMOZDataModule",
    "DigitsDataModule",
    "EICUDataModule",
    "EMNISTDataModule",
    "FashionMNISTDataModule",
    "FedDynSyntheticDataModule",
    "FedProxSyntheticDataModule",
    "HuggingFaceDataModule",
    "MNISTDataModule",
    "OrderedSplit",
    "ShakespeareDataModule",
    "TableDataModule",
    "TorchDatasetDataModule",
]
