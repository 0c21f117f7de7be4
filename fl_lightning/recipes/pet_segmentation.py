"""Segmentation of pets: one client for each breed, whose pictures are of a size of its own.

    python recipes/pet_segmentation.py                       # a stand-in: drawn discs, some two minutes of CPU
    python recipes/pet_segmentation.py --data-dir data       # Oxford-IIIT Pet, which is downloaded (800 MB)
    python recipes/pet_segmentation.py --methods FedAvg FedBN --rounds 30

Each pixel is pet, background or border. A small U-Net is trained by each method on the clients' own training pictures.
Then each client tests: the table has the intersection over union of all pixels together, the mean over clients, and
that of the worst tenth of the clients. Where a method gives clients models of their own, each tests its own as well.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from fl_lightning import AggregationCallback, ClientMetrics, FedAvg, FedBN, Scaffold, WithinClientSplit
from fl_lightning.command.parser import Parser, ends_by_error
from fl_lightning.data import ImageDataModule, Source
from fl_lightning.metrics import mean_iou

console = Console()
CLASSES = ["pet", "background", "border"]
#: Height and width of the pictures of client 0, 1, 2, 3 and so on, as of cameras that differ.
SIZES = (32, 48, 64)
METHODS: dict[str, Callable[..., AggregationCallback]] = {"FedAvg": FedAvg, "FedBN": FedBN, "Scaffold": Scaffold}

Picture = tuple[Tensor, Tensor]
"""A picture as bytes, shape (3, H, W), and the class of each of its pixels, shape (H, W)."""


class Pictures(Dataset[Picture]):
    """Pictures of several sizes."""

    def __init__(self, pictures: list[Picture]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Picture:
        return self.pictures[index]


class Pets(ImageDataModule):
    """Oxford-IIIT Pet, 7,349 pictures of 37 breeds, which are the clients.

    Args:
        data_dir: Folder that holds ``oxford-iiit-pet``, or into which it is downloaded.
        batch_size: Pictures of a training batch.
    """

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

    def __init__(self, data_dir: Path, batch_size: int = 16) -> None:
        # Pictures of two clients make no batch, since they differ in size.
        super().__init__(batch_size=batch_size, eval_batch_size=1, split=WithinClientSplit(val=0.0, test=0.2))
        self.data_dir = data_dir

    def prepare_data(self) -> None:
        """Download the pictures if they are missing."""
        self._files("trainval", download=True)

    def load(self) -> Source:
        """Read the pictures, and shrink them to the size of their client."""
        pictures = []
        breeds = []
        for part in ("trainval", "test"):
            files = self._files(part, download=False)
            for image, (breed, trimap) in files:
                size = SIZES[breed % len(SIZES)]
                pixels = np.array(image.convert("RGB").resize((size, size)))
                # Nearest: there are no classes between two classes. In the files they are numbered from 1.
                mask = np.array(trimap.resize((size, size), resample=0)).astype(np.int64) - 1
                pictures.append((torch.from_numpy(pixels).permute(2, 0, 1), torch.from_numpy(mask)))
                breeds.append(files.classes[breed])
        return Source(Pictures(pictures), clients=np.array(breeds))

    def _files(self, part: str, download: bool) -> Any:
        # Pictures are all that needs torchvision here.
        from torchvision.datasets import OxfordIIITPet

        return OxfordIIITPet(str(self.data_dir), part, ["category", "segmentation"], download=download)


class Discs(Pets):
    """A stand-in: discs of a colour of the client, before a noisy background.

    Args:
        clients: How many clients there are.
        per_client: How many pictures each of them has.
    """

    def __init__(self, clients: int = 9, per_client: int = 20, batch_size: int = 8) -> None:
        super().__init__(Path(), batch_size)
        self.num_drawn_clients = clients
        self.per_client = per_client

    def prepare_data(self) -> None:
        """Download nothing."""

    def load(self) -> Source:
        """Draw the pictures."""
        generator = torch.Generator().manual_seed(0)
        pictures = []
        clients = []
        for client in range(self.num_drawn_clients):
            size = SIZES[client % len(SIZES)]
            color = torch.rand(3, 1, 1, generator=generator)
            for _ in range(self.per_client):
                pictures.append(_disc(size, color, generator))
                clients.append(client)
        return Source(Pictures(pictures), clients=np.array(clients))


def _disc(size: int, color: Tensor, generator: torch.Generator) -> Picture:
    """Return a picture of a disc, and its pixels' classes."""
    row, column = 0.3 + 0.4 * torch.rand(2, generator=generator)
    radius = 0.15 + 0.15 * torch.rand(1, generator=generator)
    places = (torch.arange(size) + 0.5) / size
    distance = ((places[:, None] - row) ** 2 + (places - column) ** 2).sqrt()
    mask = torch.full((size, size), CLASSES.index("background"))
    mask[distance < radius + 0.04] = CLASSES.index("border")
    mask[distance < radius - 0.04] = CLASSES.index("pet")
    noise = torch.rand(3, size, size, generator=generator)
    share = (1 - 8 * (distance - radius)).clamp(0, 1)
    pixels = 0.3 * noise + 0.7 * share * color
    return (255 * pixels).to(torch.uint8), mask


