"""Data sets, each a FederatedDataModule."""

from fl_lightning.datamodules.cifar10 import CIFAR10DataModule, CIFAR100DataModule
from fl_lightning.datamodules.covertype import CovertypeDataModule
from fl_lightning.datamodules.digits import DigitsDataModule
from fl_lightning.datamodules.dmoz import DMOZDataModule
from fl_lightning.datamodules.domains import DomainDataModule
from fl_lightning.datamodules.eicu import EICUDataModule
from fl_lightning.datamodules.fed_tcga_brca import FedTCGABRCADataModule
from fl_lightning.datamodules.huggingface import HuggingFaceDataModule
from fl_lightning.datamodules.mnist import (
    EMNISTDataModule,
    FashionMNISTDataModule,
    FedProxMNISTDataModule,
    MNISTDataModule,
)
from fl_lightning.datamodules.shakespeare import ShakespeareDataModule
from fl_lightning.datamodules.synthetic import FedDynSyntheticDataModule, FedProxSyntheticDataModule
from fl_lightning.datamodules.tables import TableDataModule
from fl_lightning.datamodules.text_splits import CropSplit, OrderedSplit
from fl_lightning.datamodules.torch_dataset import TorchDatasetDataModule

__all__ = [
    "CIFAR10DataModule",
    "CIFAR100DataModule",
    "CovertypeDataModule",
    "CropSplit",
    "DMOZDataModule",
    "DigitsDataModule",
    "DomainDataModule",
    "EICUDataModule",
    "EMNISTDataModule",
    "FashionMNISTDataModule",
    "FedDynSyntheticDataModule",
    "FedProxMNISTDataModule",
    "FedProxSyntheticDataModule",
    "FedTCGABRCADataModule",
    "HuggingFaceDataModule",
    "MNISTDataModule",
    "OrderedSplit",
    "ShakespeareDataModule",
    "TableDataModule",
    "TorchDatasetDataModule",
]
