"""Memory and time of a round against the number of clients, most of which are not selected.

Clients of 6 samples, 50 a round, a 64-32-10 MLP. Each federation runs in a process of its own.

    python benchmarks/many_clients.py [--clients 100 1000 10000] [--rounds 20]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings

import lightning as L
import torch

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.models import MLPClassifier

SAMPLES, PER_ROUND = 6, 50


class RoundTimer(L.Callback):
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begun = time.perf_counter()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds.append(time.perf_counter() - self.begun)


def measure(num_clients: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of a round and the memory in MB: the data, and what the fit added to it."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(num_clients * SAMPLES, 64), torch.randint(0, 10, (num_clients * SAMPLES,))
    clients = list(zip(x.split(SAMPLES), y.split(SAMPLES), strict=True))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    timer = RoundTimer()
    trainer = L.Trainer(
        max_epochs=rounds + 1,
        accelerator="cpu",
        callbacks=[FedAvg(PER_ROUND), timer],
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(MLPClassifier(64, (32,), 10), datamodule=TensorDataModule(clients, batch_size=SAMPLES))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = timer.seconds[1:]
    return {
        "clients": num_clients,
        "ms a round": 1000 * statistics.median(seconds),
        "min": 1000 * min(seconds),
        "max": 1000 * max(seconds),
        "data MB": (x.nbytes + y.nbytes) / 2**20,
        "fit adds MB": (after - before) / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds; one more is left out")
    parser.add_argument("--single", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.single:
        print(json.dumps(measure(options.clients[0], options.rounds)))
        return
    for index, number in enumerate(options.clients):
        command = [sys.executable, __file__, "--single", "--clients", str(number), "--rounds", str(options.rounds)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(output.splitlines()[-1])
        if index == 0:
            print("".join(f"{name:>14}" for name in row))
        print("".join(f"{value:14,.1f}" if isinstance(value, float) else f"{value:14,}" for value in row.values()))


if __name__ == "__main__":
    main()
