"""Data sets, each a FederatedDataModule."""

from datamodules.cifar10 import CIFAR10DataModule
from datamodules.covertype import CovertypeDataModule
from datamodules.digits import DigitsDataModule

__all__ = ["CIFAR10DataModule", "CovertypeDataModule", "DigitsDataModule"]
