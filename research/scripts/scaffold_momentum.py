"""SCAFFOLD beside clients' momentum, with a division of their way that knows of it and with one that does not.

    python research/scripts/scaffold_momentum.py [--output research/results/scaffold_momentum.csv]

Ten clients of scikit-learn's digits by Dir(.5), ten local epochs with momentum 0.9. Each row of the file is a round:
its validation accuracy by FedAvg, by SCAFFOLD without `momentum`, and with it, and the norms of c.
"""

from __future__ import annotations

import argparse
import csv
import logging
import warnings
from pathlib import Path

import lightning as L
from torch import Tensor

from fl_lightning import AggregationCallback, FedAvg, Scaffold
from fl_lightning.data import SampleSplit
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import ClasswiseDirichletPartitioner

MOMENTUM = 0.9
METHODS = {
    "FedAvg": lambda: FedAvg(1.0, local_epochs=10, seed=0),
    "SCAFFOLD, momentum not known": lambda: Scaffold(1.0, local_epochs=10, seed=0),
    "SCAFFOLD, momentum known": lambda: Scaffold(1.0, local_epochs=10, seed=0, momentum=MOMENTUM),
}


class GreyClassifier(MLPClassifier):
    """A network for one of the three equal channels."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mean(1))


class Recorder(L.Callback):
    """Keeps the accuracy of every round, and the norm of c."""

    def __init__(self, method: AggregationCallback) -> None:
        self.method = method
        self.accuracies: list[float] = []
        self.norms: list[float] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.accuracies.append(float(trainer.callback_metrics["val_acc"]))
        if isinstance(self.method, Scaffold):
            self.norms.append(float(self.method.control_variate.norm()))


def run(method: AggregationCallback, rounds: int) -> Recorder:
    L.seed_everything(0, verbose=False)
    data = DigitsDataModule(
        partitioner=ClasswiseDirichletPartitioner(10, 0.5, seed=0), split=SampleSplit(val=0.2, test=0.1), batch_size=64
    )
    module = GreyClassifier(in_features=1024, hidden=(64,), lr=0.01, momentum=MOMENTUM)
    recorder = Recorder(method)
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=rounds,
        callbacks=[method, recorder],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(module, datamodule=data)
    return recorder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    columns: dict[str, list[float]] = {"round": [*range(1, options.rounds + 1)]}
    for name, make in METHODS.items():
        recorder = run(make(), options.rounds)
        columns[name] = [round(value, 4) for value in recorder.accuracies]
        if recorder.norms:
            columns[f"{name}: norm of c"] = [float(f"{value:.3g}") for value in recorder.norms]
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    print("\n".join(", ".join(map(str, row)) for row in rows))
    if options.output:
        with options.output.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)
