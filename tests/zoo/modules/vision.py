"""Networks for images: convolutions, residual and timm-like blocks, a vision transformer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.entry import CLASSES, Entry, images
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


class ConvNeXtBlock(nn.Module):
    """timm's block: depthwise convolution, LayerNorm over channels, layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 8), nn.Linear(8, width)
        self.gamma = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        out = self.gamma * self.narrow(F.gelu(self.wide(out)))
        return x + out.permute(0, 3, 1, 2)


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(2, 8, 3, stride=3)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 8)), nn.Parameter(0.02 * torch.randn(1, 5, 8))
        self.qkv, self.out, self.norm, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        query, key, value = self.qkv(self.norm(x)).reshape(x.shape[0], 5, 3, 2, 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        return self.head((x + self.out(mixed.transpose(1, 2).reshape(x.shape)))[:, 0])


def with_block(block: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES))


class Autoencoder(Classifier):
    """Convolutions down and transposed convolutions up, with Adam."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(2, 4, 2, stride=2))
        self.decoder = nn.ConvTranspose2d(4, 2, 2, stride=2)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, _ = batch
        found = self.decoder(F.relu(self.layers(x)))
        loss = F.binary_cross_entropy_with_logits(found, x.sigmoid())
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


ENTRIES = [
    Entry("small convolutional network", lambda: Classifier(lenet()), images),
    Entry("ResNet block", lambda: Classifier(with_block(BasicBlock(4))), images, tolerance=1e-05),
]
LONG = [
    Entry("ConvNeXt block", lambda: Classifier(with_block(ConvNeXtBlock(4))), images),
    Entry("vision transformer", lambda: Classifier(VisionTransformer()), images),
    Entry("convolutional autoencoder, Adam", Autoencoder, images),
]
