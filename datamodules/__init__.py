"""Data sets, each a FederatedDataModule."""

from datamodules.cifar10 import CIFAR10DataModule
from datamodules.covertype import CovertypeDataModule
from datamodules.digits import DigitsDataModule
from datamodules.eicu import EICUDataModule
from datamodules.tables import TableDataModule

__all__ = ["CIFAR10DataModule", "CovertypeDataModule", "DigitsDataModule", "EICUDataModule", "TableDataModule"]
