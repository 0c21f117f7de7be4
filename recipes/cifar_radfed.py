"""RADFed, or FedAvg, on CIFAR-10: 100 clients by QP, a pre-trained MobileNetV2 trained from its last bottleneck on.

    python recipes/cifar_radfed.py                                   # a few minutes on two CPU cores
    python recipes/cifar_radfed.py --preset paper                    # the setting of the paper; needs a GPU
    python recipes/cifar_radfed.py --method FedAvg --seed 2          # another algorithm, as many rounds
    python recipes/cifar_radfed.py --method.redistributions 5 --partitioner.class_alpha 1.0 --model.lr 0.1
    python recipes/cifar_radfed.py --config my.yaml                  # any of the options below, as yaml
    python recipes/cifar_radfed.py --resume runs/cifar_radfed/cifar10-radfed-seed1

CIFAR-10 and the weights are read from `--data.data_dir` (default: $FL_LIGHTNING_DATA, else data), or downloaded. If
neither is possible, `--dataset auto` takes scikit-learn's digits as a stand-in, and says so.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import resource
import socket
import sys
import time
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import lightning as L
import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from datamodules import CIFAR10DataModule, DigitsDataModule
from fl_lightning import AggregationCallback, ClientMetrics, FederatedCheckpoint, FrozenPrefixCache
from fl_lightning.data import ClientSplit, FederatedDataModule
from fl_lightning.models import ConvNetClassifier, MobileNetV2Classifier
from fl_lightning.partitioners import Partitioner

PRESETS = Path(__file__).parent / "presets"
WEIGHTS_FILE = "mobilenet_v2-b0353104.pth"
#: Says everything once, however many processes train.
console = Console(quiet=rank_zero_only.rank > 0)


def make_parser() -> ArgumentParser:
    """Return the parser of all options; an option with a dot goes to the class of that name."""
    parser = ArgumentParser(description=__doc__, prog="cifar_radfed.py")
    parser.add_argument("--config", action="config", help="yaml file with any of these options")
    parser.add_argument("--preset", type=Literal["default", "paper"], default="default", help="base settings")
    parser.add_argument(
        "--dataset",
        type=Literal["auto", "cifar10", "digits"],
        default="auto",
        help="auto: CIFAR-10 if it is here or can be downloaded, else the digits as a stand-in",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of partition, split, weights and training")
    parser.add_argument("--output", type=str, default="runs/cifar_radfed", help="folder with one folder for each run")
    parser.add_argument("--resume", type=str | None, default=None, help="folder of the run that is resumed")
    parser.add_subclass_arguments(
        AggregationCallback, "method", skip={"seed", "sampler", "local", "server"}, help="the algorithm"
    )
    parser.add_subclass_arguments(Partitioner, "partitioner", skip={"seed"}, help="shares the samples out to clients")
    parser.add_class_arguments(ClientSplit, "split", skip={"seed"})
    parser.add_class_arguments(CIFAR10DataModule, "data", skip={"partitioner", "split"})
    parser.add_class_arguments(MobileNetV2Classifier, "model", skip={"num_classes"})
    hidden = {"callbacks", "logger", "default_root_dir", "enable_checkpointing"}
    parser.add_class_arguments(L.Trainer, "trainer", skip=hidden)
    return parser


def read_options(argv: list[str]) -> tuple[ArgumentParser, Namespace]:
    """Parse the command line; it changes the settings of the preset, or of the run that is resumed."""
    parser = make_parser()
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="default")
    first.add_argument("--resume")
    chosen = first.parse_known_args(argv)[0]
    base = Path(chosen.resume) / "config.yaml" if chosen.resume else PRESETS / f"{chosen.preset}.yaml"
    if chosen.resume and not base.is_file():
        parser.error(f"--resume {chosen.resume}: there is no run in that folder (no config.yaml).")
    # the full parser names a wrong preset
    return parser, parser.parse_args([*(["--config", str(base)] if base.is_file() else []), *argv])


def build(spec: Namespace, **extra: Any) -> Any:
    """Make the object that a class path and its arguments describe."""
    module, _, name = spec.class_path.rpartition(".")
    return getattr(import_module(module), name)(**spec.init_args, **extra)


def cifar10(options: Namespace, shared: dict[str, Any]) -> tuple[FederatedDataModule, L.LightningModule]:
    """Return CIFAR-10 and the pre-trained MobileNetV2.

    Raises:
        OSError: If the data or the weights are missing and cannot be downloaded.
        RuntimeError: If the download is broken.
    """
    data = CIFAR10DataModule(**shared, **options.data)
    model = dict(options.model)
    folder = Path(options.data.data_dir or os.environ.get("FL_LIGHTNING_DATA", "data"))
    local = [path for path in (folder / "weights" / WEIGHTS_FILE, folder / WEIGHTS_FILE) if path.is_file()]
    if model["weights"] == "imagenet" and local:
        model["weights"] = str(local[0])
    data.prepare_data()
    return data, MobileNetV2Classifier(num_classes=10, **model)


def digits(options: Namespace, shared: dict[str, Any]) -> tuple[FederatedDataModule, L.LightningModule]:
    """Return the stand-in: scikit-learn's digits as 3x32x32 images, and a small convolutional network."""
    settings = {key: options.data[key] for key in ("batch_size", "eval_batch_size", "shuffle", "drop_last")}
    return DigitsDataModule(**shared, **settings), ConvNetClassifier(num_classes=10, lr=options.model.lr)


