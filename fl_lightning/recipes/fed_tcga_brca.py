"""FLamby's Fed-TCGA-BRCA benchmark: Cox regression in six regions, nine strategies, compared with FLamby's numbers.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import Any, Literal, NamedTuple

import lightning as L
import numpy as np
import pandas as pd
from lightning.pytorch.callbacks import Callback

from fl_lightning import ClientMetrics, FedAdagrad, FedAdam, FedAvg, FedProx, FedYogi, Scaffold
from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.datamodules import FedTCGABRCADataModule
from fl_lightning.metrics import c_index
from fl_lightning.models import CoxRegression
from fl_lightning.parts import ClientSampler

REGIONS = 6
ROUNDS = 5
LOCAL: dict[str, Any] = {"local_steps": 100, "continue_epochs": True}
ADAPTIVE: dict[str, Any] = {"beta1": 0.9, "tau": 1e-8, **LOCAL}
#: FLamby's mean and standard deviation, over seeds 42 to 46, of the mean of the regions' C-indices; then the same of
#: the pooled C-index.
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


class Method(NamedTuple):
    """The settings of a method."""

    lr: float
    optimizer: Literal["sgd", "adam"]
    rounds: int
    #: Makes the callback for a seed; ``None`` for central training.
    callback: Callable[[int], AggregationCallback] | None


def federated(lr: float, callback: Callable[[int], AggregationCallback]) -> Method:
    """Return a method of five rounds by SGD."""
    return Method(lr, "sgd", ROUNDS, callback)


METHODS = {
    "Pooled": Method(0.1, "adam", 30, None),
    **{f"Local {region}": Method(0.1, "adam", 1, alone(region)) for region in range(REGIONS)},
    "Cyclic": Method(0.01, "sgd", 1, lambda seed: FedAvg(sampler=OneByOne([0]), local_steps=100)),
    "Cyclic, handed on": federated(0.01, lambda seed: FedAvg(sampler=OneByOne(order(seed)), local_steps=100)),
    "FedAvg": federated(0.1, lambda seed: FedAvg(1.0, **LOCAL)),
    "FedProx": federated(0.1, lambda seed: FedProx(0.1, 1.0, **LOCAL)),
    "Scaffold": federated(0.01, lambda seed: Scaffold(1.0, weighting="samples", **LOCAL)),
    "FedAdam": federated(0.01, lambda seed: FedAdam(1.0, server_lr=0.1, beta2=0.999, **ADAPTIVE)),
    "FedYogi": federated(0.01, lambda seed: FedYogi(1.0, server_lr=0.1, beta2=0.999, **ADAPTIVE)),
    "FedAdagrad": federated(0.01, lambda seed: FedAdagrad(1.0, server_lr=1.0, **ADAPTIVE)),
}


def run(path: Path, method: str, seed: int) -> dict[str, float]:
    """Return a method's C-index with a seed: the mean over the regions' test patients, and that of all together."""
    settings = METHODS[method]
    L.seed_everything(seed, verbose=False)
    data = FedTCGABRCADataModule(path, batch_size=8)
    module = CoxRegression(lr=settings.lr, optimizer=settings.optimizer)
    callbacks: list[Callback] = [ClientMetrics(c_index, "cindex")]
    if settings.callback is not None:
        callbacks.append(settings.callback(seed))
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=settings.rounds,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    # FLamby's cyclic training tests the model of region 0, which is not trained if its turn would be the sixth.
    if method != "Cyclic" or 0 in order(seed)[:ROUNDS]:
        trainer.fit(module, datamodule=data)
    [scores] = trainer.test(module, datamodule=data, verbose=False)
    return {"regions": scores["test_cindex_clients"], "pooled": scores["test_cindex"]}


def compare(values: Sequence[float], theirs: float, their_sd: float) -> tuple[float, float, float]:
    """Return our mean and sd over seeds, and its difference from FLamby's mean in standard errors."""
    ours = mean(values)
    sd = stdev(values) if len(values) > 1 else math.nan
    error = math.hypot(sd / math.sqrt(len(values)), their_sd / math.sqrt(len(SEEDS)))
    return ours, sd, (ours - theirs) / error


def print_comparison(measure: str, values: Sequence[float], theirs: float, their_sd: float) -> None:
    """Print our mean and sd, and FLamby's."""
    ours, sd, errors = compare(values, theirs, their_sd)
    here = f"{ours:.3f} ± {sd:.3f} here"
    there = f"{theirs:.3f} ± {their_sd:.3f} by FLamby"
    print(f"  {measure}: {here}, {there}, {errors:+.1f} errors apart")


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
        for seed, scores in zip(options.seeds, runs, strict=True):
            rows.append({"method": method, "seed": seed, **scores})
        print(f"{method}: {seconds:.1f} s of CPU a fit")
        if method in PUBLISHED:
            regions, regions_sd, pooled, pooled_sd = PUBLISHED[method]
            print_comparison("regions", [scores["regions"] for scores in runs], regions, regions_sd)
            print_comparison("pooled", [scores["pooled"] for scores in runs], pooled, pooled_sd)
    pd.DataFrame(rows).to_csv(options.output, index=False)


if __name__ == "__main__":
    main()
