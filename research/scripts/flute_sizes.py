"""FLUTE's logistic regression on MNIST by draws of the clients' sizes: what is due to the one file that all others use?

    python research/scripts/flute_sizes.py [--seeds 0 1 2] [--output research/results/flute_sizes.csv]

The setting of the table ``published_flute``. Each row of the file is a draw: the standard deviation of the clients'
sizes, the largest one, and the accuracy after the last of 100 rounds. FedProx's file, which FLUTE, FedML and Flower
use, has a standard deviation of 106 by FedProx's README.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from pathlib import Path

import lightning as L
import numpy as np
import pandas as pd

from fl_lightning import FedAvg
from fl_lightning.data import WithinClientSplit
from fl_lightning.datamodules import FedProxMNISTDataModule
from fl_lightning.models import LogisticRegressionClassifier
from fl_lightning.partitioners import PowerLawPartitioner


def run(seed: int, folder: str) -> dict[str, float]:
    """Return what is known of one draw."""
    L.seed_everything(seed, verbose=False)
    data = FedProxMNISTDataModule(
        folder,
        PowerLawPartitioner(1000, seed=seed),
        split=WithinClientSplit(val=0.0, test=0.1, seed=seed),
        batch_size=10,
        eval_batch_size=10000,
    )
    data.validates_on_test = True
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=100,
        check_val_every_n_epoch=20,
        callbacks=[FedAvg(10, local_epochs=1)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    begin = time.process_time()
    trainer.fit(LogisticRegressionClassifier(784, 10, lr=0.03, sigmoid=True), datamodule=data)
    seconds = time.process_time() - begin
    sizes = np.array([len(indices) for indices in data.partition.indices])
    return {
        "seed": seed,
        "sd_of_sizes": round(float(sizes.std()), 1),
        "largest": int(sizes.max()),
        "test_acc": round(float(trainer.callback_metrics["val_acc"]), 4),
        "processor_seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[*range(24)])
    parser.add_argument("--folder", default="data", help="folder that has MNIST")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore")
    rows = []
    for seed in options.seeds:
        rows.append(run(seed, options.folder))
        print(rows[-1], flush=True)
    if options.output:
        pd.DataFrame(rows).to_csv(options.output, index=False, lineterminator="\n")
