"""Asynchronous methods on fast and slow devices: Gao et al. 2024, Figs. 4 and 5, on Fashion-MNIST.

    python recipes/fashion_async.py --data-dir data                      # small preset, 5 seeds
    python recipes/fashion_async.py --data-dir data --preset paper       # the paper's network, steps and rate

There are ten devices, five fast ones (speeds 100 to 80) and five slow ones (25 to 5). Experiments 1.1 to 1.4 differ in
the classes of each device. Fig. 4 shows FedAsync on all of them. Fig. 5 shows three methods on 1.4: FedAsync, the
PAPAYA baseline (a client waits until the buffer is full) and buffering with dynamic weights. The paper's t counts
uploads. The buffered methods move once in three uploads, so "100 rounds" has two readings; the table has both.

The paper does not name the network or the way in which samples are drawn. ``small`` is a stand-in with a small network,
a tenth of the local steps and ten times the learning rate. Finished runs are kept in ``--output`` and not run again.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.table import Table

from fl_lightning import AggregationCallback, DynamicWeightFedBuff, FedAsync, FedBuff
from fl_lightning.command.parser import Parser, ends_by_error, ends_by_interrupt
from fl_lightning.data import SampleSplit
from fl_lightning.datamodules import FashionMNISTDataModule
from fl_lightning.diagnostics import Timeline
from fl_lightning.files import atomic_file
from fl_lightning.models import ConvNetClassifier
from fl_lightning.partitioners import device_experiment_partitioner
from fl_lightning.parts.asynchronous.schedule import ArrivalRecord, Asynchronous

SPEEDS = [100, 95, 90, 85, 80, 25, 20, 15, 10, 5]
EXPERIMENTS = ("1.1", "1.2", "1.3", "1.4")
METHODS = ("FedAsync", "PAPAYA", "dynamic weights")
CURVES = [("FedAsync", experiment) for experiment in EXPERIMENTS] + [(method, "1.4") for method in METHODS[1:]]
UPLOADS_A_ROUND = 20
UNDER_WAY = "under way at the end"
# colours that can be told apart without seeing red or green (Okabe and Ito)
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
DASHES = ("-", (0, (6, 1.5)), (0, (3, 1.5)), (0, (1, 1)))
OUTCOMES = {"used": "#0072B2", "rejected": "#E69F00", "invalid": "#D55E00", "lost": "0.75", UNDER_WAY: "0.85"}
console = Console()


@dataclass(frozen=True)
class Preset:
    """The network and the local work of a run."""

    network: dict[str, Any]
    lr: float
    batches: int | float  # per epoch: a number, or a share of all


PRESETS = {
    "small": Preset({"channels": (8, 16), "hidden": (64,)}, lr=0.01, batches=12),
    "paper": Preset({"channels": (32, 64), "hidden": (512,), "padding": "same"}, lr=0.001, batches=1.0),
}


class TestedFashionMNIST(FashionMNISTDataModule):
    """Validates on the test images, as the paper does; no choice depends on them."""

    def val_dataloader(self) -> Any:
        """Return the test set."""
        return self.test_dataloader()


class AccuracyRecorder(Callback):
    """Records the test accuracy by uploads and by virtual time."""

    def __init__(self) -> None:
        self.points: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the point of a round."""
        names = {"accuracy": "val_acc", "time": "fed/virtual_time", "moves": "fed/aggregations"}
        point = {key: float(trainer.callback_metrics[name]) for key, name in names.items()}
        self.points.append({"uploads": (trainer.current_epoch + 1) * UPLOADS_A_ROUND, **point})


