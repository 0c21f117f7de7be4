"""What a safe checkpoint costs: flushing to the disk and checksums, as a share of a round with a 10-MB model.

python research/scripts/checkpoint_cost.py --folder /tmp/checkpoints
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch

import fl_lightning.callbacks.checkpoint
import fl_lightning.files
from fl_lightning import FedAvg, FederatedCheckpoint, TensorDataModule
from fl_lightning.models import MLPClassifier

CLIENTS = 10
SAMPLES = 320
BATCH = 32


class Stopwatch:
    """Sums up the seconds that functions of a module take."""

    def __init__(self, module: Any, *names: str) -> None:
        self.seconds = dict.fromkeys(names, 0.0)
        for name in names:
            setattr(module, name, self._timed(name, getattr(module, name)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*args)
            finally:
                self.seconds[name] += time.perf_counter() - began

        return timed


def main() -> None:
    """Train with a checkpoint after every round, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "checkpoint-cost")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.manual_seed(0)
    clients = [(torch.randn(SAMPLES, 784), torch.randint(10, (SAMPLES,))) for _ in range(CLIENTS)]
    module = MLPClassifier(hidden=(1200, 1200), lr=0.01)
    size = 4 * sum(parameter.numel() for parameter in module.parameters()) / 1e6
    files = Stopwatch(fl_lightning.files, "_sync")
    checks = Stopwatch(fl_lightning.callbacks.checkpoint, "_is_whole")
    whole = Stopwatch(FederatedCheckpoint, "_keep_last")
    trainer = L.Trainer(
        max_epochs=options.rounds,
        accelerator="cpu",
        logger=False,
        callbacks=[FedAvg(1.0, executor="sequential"), FederatedCheckpoint(options.folder, save_top_k=0)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    began = time.perf_counter()
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=BATCH))
    seconds = time.perf_counter() - began
    print(f"{size:.1f} MB of weights; a round is {CLIENTS} clients x {SAMPLES // BATCH} steps with batches of {BATCH}")
    rows = {"round": seconds, "checkpoint": whole.seconds["_keep_last"], "flushing": files.seconds["_sync"]}
    for name, taken in {**rows, "reading the file before": checks.seconds["_is_whole"]}.items():
        print(f"{name:24}{1e3 * taken / options.rounds:9.1f} ms{taken / seconds:9.3f} of the round")


if __name__ == "__main__":
    main()
