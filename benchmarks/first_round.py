"""The cost of the trial of stacks: a fit's first round against its later ones.

    python benchmarks/first_round.py [--workloads W1 W2] [--fits 5]

In the first round some clients train one after the other, in earnest, and once more as a stack on a copy. Counted is
the time that the training thread has the processor. The first fit of the process is left out, since it also loads code.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings

import lightning as L
import torch
from federations import WORKLOADS, Clients, make_algorithm, make_clients, make_module
from lightning.pytorch.loggers import CSVLogger

from fl_lightning import TensorDataModule

ROUNDS = 8


class RoundTimer(L.Callback):
    """Notes each round's seconds, from one round's end to the next one's."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._begun = time.thread_time()

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.seconds.append(time.thread_time() - self._begun)
        self._begun = time.thread_time()


def fit(name: str, clients: Clients, executor: str) -> tuple[float, float]:
    """Return the seconds of a fit's first round, and of a later one."""
    work, timer = WORKLOADS[name], RoundTimer()
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=ROUNDS,
            accelerator="cpu",
            callbacks=[make_algorithm(name, work, executor), timer],
            logger=CSVLogger(folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(make_module(name, work.lr), datamodule=TensorDataModule(clients, batch_size=work.batch_size))
    return timer.seconds[0], statistics.median(timer.seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--workloads", nargs="+", default=["W1", "W2"], choices=list(WORKLOADS))
    parser.add_argument("--fits", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print(f"{'':4}{'executor':12}{'first, ms':>11}{'later, ms':>11}{'more, ms':>10}{'in rounds':>11}")
    for name in options.workloads:
        clients = make_clients(WORKLOADS[name])
        for executor in ("sequential", "vectorized", "auto"):
            rows = [fit(name, clients, executor) for _ in range(options.fits + 1)][1:]
            first, later = (1e3 * statistics.median(values) for values in zip(*rows, strict=True))
            figures = f"{first:11.1f}{later:11.1f}{first - later:10.1f}{first / later - 1:11.1f}"
            print(f"{name:4}{executor:12}{figures}", flush=True)


if __name__ == "__main__":
    main()