def make(method: str, options: argparse.Namespace, seed: int) -> AggregationCallback:
    """Return a method with the settings of the paper: alpha = 0.5, mu = 0.01, a buffer of 3, two local epochs."""
    shared: dict[str, Any] = {"speeds": SPEEDS, "local_epochs": 2, "seed": seed}
    if method == "FedAsync":
        return FedAsync(UPLOADS_A_ROUND, mixing=options.mixing, staleness=options.staleness, rho=0.01, **shared)
    if method == "PAPAYA":
        return FedBuff(
            3, UPLOADS_A_ROUND, wait_for_flush=True, weighting="samples", server_lr=options.papaya_lr, mu=0.01, **shared
        )
    return DynamicWeightFedBuff(3, UPLOADS_A_ROUND, alpha=0.5, mu=0.01, stamp=options.stamp, **shared)


def run(method: str, experiment: str, seed: int, options: argparse.Namespace, figure: Path | None) -> dict[str, Any]:
    """Train once; return the curve, the seconds and the number of uploads of each client."""
    preset = PRESETS[options.preset]
    L.seed_everything(seed, verbose=False)
    partitioner = device_experiment_partitioner(experiment, seed=seed)  # type: ignore[arg-type]
    data = TestedFashionMNIST(
        options.data_dir, partitioner, split=SampleSplit(val=0.0, test="official"), batch_size=50, eval_batch_size=500
    )
    curve, timeline, algorithm = AccuracyRecorder(), Timeline(), make(method, options, seed)
    trainer = L.Trainer(
        max_epochs=options.uploads // UPLOADS_A_ROUND,
        limit_train_batches=preset.batches,
        callbacks=[algorithm, timeline, curve],
        accelerator="auto",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    module = ConvNetClassifier(
        num_classes=10, in_channels=1, image_size=28, lr=options.lr or preset.lr, **preset.network
    )
    began = time.perf_counter()
    trainer.fit(module, datamodule=data)
    result = {
        "curve": curve.points,
        "seconds": time.perf_counter() - began,
        "contributions": {str(client): count for client, count in sorted(timeline.contributions.items())},
    }
    if figure is not None:
        draw_timeline(timeline.arrivals, algorithm.algorithm.schedule, figure)
    del data, module, trainer, algorithm, timeline
    gc.collect()  # a trainer and its data hold each other, and would stay until the next collection
    return result


Results = dict[tuple[str, str], dict[int, dict[str, Any]]]
Reading = dict[str, int]
READINGS: tuple[Reading, ...] = ({"uploads": 100}, {"moves": 100}, {"uploads": 300})


def at(results: Results, curve: tuple[str, str], reading: Reading) -> list[float] | None:
    """Return the accuracy of each seed, in per cent, when a number of uploads or of server moves was first reached.

    Returns:
        The accuracies; ``None`` if a seed has not reached the number.
    """
    [(key, wanted)] = reading.items()
    values = []
    for result in results[curve].values():
        point = next((point for point in result["curve"] if point[key] >= wanted), None)
        if point is None:
            return None
        values.append(100 * point["accuracy"])
    return values


def spread(values: list[float] | None, unit: str = "") -> str:
    """Return the mean and the sample standard deviation as a text; "n/a" without values."""
    if values is None:
        return "n/a"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + unit


def accuracies(results: Results, preset: str, uploads: int) -> Table:
    """Return the table of accuracies, for each reading of t."""
    title = f"Fashion-MNIST, preset {preset}: test accuracy in %, mean ± sd over seeds"
    made = Table(title=title, caption=f"n/a: not reached in a run of {uploads} uploads")
    for column in ("method", "experiment", "seeds", "100 uploads", "100 moves of the server", "300 uploads"):
        made.add_column(column, justify="left" if column in ("method", "experiment") else "right")
    for curve in CURVES:
        if curve in results:
            cells = (spread(at(results, curve, reading)) for reading in READINGS)
            made.add_row(*curve, str(len(results[curve])), *cells)
    return made


def claims(results: Results) -> Table:
    """Return a table of dynamic weights against the other methods on 1.4, seed by seed, beside the paper's claim."""
    made = Table(title="Dynamic weights minus the other, experiment 1.4, same seeds", caption="paper: > 10 and > 19")
    for column in ("other", "reading of t", "points", "relative", "seeds in favour"):
        made.add_column(column, justify="left" if column in ("other", "reading of t") else "right")
    ours = ("dynamic weights", "1.4")
    for other in ("PAPAYA", "FedAsync"):
        for reading in READINGS:
            if ours not in results or (other, "1.4") not in results:
                continue
            own, base = at(results, ours, reading), at(results, (other, "1.4"), reading)
            [name] = (f"{value} {key}" for key, value in reading.items())
            if own is None or base is None:
                made.add_row(other, name, "n/a", "n/a", "n/a")
                continue
            pairs = list(zip(own, base, strict=True))
            points, relative = [a - b for a, b in pairs], [100 * (a / b - 1) for a, b in pairs]
            favour = f"{sum(point > 0 for point in points)} of {len(points)}"
            made.add_row(other, name, spread(points), spread(relative, " %"), favour)
    return made


def draw_accuracies(results: Results, path: Path) -> None:
    """Draw Figs. 4 and 5 by uploads, and Fig. 5 by virtual time: mean and sample standard deviation over seeds."""
    import numpy as np
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(13, 4.2), layout="constrained")
    panels = (
        ("Fig. 4: FedAsync", CURVES[: len(EXPERIMENTS)], "uploads", 1),
        ("Fig. 5: experiment 1.4", [(method, "1.4") for method in METHODS], "uploads", 0),
        ("Fig. 5 by virtual time", [(method, "1.4") for method in METHODS], "time", 0),
    )
    for axes, (title, curves, key, label) in zip(drawn.subplots(1, 3, sharey=True), panels, strict=True):
        known = [curve for curve in curves if curve in results]
        for number, curve in enumerate(known):
            runs = [result["curve"] for result in results[curve].values()]
            # the time of an upload depends on a seed's partition, so that times are those that all runs have reached
            begin = max(run[0][key] for run in runs)
            x = [point[key] for point in min(runs, key=lambda points: points[-1][key]) if point[key] >= begin]
            points = [([point[key] for point in run], [100 * point["accuracy"] for point in run]) for run in runs]
            y = np.array([np.interp(x, *pair) for pair in points])
            style = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": "os^D"[number], "markersize": 3}
            axes.plot(x, y.mean(0), label=curve[label], **style)
            if len(runs) > 1:
                sd = y.std(0, ddof=1)
                axes.fill_between(x, y.mean(0) - sd, y.mean(0) + sd, color=COLOURS[number], alpha=0.15, linewidth=0)
        axes.set(title=title, xlabel="virtual time" if key == "time" else "uploads")
        axes.spines[["top", "right"]].set_visible(False)
        if known:
            axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=9)
    seeds = max((len(runs) for runs in results.values()), default=0)
    drawn.axes[0].set_ylabel("test accuracy, %")
    drawn.suptitle(f"mean over {seeds} seeds, band: ± one sd" if seeds > 1 else "one seed", fontsize=10)
    drawn.savefig(path, dpi=120)


