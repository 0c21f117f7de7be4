"""MOON on CIFAR-10 in the setting of Flower's baseline: ten clients by Dir(.5), ten local epochs in batches of 64.

    python research/scripts/moon.py --rounds 5 [--methods FedAvg ...] [--output research/results/moon.csv]

Each row of the file is a round: its accuracy on the official test samples by each method, beside Flower's. The same
command with more rounds goes on where the last one ended (`--folder` has the checkpoints).
"""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path

import lightning as L
import pandas as pd
from torch import Tensor, nn

from fl_lightning import MOON, AggregationCallback, FedAvg, FedProx
from fl_lightning.data import SampleSplit
from fl_lightning.datamodules import CIFAR10DataModule
from fl_lightning.models import Classifier
from fl_lightning.partitioners import ClasswiseDirichletPartitioner

METHODS = {
    "FedAvg": lambda **options: FedAvg(1.0, **options),
    "FedProx, mu 0.01": lambda **options: FedProx(0.01, 1.0, **options),
    "MOON, mu 1": lambda **options: MOON(1.0, 1.0, tau=0.5, **options),
    "MOON, mu 5": lambda **options: MOON(5.0, 1.0, tau=0.5, **options),
}


class ProjectionNet(Classifier):
    """A LeNet, a projection of two layers to 256 features, and the output layer, as Li et al. 2021 have it."""

    def __init__(self, num_classes: int = 10, lr: float = 0.01, momentum: float = 0.9, weight_decay: float = 1e-5):
        super().__init__(num_classes, lr, momentum, weight_decay)
        layers: list[nn.Module] = []
        for before, after in ((3, 6), (6, 16)):
            layers.append(nn.Conv2d(before, after, 5))
            layers.append(nn.ReLU())
            layers.append(nn.MaxPool2d(2))
        layers.append(nn.Flatten())
        for before, after in ((400, 120), (120, 84), (84, 84)):
            layers.append(nn.Linear(before, after))
            layers.append(nn.ReLU())
        layers.append(nn.Linear(84, 256))
        layers.append(nn.Linear(256, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class Recorder(L.Callback):
    """Keeps the accuracy of each round, over resumed fits too."""

    def __init__(self) -> None:
        self.accuracies: list[float] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.accuracies.append(float(trainer.callback_metrics["val_acc"]))

    def state_dict(self) -> dict[str, list[float]]:
        return {"accuracies": self.accuracies}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        self.accuracies = list(state["accuracies"])


def train(method: AggregationCallback, rounds: int, checkpoint: Path) -> list[float]:
    """Return the accuracy after each round; the fit goes on from its checkpoint."""
    L.seed_everything(0, verbose=False)
    data = CIFAR10DataModule(
        partitioner=ClasswiseDirichletPartitioner(10, 0.5, seed=0),
        split=SampleSplit(val=0.0, test="official"),
        batch_size=64,
        eval_batch_size=1000,
        drop_last=True,
        augment=True,
        crop_padding_mode="reflect",
        mean=[channel / 255 for channel in (125.3, 123.0, 113.9)],
        std=[channel / 255 for channel in (63.0, 62.1, 66.7)],
    )
    data.validates_on_test = True
    recorder = Recorder()
    trainer = L.Trainer(
        accelerator="auto",
        max_epochs=rounds,
        callbacks=[method, recorder],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(ProjectionNet(), datamodule=data, ckpt_path=checkpoint if checkpoint.exists() else None)
    trainer.save_checkpoint(checkpoint)
    return recorder.accuracies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--folder", type=Path, default=Path("runs/moon"))
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    curves = {}
    for name in options.methods:
        method = METHODS[name](local_epochs=10, seed=0)
        curves[name] = train(method, options.rounds, options.folder / f"{name}.ckpt")
    table = pd.DataFrame(curves, index=pd.RangeIndex(1, options.rounds + 1, name="round")).round(4)
    print(table)
    if options.output:
        table.to_csv(options.output, lineterminator="\n")
