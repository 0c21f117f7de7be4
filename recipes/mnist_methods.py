"""Every synchronous method on MNIST-0.1: a table of accuracies and models sent, and a figure of DC and DL.

    python recipes/mnist_methods.py                                  # all methods, 3 seeds, 20 rounds
    python recipes/mnist_methods.py --methods FedAvg RADFed --seeds 0 --rounds 60 --redistributions 15

The setting is Xue et al.'s MNIST-0.1 (100 clients by QP with class_alpha = 0.1, 60/20/20 by client, the 2NN, 10 local
epochs, batches of 10, learning rate 0.002, a tenth of the clients a round), but for the number of rounds and S, and
nothing is tuned. Finished runs are kept in `--out` and not run again; the table and the figure are made of all of them.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.table import Table

from datamodules import MNISTDataModule
from fl_lightning import (
    AggregationCallback,
    ClientMetrics,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedDyn,
    FedProx,
    FedYogi,
    RADFed,
    Scaffold,
)
from fl_lightning.diagnostics import CentralTwin, LocalDivergence
from fl_lightning.models import MLPClassifier
from fl_lightning.objectives import Proximal
from fl_lightning.partitioners import QPPartitioner
from fl_lightning.sampling import ImportanceSampler
from fl_lightning.server import Adaptive, Mixing

METHODS: dict[str, Callable[..., AggregationCallback]] = {
    "FedAvg": lambda S, **k: FedAvg(0.1, **k),
    "FedProx": lambda S, **k: FedProx(0.01, **k),
    "FedDyn": lambda S, **k: FedDyn(0.01, 0.1, **k),
    "SCAFFOLD": lambda S, **k: Scaffold(0.1, **k),
    "FedAvgM": lambda S, **k: FedAvgM(0.9, clients_per_round=0.1, **k),
    "FedAdagrad": lambda S, **k: FedAdagrad(server_lr=0.01, **k),
    "FedAdam": lambda S, **k: FedAdam(server_lr=0.01, **k),
    "FedYogi": lambda S, **k: FedYogi(server_lr=0.01, **k),
    "RADFed": lambda S, **k: RADFed(S, **k),
    "RADFedi": lambda S, **k: RADFed(S, sampler=ImportanceSampler(0.1, gamma=0.9), **k),
    "RADFedp": lambda S, **k: RADFed(S, local=Proximal(0.01), **k),
    "RADFedm": lambda S, **k: RADFed(S, server=Mixing(0.9), **k),
    "RADFeda": lambda S, **k: RADFed(S, server=Adaptive("adam", 0.01, 0.9, 0.99, 1e-3, 0.0), **k),
}
WITH_TWIN = ("FedAvg", "RADFed")  # those of the figure
console = Console()


class Curve(Callback):
    """Keeps the logged numbers of every round."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Keep what is known at the end of a round."""
        self.rounds.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def run(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one method with one seed and return its results."""
    L.seed_everything(seed, verbose=False)
    partitioner = QPPartitioner(num_clients=100, size_alpha=1.0, class_alpha=0.1, seed=seed)
    data = MNISTDataModule(options.data_dir, partitioner, batch_size=10, standardize="global")
    method = METHODS[name](options.redistributions, local_epochs=options.local_epochs, seed=seed)
    with_twin = name in WITH_TWIN and seed == options.seeds[0]
    curve, diagnostics = Curve(), [LocalDivergence(), *([CentralTwin()] if with_twin else [])]
    trainer = L.Trainer(
        max_epochs=options.rounds,
        callbacks=[method, ClientMetrics(), *diagnostics, curve],
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    module = MLPClassifier(lr=0.002, init="truncated_normal")
    began = time.perf_counter()
    trainer.fit(module, datamodule=data)
    seconds = time.perf_counter() - began
    [test] = trainer.test(module, datamodule=data, verbose=False)
    return {
        "test": test["test_acc_clients"],
        "models_sent": method.algorithm.models_sent,
        "aggregations": method.algorithm.server.aggregations,
        "seconds": seconds,
        "curve": curve.rounds,
    }


def table(results: dict[tuple[str, int], dict[str, Any]], options: argparse.Namespace) -> Table:
    """Return the table: mean and standard deviation over seeds, of the mean accuracy over test clients."""
    from statistics import mean, stdev

    title = f"MNIST-0.1, {options.rounds} rounds, S = {options.redistributions}, nothing tuned"
    made = Table(title=title, caption="test accuracy: mean over clients; mean +- sd over seeds")
    for column in ("method", "seeds", "test accuracy", "models sent", "aggregations", "s a round"):
        made.add_column(column, justify="left" if column == "method" else "right")
    for name in METHODS:
        runs = [result for (method, _), result in results.items() if method == name]
        if runs:
            scores = [run["test"] for run in runs]
            spread = f" +- {stdev(scores):.3f}" if len(scores) > 1 else ""
            first = runs[0]
            seconds = mean(run["seconds"] for run in runs) / options.rounds
            cells = (f"{mean(scores):.3f}{spread}", first["models_sent"], first["aggregations"], f"{seconds:.2f}")
            made.add_row(name, str(len(runs)), *map(str, cells))
    return made


def figure(results: dict[tuple[str, int], dict[str, Any]], path: Path) -> None:
    """Draw DC and DL of the methods that have both, round by round."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = zip(
        figure.subplots(1, 2),
        (
            ("fed/central_distance", "DC: distance from the central twin"),
            ("fed/divergence", "DL: divergence of clients"),
        ),
        strict=True,
    )
    for axes, (key, label) in panels:
        for (name, _), result in results.items():
            if "fed/central_distance" in result["curve"][-1]:
                values = [row[key] for row in result["curve"]]
                axes.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=name)
        axes.set(xlabel="round", ylabel=label, ylim=(0, None))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run what is missing, then show the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--redistributions", type=int, default=5, help="RADFed's S")
    parser.add_argument("--local_epochs", type=int, default=10)
    parser.add_argument("--data_dir", default=None, help="default: $FL_LIGHTNING_DATA, else data")
    parser.add_argument("--out", type=Path, default=Path("runs/mnist_methods"))
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    setting = f"r{options.rounds}-s{options.redistributions}-e{options.local_epochs}"
    folder = options.out / setting
    folder.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.methods:
            path = folder / f"{name}-{seed}.json"
            if not path.exists():
                console.print(f"[bold]{name}[/], seed {seed}")
                result = run(name, seed, options)
                part = path.with_suffix(".part")
                part.write_text(json.dumps(result))
                part.replace(path)
    done = {}
    for name in METHODS:
        for path in sorted(folder.glob(f"{name}-*.json")):
            done[name, int(path.stem.rsplit("-", 1)[1])] = json.loads(path.read_text())
    console.print(table(done, options))
    figure(done, folder / "divergence.png")
    console.print(f"Figure and results: {folder}")


if __name__ == "__main__":
    main()
