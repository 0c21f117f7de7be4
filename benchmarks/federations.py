"""The workloads of the benchmarks: federations of random data, their networks and their algorithms."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Clients = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Workload:
    """A federation, a round and a network.

    Attributes:
        clients: Clients K.
        samples: Samples of a client.
        per_round: Clients of a round.
        batch_size: Samples of a batch.
        shape: Shape of an input.
        classes: Number of classes.
        lr: Learning rate.
        characters: Number of input characters; 0 for inputs of real numbers.
        sigma: Standard deviation of the logarithm of clients' numbers of samples, whose mean is ``samples``; 0 for
            equal clients.
        hidden: Widths of a perceptron's hidden layers; none of a logistic regression.
        optimizer: Name of the class in ``torch.optim``.
        epochs: Passes over a client's samples in a round.
    """

    clients: int
    samples: int
    per_round: int
    batch_size: int
    shape: tuple[int, ...]
    classes: int = 10
    lr: float = 0.05
    characters: int = 0
    sigma: float = 0.0
    hidden: tuple[int, ...] = (200, 200)
    optimizer: str = "SGD"
    epochs: int = 1

    def sizes(self) -> list[int]:
        """Return the clients' numbers of samples."""
        if not self.sigma:
            return [self.samples] * self.clients
        draws = np.random.default_rng(0).lognormal(0.0, self.sigma, self.clients)
        sizes = np.rint(self.samples * draws / draws.mean()).astype(int)
        return [max(1, int(size)) for size in sizes]


WORKLOADS = {
    "W1": Workload(100, 600, 10, 10, (784,)),
    "W2": Workload(1000, 60, 50, 10, (784,), hidden=()),
    "W3": Workload(100, 500, 10, 32, (3, 32, 32)),
    "W4": Workload(100, 100, 10, 10, (80,), 80, 0.5, 80),
    "W5": Workload(100, 200, 6, 16, (160, 3, 3)),
    "W6": Workload(100, 600, 10, 10, (784,)),
    "W7": Workload(60, 3000, 6, 256, (49,), 2, 0.2, sigma=0.9, hidden=(64, 64)),
    "H1": Workload(120, 300, 16, 20, (784,), sigma=0.7, hidden=(128, 64)),
    "H2": Workload(2000, 40, 40, 8, (60,), sigma=0.7, hidden=()),
    "M1": Workload(100, 600, 10, 10, (784,)),
    "D1": Workload(200, 60, 20, 10, (60,), lr=1e-3, sigma=0.7, optimizer="Adam"),
    "N1": Workload(200, 60, 20, 10, (60,), lr=1e-3, sigma=0.7, optimizer="AdamW"),
    "H3": Workload(100, 60, 100, 10, (784,), lr=1e-3, sigma=1.0, hidden=(128,), optimizer="Adam"),
    "F1": Workload(100, 600, 50, 100, (784,), epochs=5),
    "P1": Workload(1000, 50, 50, 10, (3, 32, 32), lr=0.1),
    "B1": Workload(100, 500, 100, 50, (3, 32, 32), lr=0.1, epochs=5),
}
#: Measured pairs, and how many rounds each side of a pair has where one round is too short to be timed alone.
ROUNDS = {"W1": 15, "W2": 10, "W3": 5, "W4": 3, "W5": 7, "W6": 15, "W7": 40, "H1": 30, "H2": 20, "M1": 10}
ROUNDS |= {"D1": 10, "N1": 10, "H3": 10, "F1": 3, "P1": 3, "B1": 3}
BLOCKS = {"W2": 10, "H2": 10}


def make_clients(work: Workload) -> Clients:
    """Return clients whose classes are those of a random linear map, so that accuracy means something."""
    generator = torch.Generator().manual_seed(0)
    sizes = work.sizes()
    number = sum(sizes)
    if work.characters:
        x = torch.randint(work.characters, (number, *work.shape), generator=generator)
        y = x[:, -1]
    else:
        x = torch.randn(number, *work.shape, generator=generator)
        teacher = torch.randn(work.classes, x[0].numel(), generator=generator)
        scores = [part.flatten(1) @ teacher.T for part in x.split(5000)]
        y = torch.cat(scores).argmax(1)
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def make_network(name: str) -> nn.Module:
    """Return the network of a workload."""
    torch.manual_seed(0)
    work = WORKLOADS[name]
    if name in LAYERS:
        return LAYERS[name]()
    widths = (work.shape[0], *work.hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    logits = nn.Linear(widths[-1], work.classes)
    if not work.hidden:
        for parameter in logits.parameters():
            nn.init.zeros_(parameter)
    return nn.Sequential(*layers, logits)


def make_module(name: str, lr: float, loss_alone: bool = False) -> Any:
    """Return the LightningModule of a workload's network; that of W4 is the library's own LSTM.

    Args:
        name: The workload.
        lr: The learning rate.
        loss_alone: Whether it computes no accuracy in its training step, and logs the loss alone.
    """
    from torchmetrics.classification import MulticlassAccuracy

    from fl_lightning.models import CharLSTM, Classifier

    work = WORKLOADS[name]

    class Network(Classifier):
        def __init__(self) -> None:
            super().__init__(work.classes, lr)
            self.layers = make_network(name)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.layers(x)
            return logits

        def configure_optimizers(self) -> Any:
            return getattr(torch.optim, work.optimizer)(self.parameters(), lr=lr)

    class Counting(Network):
        """Has a metric object in its training step, as Lightning's documentation has it."""

        def __init__(self) -> None:
            super().__init__()
            self.train_accuracy = MulticlassAccuracy(10, average="micro")

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            output = self(x)
            loss = nn.functional.cross_entropy(output, y)
            self.train_accuracy(output, y)
            self.log("train_loss", loss)
            self.log("train_acc", self.train_accuracy, on_step=False, on_epoch=True)
            return loss

    class LossAlone(Network):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            loss = nn.functional.cross_entropy(self(x), y)
            self.log("train_loss", loss)
            return loss

    torch.manual_seed(0)
    if name == "W4":
        return CharLSTM(lr=lr)
    if loss_alone:
        return LossAlone()
    return Counting() if name == "M1" else Network()


class PlainLSTM(nn.Module):
    """8-d embedding, 2x256 LSTM, dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.lstm = nn.LSTM(8, 256, 2, batch_first=True)
        self.logits = nn.Linear(256, 80)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        logits: Tensor = self.logits(states[:, -1])
        return logits


def convolutions() -> nn.Sequential:
    """Return two convolutions and a dense layer, for images of 3x32x32."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1600, 10),
    )


