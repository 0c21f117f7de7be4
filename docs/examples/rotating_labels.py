"""Labels that rotate: the samples are there once for each label that they may have."""

import torch
from torch import Tensor

from fl_lightning import TensorDataModule
from fl_lightning.data import Changes


class LabelRotation(Changes):
    """In stage s a sample of class y has the label (y + s) mod C. Clients have C copies of their samples in a row."""

    def __init__(self, every, classes):
        self.every = every
        self.classes = classes

    def samples(self, stage, clients, labels):
        copies = [held.reshape(self.classes, -1) for held in clients]
        return [held[stage % self.classes] for held in copies]


def with_rotated_labels(x: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return the samples C times, the s-th time with the labels (y + s) mod C."""
    labels = [(y + shift) % classes for shift in range(classes)]
    return torch.cat([x] * classes), torch.cat(labels)


def rotating(clients: list[tuple[Tensor, Tensor]], every: int, classes: int, **options) -> TensorDataModule:
    """Return clients whose labels rotate after so many rounds."""
    copies = [with_rotated_labels(x, y, classes) for x, y in clients]
    return TensorDataModule(copies, changes=LabelRotation(every, classes), **options)
