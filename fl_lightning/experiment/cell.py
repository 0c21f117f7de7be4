"""Runs one cell: a fit and a test of its best model."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning.algorithms.versions import package_versions
from fl_lightning.callbacks.client_metrics import ClientMetrics
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.tensor_bytes import tensor_bytes
from fl_lightning.experiment.build import (
    build_callbacks,
    build_datamodule,
    build_method,
    build_metric,
    build_model,
    make_trainer,
)
from fl_lightning.experiment.callbacks import ConstantScores, CurveRecorder, KeepLast, read_rounds
from fl_lightning.experiment.code_version import code_version
from fl_lightning.experiment.damage import DamagedFileError, Note, checkpoint_to_resume, read_content
from fl_lightning.experiment.files import columns_of, write_csv, write_json
from fl_lightning.experiment.partition_picture import draw_partition
from fl_lightning.experiment.process_state import process_state_kept
from fl_lightning.experiment.selection import best_checkpoint, why_there_is_none
from fl_lightning.experiment.specs import identity

Result = dict[str, Any]
OnRound = Callable[[int], None]
_OF_A_RESULT = {"val", "test", "rounds"}


@dataclass(frozen=True)
class CellJob:
    """The order to run a cell, as plain data that can be sent to a worker process.

    Attributes:
        config: The configuration of the cell.
        folder: Folder for the files of the cell.
        labels: Data set, method, fold, seed and tuned values, for loggers.
        wandb: Arguments of a WandbLogger; no logger if empty.
        checkpoint_seconds: Time between two checkpoints from which a killed fit resumes.
        results: Folder of the experiment, for the picture of the partition; ``None`` draws none.
    """

    config: dict[str, Any]
    folder: str
    labels: dict[str, Any] = field(default_factory=dict)
    wandb: dict[str, Any] = field(default_factory=dict)
    checkpoint_seconds: float = 60.0
    results: str | None = None


@contextmanager
def quiet() -> Iterator[None]:
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


@quiet()
@process_state_kept()
def run_cell(job: CellJob, on_round: OnRound = lambda done: None, note: Note = lambda text: None) -> Result:
    """Fit and test one cell and return its result; the fit of a killed run resumes from its last checkpoint.

    The result depends only on the configuration and the code. Times are in ``run.json`` beside it.

    Args:
        job: The cell and its folder.
        on_round: Called after each round with the number of finished rounds.
        note: Called with a line for the user, if a damaged file is put aside.

    Raises:
        ValueError: If the configuration is wrong.
    """
    folder, config = Path(job.folder), job.config
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    begun = datetime.now(UTC)
    L.seed_everything(config["seed"], verbose=False)
    data = _datamodule(config)
    L.seed_everything(config["seed"], verbose=False)  # reading data may have drawn numbers
    model = build_model(config)
    method = build_method(config)
    initial = _fingerprint(model)
    best = best_checkpoint(folder, config, method.algorithm)
    keeper = KeepLast(folder / "last.ckpt", job.checkpoint_seconds, code_version())
    metric = build_metric(config)
    constant = ConstantScores(metric)
    callbacks: list[Callback] = [method, metric, *build_callbacks(config), constant]
    callbacks.append(CurveRecorder(folder / "curve.jsonl", on_round))
    callbacks += [keeper] if best is None else [best, keeper]
    trainer = make_trainer(config, callbacks, default_root_dir=folder, logger=_logger(job))
    try:
        resumed = checkpoint_to_resume(folder, best, note)
        _fit(trainer, model, data, resumed, note)
        seconds = keeper.seconds_so_far
        code = ", then ".join(keeper.codes)
        if len(keeper.codes) > 1:
            note(f"The fit ran under several versions of the code, which `code` names: {code}.")
        result = {
            **_outcome(config, trainer, model, data, best, folder),
            "constant": constant.scores,
            "rounds": trainer.current_epoch,
            "aggregations": method.algorithm.server.moves,
            "models_sent": method.algorithm.models_sent,
            "partition": data.partition.fingerprint(),
            "initial_weights": initial,
            "code": code,
        }
        _log_summary(trainer.logger, result)
        _draw(job, data, note)
    finally:
        _close(trainer.logger)
    device = str(trainer.strategy.root_device)
    times = {"seconds": seconds, "begun": _timestamp(begun), "ended": _timestamp(datetime.now(UTC))}
    about = {**times, "resumed": resumed is not None, "device": device, **package_versions()}
    _finish(folder, result, about, _rows_of_clients(metric, data))
    return result


def _fit(
    trainer: L.Trainer, model: L.LightningModule, data: FederatedDataModule, resumed: Path | None, note: Note
) -> None:
    try:
        trainer.fit(model, datamodule=data, ckpt_path=resumed)
    except Exception:
        if resumed is not None:
            note(f"The fit that failed was resumed from {resumed}. Delete that file to start the cell anew.")
        raise


_kept: dict[str, FederatedDataModule] = {}


def _datamodule(config: dict[str, Any]) -> FederatedDataModule:
    """Return the data module of a cell, ready for use.

    The last data module is kept, because the cells of a data set run one after the other.
    """
    key = identity([config["datamodule"], config["validate_on_test"], config["seed"]])
    if key not in _kept:
        _kept.clear()
        data = build_datamodule(config)
        data.prepare_data()
        data.setup()
        _kept[key] = data
    return _kept[key]


def _logger(job: CellJob) -> Any:
    if not job.wandb:
        return False
    from lightning.pytorch.loggers import WandbLogger

    labels = job.labels
    tuned = [f"{name}={value}" for name, value in labels["values"].items()]  # trials of a search differ in them alone
    name = "-".join([str(labels[key]) for key in ("data", "method", "fold", "seed")] + tuned)
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
    folder: Path,
) -> Result:
    """Return the validation score and all test metrics of the selected model."""
    if best is None:
        score = trainer.callback_metrics.get(config["monitor"])
        outcome = {"best_round": trainer.current_epoch, "val": None if score is None else float(score)}
        path = None
    else:
        if not best.best_model_path or best.best_model_score is None or not bool(best.best_model_score.isfinite()):
            raise ValueError(why_there_is_none(config, trainer, best, read_rounds(folder / "curve.jsonl")))
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


def _draw(job: CellJob, data: FederatedDataModule, note: Note) -> None:
    try:
        if job.results is not None:
            draw_partition(job.results, data, job.labels)
    except Exception as error:  # a result is worth more than its picture
        note(f"The partition could not be drawn: {error}")


def _log_summary(logger: Any, result: Result) -> None:
    if logger is not None:
        own = {name: value for name, value in result.items() if name not in ("test", "constant")}
        logger.experiment.summary.update({**own, **result["test"]})


def _close(logger: Any) -> None:
    """End the run of Weights & Biases, so that the next cell of this process starts its own."""
    if logger is not None:
        logger.experiment.finish()


def _timestamp(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _rows_of_clients(metric: ClientMetrics, data: FederatedDataModule) -> list[dict[str, Any]]:
    """Return each test client's number, its name if clients have names, and its score."""
    names = data.client_names
    return [
        {"client": client, **({} if names is None else {"name": names[client]}), f"test_{metric.name}": score}
        for client, score in metric.values.get("test", {}).items()
    ]


