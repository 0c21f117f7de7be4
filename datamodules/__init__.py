"""Data sets, each a FederatedDataModule."""

from datamodules.cifar10 import CIFAR10DataModule
from datamodules.digits import DigitsDataModule
from datamodules.mnist import MNISTDataModule

__all__ = ["CIFAR10DataModule", "DigitsDataModule", "MNISTDataModule"]
