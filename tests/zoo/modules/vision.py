"""Networks for images."""

from __future__ import annotations

from torch import Tensor, nn

from zoo.entry import CLASSES, UNEQUAL, Entry, images
from zoo.modules.base import Classifier


def lenet() -> nn.Module:
    features = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(36, CLASSES))


class BasicBlock(nn.Module):
    """ResNet's block, with its in-place ReLUs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))
        out += x
        return self.relu(out)


def resnet() -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))
    return nn.Sequential(nn.Conv2d(2, 4, 3), BasicBlock(4), *head)


ENTRIES = [Entry("ResNet block", lambda: Classifier(resnet()), images, sizes=UNEQUAL, tolerance=1e-05, long=True)]
LONG = [Entry("small convolutional network", lambda: Classifier(lenet()), images)]
