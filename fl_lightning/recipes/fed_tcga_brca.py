"""FLamby's Fed-TCGA-BRCA benchmark: Cox regression in six regions, nine strategies, beside FLamby's numbers.

    python recipes/fed_tcga_brca.py PATH                        # all methods with five seeds, some minutes
    python recipes/fed_tcga_brca.py PATH --methods FedAvg FedAdam --seeds 42

PATH is FLamby's brca.csv. Prints the C-index, mean ± sd over seeds, and writes each run to fed_tcga_brca.csv. A number
is met if it differs from FLamby's by at most two standard errors. The settings are FLamby's: five rounds of 100 steps
in batches of 8; pooled and local training have 30 epochs by Adam. FLamby's "Cyclic" hands no model on: it tests that of
region 0, which trains once, or not at all where its turn would be the sixth. "Cyclic, handed on" is what the name says,
and has no number there.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any

import lightning as L
import numpy as np
import pandas as pd

from fl_lightning import ClientMetrics, FedAdagrad, FedAdam, FedAvg, FedProx, FedYogi, Scaffold
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.datamodules import FedTCGABRCADataModule
from fl_lightning.metrics import c_index
from fl_lightning.models import CoxRegression
from fl_lightning.parts import ClientSampler

REGIONS, ROUNDS = 6, 5
LOCAL: dict[str, Any] = {"local_steps": 100, "continue_epochs": True}
ADAPTIVE: dict[str, Any] = {"beta1": 0.9, "tau": 1e-8, **LOCAL}
# FLamby's mean and standard deviation over seeds 42 to 46 of the mean of the regions' C-indices, and of the pooled one
PUBLISHED = {
    "Pooled": (0.6759, 0.0949, 0.7041, 0.1144),
    "Local 0": (0.7282, 0.0378, 0.6948, 0.0426),
    "Local 1": (0.7496, 0.0369, 0.7275, 0.0483),
    "Local 2": (0.4977, 0.0260, 0.6043, 0.0314),
    "Local 3": (0.6562, 0.0654, 0.5650, 0.0703),
    "Local 4": (0.7121, 0.0320, 0.7251, 0.0345),
    "Local 5": (0.6913, 0.0081, 0.7103, 0.0045),
    "Cyclic": (0.6582, 0.0429, 0.6607, 0.0749),
    "FedAdagrad": (0.8129, 0.0048, 0.8338, 0.0075),
    "FedAdam": (0.8152, 0.0256, 0.8421, 0.0168),
    "FedAvg": (0.7319, 0.1811, 0.7353, 0.1750),
    "FedProx": (0.7290, 0.1683, 0.7167, 0.1621),
    "FedYogi": (0.8152, 0.0256, 0.8421, 0.0166),
    "Scaffold": (0.6869, 0.0360, 0.6995, 0.0347),
}
SEEDS = (42, 43, 44, 45, 46)


class OneByOne(ClientSampler):
    """One client a round, in a given order."""

    def __init__(self, order: Sequence[int]) -> None:
        self.order = list(order)

    def cohort_size(self, num_clients: int) -> int:
        """Return 1."""
        return 1

    def draw(self, num_clients: int, rng: np.random.Generator, available: Any = None) -> np.ndarray:
        """Return the round's client."""
        return np.array([self.order[self.round % len(self.order)]])


def alone(region: int) -> Callable[[int], AggregationCallback]:
    """Return 30 epochs of one region alone."""
    return lambda seed: FedAvg(sampler=OneByOne([region]), local_epochs=30)


def order(seed: int) -> list[int]:
    """Return the order of the regions in cyclic training."""
    return [int(region) for region in np.random.default_rng(seed).permutation(REGIONS)]


