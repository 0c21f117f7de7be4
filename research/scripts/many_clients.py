r"""Memory and time of a round against the number of clients, most of which are not selected.

Each federation runs in a separate process, on one thread; times are those of its processor.

    python research/scripts/many_clients.py                         # 6 samples a client, 50 a round, a 64-32-10 MLP
    python research/scripts/many_clients.py --clients 1000 100000 --samples 10 --per-round 100 --features 784 --hidden
    python research/scripts/many_clients.py --clients 10000 --samples 10 --per-round 1000 --features 784 --hidden \
        --algorithm FedDyn --rounds 40                        # nearly every client keeps a vector
    python research/scripts/many_clients.py --clients 10000 --per-round 10000 --hidden 200 --rounds 0 \
        --algorithm FedPer --evaluate --state-dir /tmp               # each has a head, in a mapped file
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import torch

from fl_lightning import ClientMetrics, FedAvg, FedDyn, FedPer, TensorDataModule
from fl_lightning.models import MLPClassifier


class RoundTimer(L.Callback):
    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.validations: list[float] = []
        self.anonymous = 0.0

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.begun = time.process_time()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # The validation of a round comes before its end, and does not count.
        validation = sum(self.validations[len(self.seconds) :])
        self.seconds.append(time.process_time() - self.begun - validation)
        self.anonymous = max(self.anonymous, anonymous())

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.validation_begun = time.process_time()

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.validations.append(time.process_time() - self.validation_begun)


def anonymous() -> float:
    """Return the memory of this process in MB, without mapped files."""
    status = Path("/proc/self/status").read_text()
    [kilobytes] = re.findall(r"RssAnon:\s+(\d+)", status)
    return int(kilobytes) / 1024


def measure(num_clients: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of a round and the memory in MB: the data, and what the fit added to it."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = torch.randn(num_clients * options.samples, options.features)
    y = torch.randint(0, 10, (num_clients * options.samples,))
    clients = list(zip(x.split(options.samples), y.split(options.samples), strict=True))
    shared: dict[str, Any] = {"clients_per_round": options.per_round, "state_dir": options.state_dir}
    timer = RoundTimer()
    callbacks: list[L.Callback] = [timer]
    if options.algorithm == "FedAvg":
        callbacks.append(FedAvg(**shared))
    elif options.algorithm == "FedDyn":
        callbacks.append(FedDyn(0.01, **shared))
    else:
        output_layer = f"layers.{1 + 2 * len(options.hidden)}"
        callbacks.append(FedPer(output_layer, **shared))
    if options.evaluate:
        callbacks.append(ClientMetrics())
    anonymous_before = anonymous()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer = L.Trainer(
        max_epochs=options.rounds + 1,
        accelerator="cpu",
        callbacks=callbacks,
        num_sanity_val_steps=0,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        logger=False,
    )
    module = MLPClassifier(options.features, options.hidden, 10)
    val = clients if options.evaluate else None
    trainer.fit(module, datamodule=TensorDataModule(clients, val, batch_size=options.samples))
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = timer.seconds[1:] or timer.seconds
    figures = {
        "clients": num_clients,
        "ms a round": 1000 * statistics.median(seconds),
        "min": 1000 * min(seconds),
        "max": 1000 * max(seconds),
        "data MB": (x.nbytes + y.nbytes) / 2**20,
        "fit adds MB": (after - before) / 1024,
        "anonymous": timer.anonymous - anonymous_before,
    }
    if options.evaluate:
        figures["ms to score"] = 1000 * statistics.median(timer.validations)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds; one more is left out, unless 0")
    parser.add_argument("--samples", type=int, default=6, help="of each client, all in one batch")
    parser.add_argument("--per-round", type=int, default=50, help="clients of a round")
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--hidden", type=int, nargs="*", default=[32], help="widths; none: logistic regression")
    parser.add_argument("--algorithm", choices=["FedAvg", "FedDyn", "FedPer"], default="FedAvg")
    parser.add_argument("--state-dir", help="folder of the clients' vectors; without it they are in memory")
    parser.add_argument("--evaluate", action="store_true", help="score each client once a round")
    parser.add_argument("--single", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.single:
        print(json.dumps(measure(options.single, options)))
        return
    for index, number in enumerate(options.clients):
        command = [sys.executable, *sys.argv, "--single", str(number)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        row = json.loads(output.splitlines()[-1])
        if index == 0:
            print("".join(f"{name:>14}" for name in row))
        cells = [f"{value:14,.1f}" if isinstance(value, float) else f"{value:14,}" for value in row.values()]
        print("".join(cells))


if __name__ == "__main__":
    main()
