"""Privacy, compression and attacks on Fashion-MNIST: accuracy against epsilon, bytes and the share of attackers.

    python recipes/what_travels.py privacy --data-dir data        # one study: privacy, compression or robustness
    python recipes/what_travels.py --data-dir data                # all three: five minutes of processor time
    python recipes/what_travels.py --data-dir data --preset full  # more points, longer runs

Each point is trained with three seeds. The tables show mean and sample standard deviation, the mean paired difference
to plain FedAvg with its 95 % confidence interval (Student's t), and a round's processor time over plain FedAvg's. Runs
are kept in ``--output``. docs/privacy.md, docs/compression.md and docs/robustness.md show the figures.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.table import Table

from fl_lightning import FedAvg, parts
from fl_lightning.command.parser import Parser, ends_by_error, ends_by_interrupt
from fl_lightning.data import SampleSplit
from fl_lightning.datamodules import FashionMNISTDataModule
from fl_lightning.diagnostics import Communication
from fl_lightning.experiment.statistics import summarize
from fl_lightning.files import atomic_file
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner

Options = dict[str, Any]
PLAIN = "FedAvg"
# colours that can be told apart without seeing red or green (Okabe and Ito)
COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
STYLES = [{"color": colour, "marker": marker} for colour, marker in zip(COLOURS, "osD^vPX*", strict=True)]
console = Console()


@dataclass(frozen=True)
class Point:
    """One setting: a line of the figure, its place on it, and what FedAvg is given for it."""

    line: str
    x: float
    options: Callable[[], Options]
    panel: str = ""

    @property
    def name(self) -> str:
        """The setting's name, also of its files."""
        return ", ".join([self.line, *([self.panel] if self.panel else []), f"{self.x:g}"]) if self.x else self.line


@dataclass(frozen=True)
class Study:
    """A federation and the settings that are tried on it."""

    points: Sequence[Point]
    clients: int
    rounds: int
    hidden: tuple[int, ...] = (64,)
    fit: Options = field(default_factory=dict)  # of FedAvg, for all points


def privacy(full: bool) -> Study:
    """Clients of 60 images; each joins a round with chance 0.1; a linear model, whose noise is small."""
    levels = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0) if full else (0.25, 1.0, 4.0)
    shared: Options = {"sampler": parts.BernoulliSampler(0.1), "weighting": "uniform"}

    def private(epsilon: float, clip: float, quantile: float | None) -> Callable[[], Options]:
        exchange = {"epsilon": epsilon, "delta": 1e-4, "adaptive_quantile": quantile}
        return lambda: {**shared, "exchange": parts.DifferentialPrivacy(clip, **exchange)}

    points = [Point(PLAIN, float("inf"), lambda: shared)]
    points += [Point("clip 0.3", epsilon, private(epsilon, 0.3, None)) for epsilon in levels]
    points += [Point("adaptive clip", epsilon, private(epsilon, 0.1, 0.5)) for epsilon in levels]
    return Study(points, clients=1000, rounds=100 if full else 30, hidden=(), fit={"local_epochs": 1})


def compression(full: bool) -> Study:
    """A hundred clients, ten of them in a round, one local epoch."""
    exchanges: dict[str, Callable[[], Any]] = {
        PLAIN: lambda: None,
        "QSGD, 4 bits": lambda: parts.QSGD(4),
        "QSGD, 2 bits": lambda: parts.QSGD(2),
        "TopK 1 %": lambda: parts.TopK(0.01),
        "TopK 1 %, 4 bits": lambda: [parts.TopK(0.01), parts.QSGD(4)],
        "SignSGD": parts.SignSGD,
        "LowRank 2": lambda: parts.LowRank(2),
        "RandomK 10 %": lambda: parts.RandomK(0.1),
    }
    points = [Point(name, 0.0, lambda make=make: {"exchange": make()}) for name, make in exchanges.items()]  # type: ignore[misc]
    return Study(points, clients=100, rounds=100 if full else 40, fit={"clients_per_round": 10})


def robustness(full: bool) -> Study:
    """Twenty clients that all make ten local steps in a round; the rules know how many are attackers."""
    shares = (0.0, 0.1, 0.2, 0.3, 0.4) if full else (0.0, 0.2, 0.4)
    rules: dict[str, Callable[[int], parts.Aggregation]] = {
        PLAIN: lambda f: parts.WeightedMean("uniform"),
        "median": lambda f: parts.Median(),
        "trimmed mean": parts.TrimmedMean,
        "Krum": parts.Krum,
        "geometric median": lambda f: parts.GeometricMedian(max_iterations=10),
        "centred clipping": lambda f: parts.CenteredClipping(0.5, iterations=3),
        "median, mixed": lambda f: parts.Median(before=parts.NearestNeighborMixing(f)),
    }
    attacks = {
        "sign flipping": lambda share: parts.SignFlipping(share, scale=3.0),
        "a little is enough": lambda share: parts.ALittleIsEnough(share, z=1.5),
    }

    def given(rule: Any, attack: Any, share: float) -> Callable[[], Options]:
        exchange = attack(share) if share else None
        return lambda: {"aggregation": rule(round(20 * share)), "exchange": exchange}

    points = [
        Point(line, share, given(rule, attack, share), panel)
        for panel, attack in attacks.items()
        for line, rule in rules.items()
        for share in shares
    ]
    return Study(points, clients=20, rounds=60 if full else 20, fit={"clients_per_round": 1.0, "local_steps": 10})