def choose_data(options: Namespace) -> tuple[str, FederatedDataModule, L.LightningModule]:
    """Return the name, the data and the model; ``auto`` takes the stand-in if CIFAR-10 or the weights are missing."""
    partitioner = build(options.partitioner, seed=options.seed)
    shared = {"partitioner": partitioner, "split": ClientSplit(**options.split, seed=options.seed)}
    if options.dataset == "digits":
        return "digits", *digits(options, shared)
    try:
        socket.setdefaulttimeout(20)
        return "cifar10", *cifar10(options, shared)
    except (OSError, RuntimeError) as error:
        if options.dataset == "cifar10":
            console.print(f"[bold red]`--dataset cifar10` needs CIFAR-10 and the weights:[/] {error}")
            raise SystemExit(1) from error
        text = (
            "[bold]This run does not use CIFAR-10.[/] CIFAR-10 or the weights of MobileNetV2 are missing and cannot "
            "be downloaded. scikit-learn's 1,797 digits, as 3x32x32 images, and a small network stand in for them. "
            f"The name of the run, its tags and its table say [bold]digits-standin[/].\n\n{error}"
        )
        console.print(Panel(text, title="STAND-IN DATA", border_style="yellow"))
        return "digits-standin", *digits(options, shared)
    finally:
        socket.setdefaulttimeout(None)


