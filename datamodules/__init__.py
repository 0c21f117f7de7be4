"""Data sets, each a FederatedDataModule."""

from datamodules.cifar10 import CIFAR10DataModule
from datamodules.digits import DigitsDataModule
from datamodules.dmoz import DMOZDataModule

__all__ = ["CIFAR10DataModule", "DMOZDataModule", "DigitsDataModule"]