# by method: learning rate, optimizer, rounds and the callback of a seed
METHODS: dict[str, tuple[float, str, int, Callable[[int], AggregationCallback] | None]] = {
    "Pooled": (0.1, "adam", 30, None),
    **{f"Local {region}": (0.1, "adam", 1, alone(region)) for region in range(REGIONS)},
    "Cyclic": (0.01, "sgd", 1, lambda seed: FedAvg(sampler=OneByOne([0]), local_steps=100)),
    "Cyclic, handed on": (0.01, "sgd", ROUNDS, lambda seed: FedAvg(sampler=OneByOne(order(seed)), local_steps=100)),
    "FedAvg": (0.1, "sgd", ROUNDS, lambda seed: FedAvg(1.0, **LOCAL)),
    "FedProx": (0.1, "sgd", ROUNDS, lambda seed: FedProx(0.1, 1.0, **LOCAL)),
    "Scaffold": (0.01, "sgd", ROUNDS, lambda seed: Scaffold(1.0, weighting="samples", **LOCAL)),
    "FedAdam": (0.01, "sgd", ROUNDS, lambda seed: FedAdam(1.0, server_lr=0.1, beta2=0.999, **ADAPTIVE)),
    "FedYogi": (0.01, "sgd", ROUNDS, lambda seed: FedYogi(1.0, server_lr=0.1, beta2=0.999, **ADAPTIVE)),
    "FedAdagrad": (0.01, "sgd", ROUNDS, lambda seed: FedAdagrad(1.0, server_lr=1.0, **ADAPTIVE)),
}


def run(path: Path, method: str, seed: int) -> dict[str, float]:
    """Return a method's C-index with a seed: the mean over the regions' test patients, and that of all together."""
    lr, optimizer, rounds, callback = METHODS[method]
    L.seed_everything(seed, verbose=False)
    data, module = FedTCGABRCADataModule(path, batch_size=8), CoxRegression(lr=lr, optimizer=optimizer)  # type: ignore
    callbacks = [ClientMetrics(c_index, "cindex"), *([] if callback is None else [callback(seed)])]
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(accelerator="cpu", max_epochs=rounds, callbacks=callbacks, enable_model_summary=False, **quiet)
    if method != "Cyclic" or 0 in order(seed)[:ROUNDS]:
        trainer.fit(module, datamodule=data)
    [scores] = trainer.test(module, datamodule=data, verbose=False)
    return {"regions": scores["test_cindex_clients"], "pooled": scores["test_cindex"]}


def beside(runs: Sequence[Mapping[str, float]], method: str) -> list[tuple[str, float, float, float, float, float]]:
    """Return by measure our mean and sd, FLamby's mean and sd, and the difference in standard errors."""
    rows = []
    known = [] if method not in PUBLISHED else np.reshape(PUBLISHED[method], (2, 2)).tolist()
    for measure, (theirs, their_sd) in zip(("regions", "pooled"), known, strict=False):
        ours = [each[measure] for each in runs]
        sd = stdev(ours) if len(ours) > 1 else math.nan
        error = math.hypot(sd / math.sqrt(len(ours)), their_sd / math.sqrt(len(SEEDS)))
        rows.append((measure, mean(ours), sd, theirs, their_sd, (mean(ours) - theirs) / error))
    return rows


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--output", type=Path, default=Path("fed_tcga_brca.csv"))
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    rows = []
    for method in options.methods:
        begun = process_time()
        runs = [run(options.path, method, seed) for seed in options.seeds]
        seconds = (process_time() - begun) / len(runs)
        rows += [{"method": method, "seed": seed, **each} for seed, each in zip(options.seeds, runs, strict=True)]
        print(f"{method}: {seconds:.1f} s of CPU a fit")
        for measure, ours, sd, theirs, their_sd, errors in beside(runs, method):
            numbers = f"{ours:.3f} ± {sd:.3f} here, {theirs:.3f} ± {their_sd:.3f} by FLamby, {errors:+.1f} errors apart"
            print(f"  {measure}: {numbers}")
    pd.DataFrame(rows).to_csv(options.output, index=False)


if __name__ == "__main__":
    main()