class UNet(L.LightningModule):
    """A U-Net of two levels.

    Args:
        width: Channels of the first level; the second has twice as many, and the bottom four times as many.
        lr: Learning rate of SGD with momentum.
    """

    def __init__(self, width: int = 8, lr: float = 0.05) -> None:
        super().__init__()
        self.lr = lr
        self.first = _twice(3, width)
        self.second = _twice(width, 2 * width)
        self.bottom = _twice(2 * width, 4 * width)
        self.up_second = _twice(6 * width, 2 * width)
        self.up_first = _twice(3 * width, width)
        self.scores = nn.Conv2d(width, len(CLASSES), kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each pixel's classes, shape (n, 3, H, W)."""
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        up = self.up_second(torch.cat([F.interpolate(bottom, scale_factor=2), second], dim=1))
        up = self.up_first(torch.cat([F.interpolate(up, scale_factor=2), first], dim=1))
        scores: Tensor = self.scores(up)
        return scores

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the cross-entropy of the pixels."""
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def test_step(self, batch: list[Tensor], batch_idx: int) -> dict[str, Tensor]:
        """Log the loss, and return what `ClientMetrics` needs."""
        x, y = batch
        scores = self(x)
        self.log("test_loss", F.cross_entropy(scores, y))
        return {"preds": scores, "target": y}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def _twice(channels: int, width: int) -> nn.Sequential:
    """Return two convolutions with normalisation."""
    layers: list[nn.Module] = []
    for given in (channels, width):
        layers += [nn.Conv2d(given, width, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers)


def run(method: str, data: Pets, options: argparse.Namespace) -> dict[str, float]:
    """Train by a method, and return what the test logs."""
    L.seed_everything(options.seed, verbose=False)
    callback = METHODS[method](clients_per_round=options.share, local_epochs=options.epochs)
    metrics = ClientMetrics(mean_iou, "iou", pooled=True)
    trainer = L.Trainer(
        max_epochs=options.rounds,
        limit_val_batches=0,
        callbacks=[callback, metrics],
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    module = UNet(lr=options.lr)
    trainer.fit(module, datamodule=data)
    [scores] = trainer.test(module, datamodule=data, verbose=False)
    return dict(scores)


def main() -> None:
    """Train by each method, and show the table."""
    parser = Parser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of oxford-iiit-pet; without it discs are drawn")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["FedAvg", "FedBN"], metavar="METHOD")
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--share", type=float, default=1.0, help="clients of a round, a fraction; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a client in a round; default: %(default)s")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    data = Discs() if options.data_dir is None else Pets(options.data_dir)
    table = Table("method", "all pixels", "mean over clients", "worst tenth", "clients' own models")
    for method in options.methods:
        scores = run(method, data, options)
        row = [method]
        for key in ("test_iou_clients_pooled", "test_iou_clients", "test_iou_clients_lowest10", "test_iou_personal"):
            row.append(f"{scores[key]:.1%}" if key in scores else "")
        table.add_row(*row)
    console.print("Intersection over union, mean over the classes:")
    console.print(table)


if __name__ == "__main__":
    with ends_by_error():
        main()
