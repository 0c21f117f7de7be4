"""Cost of a client's epoch inside ``Trainer.fit`` against the same epoch in a bare PyTorch loop.

A round of 10 clients with 50 batches of 10 through a 784-200-200-10 MLP, with ``self.log(..., prog_bar=True)`` and the
progress bar on. Both sides run in one process, in turn, on one thread; the figure is the median of the paired ratios.

    python benchmarks/overhead.py [--pairs 15] [--progress-bar]
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import FedAvg, TensorDataModule

CLIENTS, BATCHES, BATCH_SIZE = 10, 50, 10


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10))


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = make_network()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.network(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class RoundTimer(L.Callback):
    """Notes the seconds of each round, and runs the other side between two rounds."""

    def __init__(self, bare: Any) -> None:
        self.bare, self.pairs, self.started = bare, [], 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        ours = time.perf_counter() - self.started
        self.pairs.append((ours, self.bare()))


def bare_round(clients: list[tuple[Tensor, Tensor]]) -> Any:
    """Return a function that trains the same round in a plain loop and returns its seconds."""
    network = make_network()
    start = [p.detach().clone() for p in network.parameters()]

    def run() -> float:
        begun = time.perf_counter()
        for x, y in clients:
            with torch.no_grad():
                for parameter, value in zip(network.parameters(), start, strict=True):
                    parameter.copy_(value)
            optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
            order = torch.randperm(len(x))
            for index in order.split(BATCH_SIZE):
                loss = F.cross_entropy(network(x[index]), y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return time.perf_counter() - begun

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=15, help="paired rounds, the first left out")
    parser.add_argument("--progress-bar", action="store_true", help="draw the progress bar, as in a terminal")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    n = BATCHES * BATCH_SIZE
    clients = [(torch.randn(n, 784), torch.randint(0, 10, (n,))) for _ in range(CLIENTS)]
    timer = RoundTimer(bare_round(clients))
    trainer = L.Trainer(
        max_epochs=options.pairs + 1,
        accelerator="cpu",
        callbacks=[FedAvg(clients_per_round=CLIENTS, executor="sequential"), timer],
        enable_progress_bar=options.progress_bar,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(Module(), datamodule=TensorDataModule(clients, batch_size=BATCH_SIZE))
    pairs = timer.pairs[1:]
    ratios = sorted(ours / bare for ours, bare in pairs)
    steps = CLIENTS * BATCHES
    print(f"{'':18}{'median':>10}{'min':>10}{'max':>10}")
    for name, seconds in (("Trainer.fit", [p[0] for p in pairs]), ("bare loop", [p[1] for p in pairs])):
        row = [1e6 * value / steps for value in (statistics.median(seconds), min(seconds), max(seconds))]
        print(f"{name + ', us/step':18}" + "".join(f"{value:10.0f}" for value in row))
    print(f"{'ratio':18}{statistics.median(ratios):10.3f}{ratios[0]:10.3f}{ratios[-1]:10.3f}")


if __name__ == "__main__":
    main()