STUDIES = {"privacy": privacy, "compression": compression, "robustness": robustness}


# ---- running ----


class Recorder(Callback):
    """Records accuracy, bytes and epsilon after each round, and what a round takes."""

    def __init__(self) -> None:
        self.curve: list[dict[str, float]] = []
        self.seconds: list[float] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock."""
        self._began = time.process_time()

    def on_round_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop it, before the round's validation."""
        self.seconds.append(time.process_time() - self._began)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Record the round, if it was validated."""
        names = {"accuracy": "val_acc", "bytes": "fed/bytes_up", "epsilon": "fed/epsilon"}
        logged = trainer.callback_metrics
        known = {key: float(logged[name]) for key, name in names.items() if name in logged}
        if (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0:
            self.curve.append({"round": trainer.current_epoch + 1, **known})


class TestedFashionMNIST(FashionMNISTDataModule):
    """Validates on the test images; no choice depends on them."""

    def val_dataloader(self) -> Any:
        """Return the test set."""
        return self.test_dataloader()


def run(study: Study, point: Point, seed: int, data: L.LightningDataModule) -> dict[str, Any]:
    """Train once; return the curve and the median time of a round."""
    L.seed_everything(seed, verbose=False)
    recorder = Recorder()
    callback = FedAvg(**{**study.fit, **point.options()}, seed=seed, executor="vectorized")
    silent = dict.fromkeys(("logger", "enable_checkpointing", "enable_model_summary", "enable_progress_bar"), False)
    trainer = L.Trainer(
        max_epochs=study.rounds,
        check_val_every_n_epoch=max(1, study.rounds // 10),
        callbacks=[callback, Communication(), recorder],
        accelerator="cpu",
        devices=1,
        num_sanity_val_steps=0,
        **silent,
    )
    trainer.fit(MLPClassifier(hidden=study.hidden, lr=0.1), datamodule=data)
    return {"curve": recorder.curve, "seconds": median(recorder.seconds)}


def load(study: Study, seed: int, options: argparse.Namespace) -> L.LightningDataModule:
    """Return the clients of a seed: Dirichlet label skew with alpha 1, equal sizes in expectation."""
    partitioner = DirichletPartitioner(num_clients=study.clients, alpha=1.0, seed=seed)
    split = SampleSplit(val=0.0, test="official")
    return TestedFashionMNIST(options.data_dir, partitioner, split=split, batch_size=20, eval_batch_size=2000)


# ---- showing ----

Results = dict[str, dict[int, dict[str, Any]]]


def ends(results: Results, point: Point) -> list[float]:
    """Return the last accuracies, in per cent, in the order of seeds."""
    return [100 * results[point.name][seed]["curve"][-1]["accuracy"] for seed in sorted(results[point.name])]


def table(name: str, study: Study, results: Results) -> Table:
    """Return the study's table."""
    made = Table(title=f"{name}: Fashion-MNIST, {study.clients} clients, {study.rounds} rounds, test accuracy in %")
    for column in ("setting", "mean ± sd", "minus FedAvg [95 %]", "epsilon", "MB up", "round / FedAvg's"):
        made.add_column(column, justify="left" if column == "setting" else "right")
    for point in study.points:
        # in the study of robustness, under the same attack
        same = [(p.panel, p.x) == (point.panel, point.x) or name != "robustness" for p in study.points]
        plain = next(p for p, fits in zip(study.points, same, strict=True) if fits and p.line == PLAIN)
        own, base = ends(results, point), ends(results, plain)
        runs, others = (list(results[each.name].values()) for each in (point, plain))
        last = [result["curve"][-1] for result in runs]
        ratio = median(r["seconds"] for r in runs) / median(r["seconds"] for r in others)
        made.add_row(
            point.name,
            f"{mean(own):.1f}" + (f" ± {stdev(own):.1f}" if len(own) > 1 else ""),
            "" if point is plain else difference(own, base),
            f"{last[0]['epsilon']:.2f}" if "epsilon" in last[0] else "",
            f"{mean(end['bytes'] for end in last) / 1e6:.1f}",
            f"{ratio:.2f}",
        )
    return made


