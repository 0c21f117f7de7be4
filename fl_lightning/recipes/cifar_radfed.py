"""RADFed, or FedAvg, on CIFAR-10: 100 clients by QP, a pre-trained MobileNetV2 trained from its last bottleneck on.

    python recipes/cifar_radfed.py                                   # a few minutes on two CPU cores
    python recipes/cifar_radfed.py --preset paper                    # the setting of the paper; needs a GPU
    python recipes/cifar_radfed.py --method FedAvg --seed 2          # another algorithm, as many rounds
    python recipes/cifar_radfed.py --method.redistributions 5 --partitioner.class_alpha 1.0 --model.lr 0.1
    python recipes/cifar_radfed.py --config my.yaml                  # any of the options below, as yaml
    python recipes/cifar_radfed.py --resume runs/cifar_radfed/cifar10-radfed-seed1

CIFAR-10 and the weights are read from `--data-dir` (default: $FL_LIGHTNING_DATA, else data), or downloaded. If neither
is possible, `--dataset auto` takes scikit-learn's digits as a stand-in, and says so.

The folder of the run holds a picture of it (`run.png`: classes of the clients, curves, accuracy of each client),
checkpoints, the partition, the settings, the results and the logs.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import shlex
import socket
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import lightning as L
import pandas as pd
import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from fl_lightning import AggregationCallback, ClientMetrics, FederatedCheckpoint, FrozenPrefixCache, partition_report
from fl_lightning._lightning.logs.round_logging import make_wandb_logger
from fl_lightning.command.parser import Parser, ends_by_error, ends_by_interrupt
from fl_lightning.data import ClientSplit, FederatedDataModule
from fl_lightning.datamodules import CIFAR10DataModule, DigitsDataModule
from fl_lightning.models import ConvNetClassifier, MobileNetV2Classifier
from fl_lightning.partitioners import Partitioner
from fl_lightning.report import plot_run

PRESETS = Path(__file__).parent / "presets"


def is_first_process() -> bool:
    """Return whether this is the first of the processes that train."""
    return getattr(rank_zero_only, "rank", 0) == 0


#: Says everything once, however many processes train.
console = Console(quiet=not is_first_process())


def make_parser() -> Parser:
    """Return the parser of all options; an option with a dot goes to the class of that name."""
    parser = Parser(description=__doc__, prog="cifar_radfed.py")
    parser.add_argument("--config", action="config", help="yaml file with any of these options")
    parser.add_argument("--preset", type=Literal["default", "paper"], default="default", help="base settings")
    text = "auto: CIFAR-10 if it is here or can be downloaded, else the digits as a stand-in"
    parser.add_argument("--dataset", type=Literal["auto", "cifar10", "digits"], default="auto", help=text)
    parser.add_argument("--seed", type=int, default=1, help="seed of partition, split, weights and training")
    text = "folder of CIFAR-10; default: $FL_LIGHTNING_DATA, else data"
    parser.add_argument("--data-dir", type=str | None, default=None, help=text)
    parser.add_argument("--output", type=str, default="runs/cifar_radfed", help="folder with one folder for each run")
    parser.add_argument("--resume", type=str | None, default=None, help="folder of the run that is resumed")
    parts = {"sampler", "local", "server"}
    parser.add_subclass_arguments(AggregationCallback, "method", skip=parts, help="the algorithm")
    parser.add_subclass_arguments(Partitioner, "partitioner", help="says who has which samples")
    parser.add_class_arguments(ClientSplit, "split")
    for seeded in ("method.init_args", "partitioner.init_args", "split"):
        parser.link_arguments("seed", f"{seeded}.seed")
    given = {"partitioner", "split", "data_dir"}
    parser.add_class_arguments(CIFAR10DataModule, "data", skip=given, instantiate=False)
    parser.add_class_arguments(MobileNetV2Classifier, "model", skip={"num_classes"}, instantiate=False)
    given = {"callbacks", "logger", "default_root_dir", "enable_checkpointing"}
    parser.add_class_arguments(L.Trainer, "trainer", skip=given, instantiate=False)
    return parser


def read_options(argv: list[str]) -> tuple[Parser, Namespace]:
    """Parse the command line; it changes the settings of the preset, or of the run that is resumed."""
    parser = make_parser()
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="default")
    first.add_argument("--resume")
    chosen = first.parse_known_args(argv)[0]
    base = PRESETS / f"{chosen.preset}.yaml"
    if chosen.resume:
        base = Path(chosen.resume) / "config.yaml"
        if not base.is_file():
            parser.error(f"--resume {chosen.resume}: there is no run in that folder (no config.yaml).")
    # For a wrong preset there is no file, and the full parser raises the error.
    if base.is_file():
        argv = ["--config", str(base), *argv]
    return parser, parser.parse_args(argv)


def choose_data(options: Namespace, shared: dict[str, Any]) -> tuple[str, FederatedDataModule, L.LightningModule]:
    """Return the name, the data and the model; ``auto`` takes the stand-in if CIFAR-10 or the weights are missing.

    The stand-in are scikit-learn's digits as 3x32x32 images, and a small convolutional network.

    Args:
        options: All options.
        shared: Partitioner and split of the data.
    """
    name = "digits"
    if options.dataset != "digits":
        socket.setdefaulttimeout(20)
        try:
            data = CIFAR10DataModule(options.data_dir, **shared, **options.data)
            data.prepare_data()
            return "cifar10", data, MobileNetV2Classifier(num_classes=10, **options.model)
        except (OSError, RuntimeError) as error:
            if options.dataset == "cifar10":
                console.print(f"[bold red]`--dataset cifar10` needs CIFAR-10 and the weights:[/] {error}")
                raise SystemExit(1) from error
            name = "digits-standin"
            text = (
                "[bold]This run does not use CIFAR-10.[/] CIFAR-10 or the weights of MobileNetV2 are missing and "
                "cannot be downloaded. scikit-learn's 1,797 digits, as 3x32x32 images, and a small network stand in "
                f"for them. The name of the run, its tags and its table say [bold]{name}[/].\n\n{error}"
            )
            console.print(Panel(text, title="STAND-IN DATA", border_style="yellow"))
        finally:
            socket.setdefaulttimeout(None)
    settings = {key: options.data[key] for key in ("batch_size", "eval_batch_size", "shuffle", "drop_last")}
    digits = DigitsDataModule(**shared, **settings)
    return name, digits, ConvNetClassifier(num_classes=10, lr=options.model.lr)


def make_loggers(folder: Path, tags: list[str], options: dict[str, Any]) -> list[Any]:
    """Return W&B's logger, online where the user is logged in, and one of a CSV file for each start of the run.

    A run of a sweep has one more, for the sweep.
    """
    import wandb

    os.environ.setdefault("WANDB_SILENT", "true")
    online = False
    if os.environ.get("WANDB_MODE", "online") == "online":
        with suppress(wandb.errors.Error, OSError):
            online = bool(wandb.login(prompt=False))
    # A resumed fit continues its run.
    earlier_runs = sorted(folder.glob("wandb/*run-*-*"))
    run_id = None
    if earlier_runs:
        run_id = earlier_runs[0].name.rpartition("-")[2]
    logger = make_wandb_logger(
        name=folder.name,
        project="fl-lightning",
        save_dir=folder,
        tags=tags,
        config=options,
        id=run_id,
        resume="allow" if run_id else None,
        mode="online" if online else "offline",
        # The console would record every state of the progress bar.
        settings=wandb.Settings(console="off"),
    )
    # The service of Weights & Biases then compares the best values of a sweep's runs, not the last ones.
    logger.experiment.define_metric("val_acc_clients", summary="max")
    text = "online, project fl-lightning."
    # Only the first process has a run.
    if not online and is_first_process():
        run = os.path.relpath(Path(logger.experiment.dir).parent)
        text = f"offline (not logged in). To send this run later: wandb sync {shlex.quote(str(run))}"
    console.print(f"Weights & Biases: {text}", soft_wrap=True)
    attempt = len(list(folder.glob("log-*"))) + 1
    loggers = [logger, CSVLogger(folder, name=None, version=f"log-{attempt}")]
    if "FL_LIGHTNING_LOGS" in os.environ:
        # `fl-lightning sweep` reads the score of the run there.
        loggers.append(CSVLogger(os.environ["FL_LIGHTNING_LOGS"], name=None, version=""))
    return loggers


def run_folder(options: Namespace, name: str) -> Path:
    """Return the folder to resume, or a new folder; no existing folder is overwritten.

    Only the first process makes one and writes there; Lightning tells the others where checkpoints are.
    """
    if options.resume is not None:
        return Path(options.resume)
    if not is_first_process():
        return Path(options.output) / name
    folder = Path(options.output) / name
    number = 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = folder.with_name(f"{name}-{number}")


def report(row: dict[str, Any], folder: Path, seconds: float) -> None:
    """Print the result as a table, save it, and name the folder of all files."""
    table = Table("", "result", title=f"{row['method']} on {row['data set']}", title_justify="left")
    table.columns[1].justify = "right"
    for name, value in row.items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)
    results = folder / "results.csv"
    pd.DataFrame([row]).to_csv(results, mode="a", header=not results.exists(), index=False)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    console.print(f"Training took {seconds:.0f} s; peak memory {memory:.2f} GB.")
    console.print(f"Picture of the run: {folder / 'run.png'}", soft_wrap=True)
    console.print(f"Checkpoints, partition, settings, results and logs: {folder}", soft_wrap=True)


def say_how_to_resume(trainer: L.Trainer, folder: Path) -> str:
    """Return what is printed after Ctrl-C, once the training has begun."""
    round_number = min(trainer.current_epoch + 1, trainer.max_epochs or 0)
    if not (folder / "last.ckpt").is_file():
        return f"Interrupted in round {round_number}, before the first checkpoint. Start again with the same command."
    return f"Interrupted in round {round_number}. Resume with: python {os.path.relpath(sys.argv[0])} --resume {folder}"


def main(argv: list[str]) -> None:
    """Train, test and report."""
    quiet()
    parser, options = read_options(argv)
    if options.data_dir is not None:
        # MobileNetV2Classifier looks there for its weights.
        os.environ["FL_LIGHTNING_DATA"] = options.data_dir
    L.seed_everything(options.seed, verbose=False)
    parts = parser.instantiate(options)
    shared = {"partitioner": parts.partitioner, "split": parts.split}
    data_name, data, model = choose_data(options, shared)
    method: AggregationCallback = parts.method
    method_name = type(method).__name__
    folder = run_folder(options, f"{data_name}-{method_name.lower()}-seed{options.seed}")
    if not options.resume and is_first_process():
        parser.save(options, folder / "config.yaml")
    tags = [data_name, method_name, options.preset]
    loggers = make_loggers(folder, tags, yaml.safe_load(parser.dump(options)))
    data.setup()
    if is_first_process():
        console.print(partition_report(data, folder, logger=loggers[0], overwrite=True))
        data.plot().table.to_csv(folder / "partition.csv")
    metrics = ClientMetrics()
    parameters = list(model.parameters())
    trained = sum(each.numel() for each in parameters if each.requires_grad)
    total = sum(each.numel() for each in parameters)
    console.print(f"Model: {type(model).__name__}, {total:,} parameters, of which {trained:,} are trained")
    # Only aggregated models compete for the best one; last.ckpt holds the newest round.
    best = FederatedCheckpoint(folder, "best-{epoch}", monitor="val_acc_clients", mode="max")
    callbacks: list[Callback] = [method, metrics, best]
    if data_name == "cifar10" and not data.augmented:
        callbacks.append(FrozenPrefixCache(cache_dir=Path(options.output).parent / "features"))
    trainer = L.Trainer(**options.trainer, callbacks=callbacks, logger=loggers, default_root_dir=folder)
    begun = time.perf_counter()
    resumed = str(folder / "last.ckpt") if options.resume else None
    with ends_by_interrupt(lambda: say_how_to_resume(trainer, folder)):
        trainer.fit(model, datamodule=data, ckpt_path=resumed)
    seconds = time.perf_counter() - begun
    if not best.best_model_path:
        console.print("No aggregated model was validated in these rounds: the last round's model is evaluated.")
    checkpoint = best.best_model_path or best.last_model_path
    [val] = trainer.validate(model, data, ckpt_path=checkpoint, verbose=False)
    [test] = trainer.test(model, data, ckpt_path=checkpoint, verbose=False)
    if trainer.is_global_zero:
        row = {
            "data set": data_name,
            "method": method_name,
            "seed": options.seed,
            "rounds": trainer.current_epoch,
            "aggregations": method.algorithm.server.moves,
            "models sent": method.algorithm.models_sent,
            "val acc (clients)": val["val_acc_clients"],
            "val acc (pooled)": val["val_acc"],
            "test acc (clients)": test["test_acc_clients"],
            "test acc (pooled)": test["test_acc"],
        }
        loggers[0].experiment.summary.update(row)
        logs = sorted(folder.glob("log-*"), key=lambda path: int(path.name.partition("-")[2]))
        plot_run(logs, data, metrics.values).savefig(folder / "run.png", dpi=120)
        report(row, folder, seconds)


def quiet() -> None:
    """Silence the hints of Lightning that do not concern this script."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for hint in ("many workers", "eval mode at the start", "Checkpoint directory", "treespec"):
        warnings.filterwarnings("ignore", f".*{hint}.*")


if __name__ == "__main__":
    with ends_by_interrupt(lambda: "Interrupted before or after the training."), ends_by_error():
        main(sys.argv[1:])