def draw_timeline(arrivals: list[ArrivalRecord], schedule: Asynchronous, path: Path) -> None:
    """Draw when each device worked, those that are still at their first model too, and when the server moved."""
    from matplotlib.figure import Figure

    clock, end = schedule.clock, schedule.clock.time(schedule.simulation.now)
    under_way = [(flight.task.client, clock.time(flight.sent)) for flight in schedule.simulation.flights.values()]
    drawn = Figure(figsize=(9, 4), layout="constrained")
    axes = drawn.subplots()
    for outcome, colour in OUTCOMES.items():
        bars = [(a.client, a.sent, a.arrived - a.sent) for a in arrivals if a.outcome == outcome]
        if outcome == UNDER_WAY:
            bars = [(client, sent, end - sent) for client, sent in under_way]
        if bars:
            devices, left, width = zip(*bars, strict=True)
            edge = {"edgecolor": "white", "linewidth": 1.0, "hatch": "////" if outcome == UNDER_WAY else None}
            axes.barh(devices, width, left=left, height=0.7, color=colour, label=outcome, **edge)
    moves = [arrival.arrived for arrival in arrivals if arrival.moved]
    axes.plot(moves, [-1] * len(moves), "|", color="black", markersize=9, markeredgewidth=0.8)
    rows = ["server moves", *(f"{device} (speed {speed})" for device, speed in enumerate(SPEEDS))]
    axes.set_yticks(range(-1, len(SPEEDS)), rows)
    axes.invert_yaxis()
    axes.set(xlabel="virtual time", ylabel="device", xlim=(0, end))
    axes.spines[["top", "right"]].set_visible(False)
    drawn.legend(frameon=False, loc="outside lower center", ncols=5, fontsize=9)
    drawn.savefig(path, dpi=120)