def tail() -> nn.Sequential:
    """Return MobileNetV2's last bottleneck, its last convolution and the classifier, for features of 160x3x3."""
    return nn.Sequential(
        nn.Conv2d(160, 960, 1, bias=False),
        nn.BatchNorm2d(960),
        nn.ReLU6(),
        nn.Conv2d(960, 960, 3, padding=1, groups=960, bias=False),
        nn.BatchNorm2d(960),
        nn.ReLU6(),
        nn.Conv2d(960, 320, 1, bias=False),
        nn.BatchNorm2d(320),
        nn.Conv2d(320, 1280, 1, bias=False),
        nn.BatchNorm2d(1280),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 10),
    )


def with_dropout() -> nn.Sequential:
    """Return a perceptron with dropout, 60-64-10."""
    return nn.Sequential(
        nn.Linear(60, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


def normalised_with_dropout() -> nn.Sequential:
    """Return a perceptron with layer normalisation and dropout, 784-128-10."""
    return nn.Sequential(
        nn.Linear(784, 128),
        nn.LayerNorm(128),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(128, 10),
    )


def normalised() -> nn.Sequential:
    """Return a perceptron with layer normalisation, 60-64-64-10."""
    return nn.Sequential(
        nn.Linear(60, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.LayerNorm(64),
        nn.GELU(),
        nn.Linear(64, 10),
    )


def of_pfl() -> nn.Sequential:
    """Return the network of pfl-research's benchmark on CIFAR-10 (its `simple_cnn`, Glorot's uniform weights)."""
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),
    )
    for layer in network:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return network


def of_blazefl() -> nn.Sequential:
    """Return the network of BlazeFL's benchmark on CIFAR-10: convolutions of 6 and 16 channels, dense layers."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


#: By the workload; the others are perceptrons.
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "W3": convolutions,
    "W4": PlainLSTM,
    "W5": tail,
    "D1": with_dropout,
    "N1": normalised,
    "H3": normalised_with_dropout,
    "P1": of_pfl,
    "B1": of_blazefl,
}


class ByHand(ABC):
    """Rounds of a workload by hand, without the library.

    Args:
        name: The workload.
        clients: The clients' samples.
        clock: Tells the time; for a GPU it waits for the device.
        work: Another round than that of the workload's name.
        device: Where the network and the samples are.
    """

    def __init__(
        self,
        name: str,
        clients: Clients,
        clock: Callable[[], float] = time.perf_counter,
        work: Workload | None = None,
        device: str = "cpu",
    ) -> None:
        self.work = work or WORKLOADS[name]
        self._clock = clock
        self.device = device
        self.clients = [(x.to(device), y.to(device)) for x, y in clients]
        self.generator = torch.Generator().manual_seed(1)
        self._prepare(name)

    def draw(self) -> list[int]:
        """Draw the clients of a round."""
        order = torch.randperm(len(self.clients), generator=self.generator)
        return order[: self.work.per_round].tolist()

    def num_batches(self, client: int) -> int:
        """Return the number of batches of a client's epoch."""
        _, y = self.clients[client]
        return math.ceil(len(y) / self.work.batch_size)

    @abstractmethod
    def _prepare(self, name: str) -> None:
        """Make the network."""

    @abstractmethod
    def round(self, drawn: Sequence[int] = ()) -> float:
        """Train a round of some clients, or of drawn ones, and return its seconds."""


class RememberedDraws:
    """Draws clients and keeps those of each round, so that others can train the same."""

    def __init__(self, draw: Callable[..., np.ndarray]) -> None:
        self._draw = draw
        self.rounds: list[list[int]] = []

    def __call__(self, *args: Any) -> np.ndarray:
        clients = self._draw(*args)
        self.rounds.append(clients.tolist())
        return clients


def make_algorithm(name: str, work: Workload, executor: str) -> Any:
    """Return the aggregation callback of a workload."""
    from fl_lightning import FedAvg, FedDyn, RADFed
    from fl_lightning.parts import UniformSampler

    sampler = UniformSampler(work.per_round)
    # A user-defined sampler would be seeded at each call, which takes time.
    sampler.draw = RememberedDraws(sampler.draw)  # type: ignore[method-assign, assignment]
    options: dict[str, Any] = {"sampler": sampler, "executor": executor, "seed": 1, "local_epochs": work.epochs}
    if name == "W5":
        return RADFed(15, **options)
    if name == "W6":
        return FedDyn(0.01, **options)
    return FedAvg(**options)