def _finish(folder: Path, result: Result, about: dict[str, Any], clients: list[dict[str, Any]]) -> None:
    rows = read_rounds(folder / "curve.jsonl")
    write_csv(folder / "curve.csv", columns_of(rows, ["round"]), rows)
    if clients:
        write_csv(folder / "clients.csv", list(clients[0]), clients)
    write_json(folder / "run.json", about)
    write_json(folder / "result.json", result)
    clear(folder)


def clear(folder: Path) -> None:
    """Remove the files that only an unfinished cell needs."""
    for name in ("curve.jsonl", "last.ckpt", "best.ckpt", "failed.json"):
        (folder / name).unlink(missing_ok=True)


def read_result(folder: Path) -> Result | None:
    """Return the result of a finished cell; ``None`` if the cell is not finished.

    Raises:
        DamagedFileError: If the file of the result is damaged.
    """
    path = folder / "result.json"
    if not path.exists():
        return None
    result = read_content(path, _OF_A_RESULT)
    test = result["test"] if isinstance(result["test"], dict) else {"test": None}
    values = {"rounds": result["rounds"], "val": 0.0 if result["val"] is None else result["val"], **test}
    if wrong := [name for name, value in values.items() if not isinstance(value, (int, float))]:
        raise DamagedFileError(path, f"has no number as {', '.join(wrong)}")
    return result


def _fingerprint(model: L.LightningModule) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()[:16]