def difference(own: list[float], base: list[float]) -> str:
    """Return the mean paired difference with its confidence interval."""
    summary = summarize([a - b for a, b in zip(own, base, strict=True)])
    if len(own) < 2:
        return f"{summary.mean:+.1f}"
    return f"{summary.mean:+.1f} [{summary.low:+.1f}, {summary.high:+.1f}]"


def draw(name: str, study: Study, results: Results, path: Path) -> None:
    """Draw the study's figure: means over seeds, bars of one standard deviation."""
    from matplotlib.figure import Figure

    panels = list(dict.fromkeys(point.panel for point in study.points))
    drawn = Figure(figsize=(5.5 * len(panels) + 1.5, 4.2), layout="constrained")
    for axes, panel in zip(drawn.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels, strict=True):
        for style, line in zip(STYLES, dict.fromkeys(point.line for point in study.points), strict=False):
            points = [point for point in study.points if (point.line, point.panel) == (line, panel)]
            _draw_line(axes, name, line, points, results, style)
        labels = {"privacy": "epsilon, at delta = 1e-4", "compression": "megabytes sent up", "robustness": "attackers"}
        axes.set(xlabel=labels[name], title=panel)
        axes.set_xscale("linear" if name == "robustness" else "log")
        if name == "robustness":
            axes.xaxis.set_major_formatter("{x:.0%}")
        if name == "privacy":
            levels = sorted({point.x for point in study.points if point.line != PLAIN})
            axes.set_xticks(levels, [f"{level:g}" for level in levels])
            axes.minorticks_off()
    drawn.axes[0].set_ylabel("test accuracy, %")
    drawn.legend(*drawn.axes[0].get_legend_handles_labels(), frameon=False, loc="outside right center", fontsize=9)
    drawn.savefig(path, dpi=110)


def _draw_line(axes: Any, name: str, line: str, points: list[Point], results: Results, style: Options) -> None:
    if name == "compression":  # a curve over a run
        runs = [result["curve"] for result in results[points[0].name].values()]
        x = [mean(run[place]["bytes"] for run in runs) / 1e6 for place in range(len(runs[0]))]
        values = [[100 * run[place]["accuracy"] for run in runs] for place in range(len(x))]
    else:
        x, values = [point.x for point in points], [ends(results, point) for point in points]
    if name == "privacy" and line == PLAIN:
        axes.axhline(mean(values[0]), color=style["color"], linestyle="--", label="FedAvg, no privacy")
        return
    bars = [stdev(each) if len(each) > 1 else 0.0 for each in values]
    axes.errorbar(x, [mean(each) for each in values], bars, markersize=5, label=line, **style)


def main() -> None:
    """Run what is missing, then show the tables and draw the figures."""
    parser = Parser(description=__doc__)
    parser.add_argument("studies", nargs="*", help=f"of {', '.join(STUDIES)}; default: all")
    parser.add_argument("--preset", choices=("small", "full"), default="small", help="points and rounds")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="one run each")
    parser.add_argument("--rounds", type=int, help="rounds of a run; default: those of the preset")
    parser.add_argument("--data-dir", help="folder of the images; default: $FL_LIGHTNING_DATA, else data")
    parser.add_argument("--output", type=Path, default=Path("runs/what_travels"), help="folder of the results")
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    if unknown := set(options.studies) - set(STUDIES):
        parser.error(f"there is no study {', '.join(sorted(unknown))}; there are {', '.join(STUDIES)}")
    for name in options.studies or STUDIES:
        show(name, options)


def show(name: str, options: argparse.Namespace) -> None:
    """Run a study's missing points, then show it."""
    study = STUDIES[name](options.preset == "full")
    study = study if options.rounds is None else Study(**{**vars(study), "rounds": options.rounds})
    folder = options.output / f"{name}-{options.preset}-{study.rounds}"
    folder.mkdir(parents=True, exist_ok=True)
    results: Results = {}
    for seed in options.seeds:
        data = load(study, seed, options)
        for point in study.points:
            path = folder / f"{point.name.replace(' ', '_')}-{seed}.json"
            if not path.exists():
                result = run(study, point, seed, data)
                with atomic_file(path) as part:
                    part.write_text(json.dumps(result))
            results.setdefault(point.name, {})[seed] = json.loads(path.read_text())
        console.print(f"{name}: seed {seed} is done")
    console.print(table(name, study, results), f"Figure and results: {folder}", sep="\n")
    draw(name, study, results, folder / f"{name}.png")


if __name__ == "__main__":
    with ends_by_error(), ends_by_interrupt(lambda: "Interrupted. Run the same command again for the rest."):
        main()
