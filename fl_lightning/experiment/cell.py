"""Runs one cell: a fit and a test of its best model."""

from __future__ import annotations

import hashlib
import logging
import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning.algorithms.base import AggregationCallback
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.data import FederatedDataModule
from fl_lightning.experiment.callbacks import CurveRecorder, KeepLast, read_rounds
from fl_lightning.experiment.files import columns_of, read_json, write_csv, write_json
from fl_lightning.experiment.specs import build, identity, locate
from fl_lightning.experiment.versions import code_version, package_versions

Result = dict[str, Any]
_TRAINER = {
    "devices": 1,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


@dataclass(frozen=True)
class CellJob:
    """The order to run a cell, as plain data that can be sent to a worker process.

    Attributes:
        config: The configuration of the cell.
        folder: Folder for the files of the cell.
        labels: Data set, method, fold, seed and tuned values, for loggers.
        wandb: Arguments of a WandbLogger; no logger if empty.
        checkpoint_seconds: Time between two checkpoints from which a killed fit resumes.
    """

    config: dict[str, Any]
    folder: str
    labels: dict[str, Any] = field(default_factory=dict)
    wandb: dict[str, Any] = field(default_factory=dict)
    checkpoint_seconds: float = 60.0


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the hints of Lightning that do not concern a series of fits."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for hint in ("many workers", "eval mode at the start", "Checkpoint directory", "treespec", "litlogger"):
                warnings.filterwarnings("ignore", f".*{hint}.*")
            yield
    finally:
        logger.setLevel(level)


@_quiet()
def run_cell(job: CellJob, on_round: Callable[[int], None] = lambda done: None) -> Result:
    """Fit and test one cell and return its result; the fit of a killed run resumes from its last checkpoint.

    The result depends on the configuration and the code alone. Times are in ``run.json`` beside it.

    Args:
        job: The cell and its folder.
        on_round: Called after each round with the number of finished rounds.

    Raises:
        ValueError: If the configuration is wrong.
    """
    folder, config = Path(job.folder), job.config
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    L.seed_everything(config["seed"], verbose=False)
    data = _datamodule(config)
    L.seed_everything(config["seed"], verbose=False)  # reading data may have drawn numbers
    model: L.LightningModule = build(config["model"])
    method = _method(config)
    initial = _fingerprint(model)
    best = None if config["select"] == "last" else _best(folder, config, method)
    trainer = _trainer(job, method, best, on_round)
    last = folder / "last.ckpt"
    begun = time.perf_counter()
    try:
        trainer.fit(model, datamodule=data, ckpt_path=last if last.exists() else None)
        seconds = time.perf_counter() - begun
        result = {
            **_outcome(config, trainer, model, data, best),
            "rounds": trainer.current_epoch,
            "aggregations": method.algorithm.server.aggregations,
            "models_sent": method.algorithm.models_sent,
            "partition": data.partition.fingerprint(),
            "initial_weights": initial,
            "code": code_version(),
        }
        _log_summary(trainer.logger, result)
    finally:
        _close(trainer.logger)
    _finish(folder, result, seconds, str(trainer.strategy.root_device))
    return result


_kept: dict[str, FederatedDataModule] = {}


def _datamodule(config: dict[str, Any]) -> FederatedDataModule:
    """Return the data module of a cell, ready for use.

    The last data module is kept, because the cells of a data set run one after the other.
    """
    key = identity([config["datamodule"], config["validate_on_test"], config["seed"]])
    if key not in _kept:
        _kept.clear()
        data = build(config["datamodule"])
        if not isinstance(data, FederatedDataModule):
            raise ValueError(
                f"`datamodule` must be a FederatedDataModule, got {type(data).__name__}. Give the class path of one, "
                "such as datamodules.MNISTDataModule."
            )
        data.prepare_data()
        data.setup()
        if config["validate_on_test"]:
            data.val_dataloader = data.test_dataloader  # type: ignore[method-assign]
        _kept[key] = data
    return _kept[key]


def _method(config: dict[str, Any]) -> AggregationCallback:
    spec = config["callback"]
    # not "auto": it measures times, so a resumed run could choose another executor, whose rounding differs
    arguments = {"seed": config["seed"], "executor": "sequential", **(spec.get("init_args") or {})}
    method = build({**spec, "init_args": arguments})
    if not isinstance(method, AggregationCallback):
        raise ValueError(
            f"`callback` must be an aggregation callback such as FedAvg, got {type(method).__name__}. Other callbacks "
            "belong into the list `callbacks`."
        )
    return method


def _best(folder: Path, config: dict[str, Any], method: AggregationCallback) -> ModelCheckpoint:
    every = int(config["trainer"].get("check_val_every_n_epoch", 1))
    cycle = getattr(method, "redistributions", 1) if config["select"] == "aggregated" else 1
    candidates, rounds = math.lcm(every, cycle), config["trainer"].get("max_epochs", 1000)
    if candidates > rounds:
        raise ValueError(
            f"No aggregated model would be validated: the server acts every {cycle} rounds, validation comes every "
            f"{every}, and there are {rounds}. Let `check_val_every_n_epoch` divide {cycle}, give more rounds, or "
            "`select: virtual`."
        )
    return ModelCheckpoint(
        folder,
        "best",
        monitor=config["monitor"],
        mode=config["mode"],
        every_n_epochs=candidates,
        save_weights_only=True,
        enable_version_counter=False,
    )


def _trainer(
    job: CellJob, method: AggregationCallback, best: ModelCheckpoint | None, on_round: Callable[[int], None]
) -> L.Trainer:
    folder, config = Path(job.folder), job.config
    metric = ClientMetrics(locate(config["metric"]["function"]), config["metric"]["name"])
    further: list[Callback] = build(config["callbacks"])
    callbacks = [method, metric, *further, CurveRecorder(folder / "curve.jsonl", on_round)]
    callbacks += [best] if best is not None else []
    callbacks.append(KeepLast(folder / "last.ckpt", job.checkpoint_seconds))
    settings = {**_TRAINER, **build(config["trainer"]), "default_root_dir": folder}
    return L.Trainer(**settings, callbacks=callbacks, logger=_logger(job))


def _logger(job: CellJob) -> Any:
    if not job.wandb:
        return False
    from lightning.pytorch.loggers import WandbLogger

    labels = job.labels
    name = "-".join(str(labels[key]) for key in ("data", "method", "fold", "seed"))
    run_id = Path(job.folder).name
    config = {**labels, "cell": job.config, "code": code_version(), **package_versions()}
    settings = {"name": name, "group": f"{labels['data']}-{labels['method']}", "config": config, **job.wandb}
    # each attempt has a folder of its own; `wandb sync` joins the folders of one id
    return WandbLogger(save_dir=job.folder, id=run_id, resume="allow", **settings)


def _outcome(
    config: dict[str, Any],
    trainer: L.Trainer,
    model: L.LightningModule,
    data: FederatedDataModule,
    best: ModelCheckpoint | None,
) -> Result:
    """Return the validation score and all test metrics of the selected model."""
    if best is None:
        score = trainer.callback_metrics.get(config["monitor"])
        outcome = {"best_round": trainer.current_epoch, "val": None if score is None else float(score)}
        path = None
    else:
        if not best.best_model_path or best.best_model_score is None or not bool(best.best_model_score.isfinite()):
            raise ValueError(
                f"There is no best model: `{config['monitor']}` was never logged, or is not finite. Metrics were "
                f"{', '.join(sorted(trainer.callback_metrics))}. Lower the learning rate, or correct `monitor`."
            )
        outcome = {"best_round": _best_round(Path(best.best_model_path)), "val": float(best.best_model_score)}
        path = best.best_model_path
    logged = {}
    if data.test_dataloader():
        [metrics] = trainer.test(model, datamodule=data, ckpt_path=path, verbose=False)
        logged = {name: float(value) for name, value in metrics.items()}
    return {**outcome, "test": logged}


def _best_round(path: Path) -> int:
    import torch

    return int(torch.load(path, weights_only=True, map_location="cpu")["epoch"]) + 1


def _log_summary(logger: Any, result: Result) -> None:
    if logger is not None:
        logger.experiment.summary.update({**{k: v for k, v in result.items() if k != "test"}, **result["test"]})


def _close(logger: Any) -> None:
    """End the run of Weights & Biases, so that the next cell of this process starts its own."""
    if logger is not None:
        logger.experiment.finish()


def _finish(folder: Path, result: Result, seconds: float, device: str) -> None:
    rows = read_rounds(folder / "curve.jsonl")
    write_csv(folder / "curve.csv", columns_of(rows, ["round"]), rows)
    write_json(folder / "run.json", {"seconds": seconds, "device": device, **package_versions()})
    write_json(folder / "result.json", result)
    _clear(folder)


def _clear(folder: Path) -> None:
    """Remove the files that only an unfinished cell needs."""
    for name in ("curve.jsonl", "last.ckpt", "best.ckpt", "failed.json"):
        (folder / name).unlink(missing_ok=True)


def finished(folder: Path) -> Result | None:
    """Return the result of a finished cell; ``None`` if the cell is not finished."""
    path = folder / "result.json"
    if not path.exists():
        return None
    _clear(folder)  # the run may have been killed after it wrote the result and before it cleared the folder
    result: Result = read_json(path)
    return result


def _fingerprint(model: L.LightningModule) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