def main() -> None:
    """Run the missing curves, then show the tables and draw the figure."""
    parser = Parser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="small", help="network, steps and rate")
    parser.add_argument(
        "--experiments",
        nargs="+",
        choices=EXPERIMENTS,
        default=list(EXPERIMENTS),
        metavar="NAME",
        help="experiments of the paper",
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4], metavar="N", help="one run each")
    parser.add_argument("--uploads", type=int, default=300, help="of a run; a multiple of 20")
    parser.add_argument("--mixing", type=float, default=0.5, help="FedAsync's alpha")
    parser.add_argument("--staleness", default="polynomial", help="FedAsync's s(d)")
    parser.add_argument("--lr", type=float, help="local learning rate; default: that of the preset")
    parser.add_argument("--papaya-lr", type=float, default=1.0, help="server learning rate of the PAPAYA baseline")
    parser.add_argument("--stamp", default="upload", help="unit of staleness for dynamic weights")
    parser.add_argument("--data-dir", help="folder of the images; default: $FL_LIGHTNING_DATA, else data")
    parser.add_argument("--output", type=Path, default=Path("runs/fashion_async"), help="folder of the results")
    options = parser.parse_args()
    if options.uploads < 1 or options.uploads % UPLOADS_A_ROUND:
        parser.error(f"--uploads must be a multiple of {UPLOADS_A_ROUND}, got {options.uploads}")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    varied = (options.uploads, options.lr or PRESETS[options.preset].lr, options.staleness, options.mixing)
    varied = (*varied, options.papaya_lr, options.stamp)
    setting = "-".join(map(str, (options.preset, *varied)))
    folder = options.output / setting
    folder.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    todo = [(curve, seed) for seed in options.seeds for curve in CURVES if curve[1] in options.experiments]
    for position, (curve, seed) in enumerate(todo, start=1):
        method, experiment = curve
        path = folder / f"{method.replace(' ', '_')}-{experiment}-{seed}.json"
        if not path.exists():
            console.print(f"[bold]{method}[/], experiment {experiment}, seed {seed} ({position} of {len(todo)})")
            timeline = path.with_suffix(".png") if seed == options.seeds[0] and experiment == "1.4" else None
            result = run(method, experiment, seed, options, timeline)
            with atomic_file(path) as part:
                part.write_text(json.dumps(result))
            left = json.loads(path.read_text())["seconds"] * (len(todo) - position)
            console.print(f"about {left / 60:.0f} minutes left at this rate")
        results.setdefault(curve, {})[seed] = json.loads(path.read_text())
    console.print(accuracies(results, options.preset, options.uploads))
    console.print(claims(results))
    draw_accuracies(results, folder / "accuracy.png")
    console.print(f"Figures and results: {folder}")


if __name__ == "__main__":
    with ends_by_error(), ends_by_interrupt(lambda: "Interrupted. Run the same command again for the rest."):
        main()
