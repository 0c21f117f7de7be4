"""Data sets, each a FederatedDataModule."""

from datamodules.cifar10 import CIFAR10DataModule
from datamodules.digits import DigitsDataModule
from datamodules.shakespeare import ShakespeareDataModule
from datamodules.text_splits import CropSplit, OrderedSplit

__all__ = ["CIFAR10DataModule", "CropSplit", "DigitsDataModule", "OrderedSplit", "ShakespeareDataModule"]