class FederationReport(Callback):
    """Logs the partition at the start, and the accuracy of each client after every validation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Draw the partition and log its statistics."""
        data: Any = trainer.datamodule
        if not trainer.is_global_zero:
            return
        statistics = data.statistics()
        console.print(str(statistics))
        figure, _, counts = data.plot()
        figure.savefig(self.folder / "partition.png", dpi=120, bbox_inches="tight")
        counts.to_csv(self.folder / "partition.csv")
        import wandb

        run = trainer.logger.experiment
        run.config.update({"partition": {**statistics.as_dict(), "fingerprint": data.partition.fingerprint()}})
        run.log(
            {
                "partition": wandb.Image(str(self.folder / "partition.png")),
                "client_sizes": wandb.Histogram([int(size) for size in data.partition.sizes]),
                "labels_by_client": wandb.Table(dataframe=counts.rename(columns=str).reset_index()),
            }
        )

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the distribution of the accuracy over validation clients."""
        metrics = next(c for c in trainer.callbacks if isinstance(c, ClientMetrics))
        if trainer.is_global_zero and trainer.state.fn == "fit" and metrics.values.get("val"):
            import wandb

            values = list(metrics.values["val"].values())
            trainer.logger.experiment.log(
                {"val_acc_by_client": wandb.Histogram(values), "epoch": trainer.current_epoch}
            )


def logged_in() -> bool:
    """Return whether Weights & Biases has a key of the user and can be reached."""
    import wandb

    try:
        return bool(wandb.login(prompt=False))
    except (wandb.errors.Error, OSError):
        return False


def make_logger(name: str, folder: Path, tags: list[str], options: dict[str, Any]) -> WandbLogger:
    """Return a W&B logger with the round as x axis; offline unless the user is logged in."""
    os.environ.setdefault("WANDB_SILENT", "true")
    online = os.environ.get("WANDB_MODE", "online") == "online" and logged_in()
    if online:
        console.print("Weights & Biases: online, project fl-lightning.")
    else:
        console.print(
            f"Weights & Biases: offline (not logged in). To send it later: wandb sync {folder}/wandb/offline-*"
        )
    logger = WandbLogger(
        name=name,
        project="fl-lightning",
        save_dir=folder,
        tags=tags,
        config=options,
        mode="online" if online else "offline",
    )
    logger.experiment.define_metric("*", step_metric="epoch")
    # a sweep compares the best value, not the last one
    logger.experiment.define_metric("val_acc_clients", step_metric="epoch", summary="max")
    return logger


def run_folder(options: Namespace, name: str) -> Path:
    """Return the folder to resume, or a new folder; no existing folder is overwritten.

    Only the first process makes one and writes there; Lightning tells the others where checkpoints are.
    """
    if options.resume is not None:
        return Path(options.resume)
    if rank_zero_only.rank > 0:
        return Path(options.output) / name
    number = 1
    while True:
        folder = Path(options.output) / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1


def evaluate(
    trainer: L.Trainer, model: L.LightningModule, data: FederatedDataModule, checkpoint: str
) -> dict[str, float]:
    """Return pooled and client-mean accuracies of a checkpoint on validation and test clients."""
    scores = {**trainer.validate(model, data, ckpt_path=checkpoint, verbose=False)[0]}
    scores.update(trainer.test(model, data, ckpt_path=checkpoint, verbose=False)[0])
    return scores


def report(row: dict[str, Any], folder: Path, seconds: float) -> None:
    """Print the result as a table, save it, and name the folder of all files."""
    table = Table("", "result", title=f"{row['method']} on {row['data set']}", title_justify="left")
    table.columns[1].justify = "right"
    for name, value in row.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)
    with (folder / "results.csv").open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(row)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"Training took {seconds:.0f} s; peak memory {memory:.2f} GB.")
    console.print(f"Checkpoints, partition picture, table and logs: {folder}")


def main(argv: list[str]) -> None:
    """Train, test and report."""
    quiet()
    parser, options = read_options(argv)
    L.seed_everything(options.seed, verbose=False)
    data_name, data, model = choose_data(options)
    method: AggregationCallback = build(options.method, seed=options.seed)
    method_name = type(method).__name__
    name = f"{data_name}-{method_name.lower()}-seed{options.seed}"
    folder = run_folder(options, name)
    if not options.resume and rank_zero_only.rank == 0:
        parser.save(options, folder / "config.yaml")
    tags = [data_name, method_name, options.preset]
    logger = make_logger(name, folder, tags, yaml.safe_load(parser.dump(options)))
    metrics = ClientMetrics()
    # only aggregated models compete for the best one; last.ckpt holds the newest round
    best = FederatedCheckpoint(folder, "best-{epoch}", monitor="val_acc_clients", mode="max")
    callbacks: list[Callback] = [method, metrics, FederationReport(folder), best]
    if data_name == "cifar10" and not data.augmented:
        callbacks.append(FrozenPrefixCache(cache_dir=Path(options.output).parent / "features"))
    trainer = L.Trainer(**options.trainer, callbacks=callbacks, logger=logger, default_root_dir=folder)
    begun = time.perf_counter()
    trainer.fit(model, datamodule=data, ckpt_path=str(folder / "last.ckpt") if options.resume else None)
    seconds = time.perf_counter() - begun
    if not best.best_model_path:
        console.print("No aggregated model was validated in these rounds: the last round's model is evaluated.")
    scores = evaluate(trainer, model, data, best.best_model_path or best.last_model_path)
    row = {
        "data set": data_name,
        "method": method_name,
        "seed": options.seed,
        "rounds": trainer.current_epoch,
        "aggregations": method.algorithm.server.aggregations,
        "models sent": method.algorithm.models_sent,
        "val acc (clients)": scores["val_acc_clients"],
        "val acc (pooled)": scores["val_acc"],
        "test acc (clients)": scores["test_acc_clients"],
        "test acc (pooled)": scores["test_acc"],
    }
    if trainer.is_global_zero:
        logger.experiment.summary.update(row)
        report(row, folder, seconds)


def quiet() -> None:
    """Silence the hints of Lightning that do not concern this script."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for hint in ("many workers", "eval mode at the start", "Checkpoint directory", "treespec"):
        warnings.filterwarnings("ignore", f".*{hint}.*")


if __name__ == "__main__":
    main(sys.argv[1:])
