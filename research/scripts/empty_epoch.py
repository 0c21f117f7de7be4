"""The cost of an epoch of Lightning's own loop in which nothing is computed: the least that a round can add.

    OMP_NUM_THREADS=1 python research/scripts/empty_epoch.py [--epochs 300] [--progress-bar]

The module has one parameter, one batch an epoch and no optimizer step of its own; it logs two numbers to a CSV file, as
the workloads do. Counted is the time that the training thread has the processor; the first fifty epochs are left out.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

SKIPPED = 50


class Nothing(L.LightningModule):
    """Logs two numbers, and trains nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.weight = nn.Parameter(torch.zeros(1))
        self.number = torch.zeros(())

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Log two numbers."""
        self.log("train_loss", self.number, on_step=False, on_epoch=True, prog_bar=True, batch_size=1)
        self.log("train_acc", self.number, on_step=False, on_epoch=True, batch_size=1)

    def train_dataloader(self) -> list[Tensor]:
        """Return one batch."""
        return [torch.zeros(1)]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer that is never used."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Clock(L.Callback):
    """Notes when each epoch ends."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note the time: that of the epoch before is complete, with its logs."""
        self.ends.append(time.thread_time())


def main() -> None:
    """Print the milliseconds of an epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=300, help="epochs of the fit (default: %(default)s)")
    parser.add_argument("--progress-bar", action="store_true", help="draw Lightning's progress bar")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=options.epochs,
            accelerator="cpu",
            logger=CSVLogger(folder),
            callbacks=[clock],
            enable_checkpointing=False,
            enable_progress_bar=options.progress_bar,
            enable_model_summary=False,
        )
        trainer.fit(Nothing())
    spans = [1e3 * (after - before) for before, after in zip(clock.ends, clock.ends[1:], strict=False)][SKIPPED:]
    print(f"{statistics.median(spans):.2f} ms an epoch, the median of {len(spans)}")


if __name__ == "__main__":
    main()
