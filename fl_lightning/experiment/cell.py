"""Runs one cell: a fit and a test of its best model."""

from __future__ import annotations

import logging
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from fl_lightning._lightning.checkpoint_files import DamagedCheckpointError, check_whole, read_checkpoint
from fl_lightning._lightning.logs.round_logging import make_wandb_logger
from fl_lightning.algorithms.versions import package_versions
from fl_lightning.callbacks.checkpoint import FederatedCheckpoint
from fl_lightning.callbacks.client_metrics import ClientMetrics, rows_of_clients
from fl_lightning.data import FederatedDataModule
from fl_lightning.data.tensor_bytes import fingerprint
from fl_lightning.experiment import build
from fl_lightning.experiment.callbacks import CurveRecorder, KeepLast, Pruning
from fl_lightning.experiment.claims import Claim, LostClaimError
from fl_lightning.experiment.files import columns_of, write_csv, write_json
from fl_lightning.experiment.kept_model import write_model
from fl_lightning.experiment.plan import Cell
from fl_lightning.experiment.store import Result, code_version, draw_partition
from fl_lightning.parts.algorithm import Algorithm

#: The most frequent classes are tried as constant predictions.
_MOST_CLASSES = 10
_HINTS = ("many workers", "eval mode at the start", "Checkpoint directory", "treespec", "litlogger")


@dataclass(frozen=True)
class CellJob:
    """The order to run a cell, which can be sent to a process.

    Attributes:
        cell: The cell.
        results: Folder of the experiment.
        wandb: Arguments of a WandbLogger; no logger if empty.
        checkpoint_seconds: Time between two checkpoints from which a killed fit resumes.
        claim: The claim of the runner; ``None`` if nobody else knows the folder.
    """

    cell: Cell
    results: Path
    wandb: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_seconds: float = 60.0
    claim: Claim | None = None

    @property
    def folder(self) -> Path:
        """Folder for the files of the cell."""
        return self.results / "cells" / self.cell.id

    @property
    def log(self) -> Path:
        """File for the output of a process that runs the cell."""
        return self.folder / "log.txt"

    @property
    def attempt(self) -> Claim:
        """The attempt, which names the files that only this one writes."""
        return self.claim or Claim(self.folder, 1)

    def check_claim(self) -> None:
        """Raise :class:`LostClaimError` if another runner has taken the cell over."""
        if self.is_lost():
            raise LostClaimError(self.attempt)

    def is_lost(self) -> bool:
        """Return whether another runner has taken the cell over."""
        return self.claim is not None and self.claim.is_lost()

    def run(self) -> None:
        """Write the result of the cell to its folder."""
        run_cell(self)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the hints of Lightning that do not concern a series of fits."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            for hint in _HINTS:
                warnings.filterwarnings("ignore", f".*{hint}.*")
            yield
    finally:
        logger.setLevel(level)


@quiet()
def run_cell(job: CellJob, watching: Sequence[Callback] = ()) -> Result:
    """Fit and test one cell and return its result; the fit of a killed run resumes from its last checkpoint.

    The result depends only on the configuration and the code. Times are in ``run.json`` beside it.

    Args:
        job: The cell and its folder.
        watching: Further callbacks, which change no result.

    Raises:
        ValueError: If the configuration is wrong.
    """
    folder = job.folder
    config = job.cell.config
    attempt = job.attempt
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    begun = datetime.now(UTC)

    # Build the parts of the fit.
    data = build.prepared_data(config)
    model = build.model(config)
    method = build.method(config)
    initial = fingerprint([tensor for _, tensor in sorted(model.state_dict().items())])
    metric = build.metric(config)
    curve = CurveRecorder(attempt.file("curve.jsonl"))
    keeper = KeepLast(attempt, job.checkpoint_seconds, code_version(), job.check_claim)
    callbacks: list[Callback] = [method, metric, *build.callbacks(config), curve, *watching]
    pruning = None
    if "pruning" in config:
        pruning = Pruning(config, folder.parent, curve)
        callbacks.append(pruning)
    best = best_checkpoint(attempt.file("best.ckpt"), config, method.algorithm)
    if best is not None:
        callbacks.append(best)
    callbacks.append(keeper)
    trainer = build.trainer(config, callbacks, default_root_dir=folder, logger=_logger(job))

    # Fit and test.
    resumed = _checkpoint_to_resume(attempt, best)
    try:
        trainer.fit(model, datamodule=data, ckpt_path=resumed)
        seconds = keeper.seconds_so_far
        # A test may take all state back to that of the best round.
        rounds = list(curve.rounds)
        of_fit = {
            "rounds": trainer.current_epoch,
            "aggregations": method.algorithm.server.moves,
            "models_sent": method.algorithm.models_sent,
        }
        if pruning is not None and pruning.score is not None:
            # No model is tested.
            outcome: Result = {"pruned": True, "val": pruning.score, "test": {}}
        else:
            if best is None and config.get("keep_model"):
                # It is the last model that is tested.
                weights_only = not method.algorithm.has_personal
                trainer.save_checkpoint(attempt.file("best.ckpt"), weights_only=weights_only)
            outcome = _outcome(trainer, model, data, config["monitor"], best)
        result = {
            **outcome,
            "constant": constant_scores(metric, data) if outcome["test"] else {},
            **of_fit,
            "partition": data.partition.fingerprint(),
            "initial_weights": initial,
            "code": ", then ".join(keeper.codes),
        }
        if trainer.logger is not None:
            summary = {name: value for name, value in result.items() if name not in ("test", "constant")}
            trainer.logger.experiment.summary.update({**summary, **result["test"]})  # type: ignore[attr-defined]
    except Exception as error:
        if resumed is not None:
            error.add_note(f"The fit was resumed from {resumed}. Delete that file to start the cell again.")
        raise
    finally:
        # The next cell of this process starts a run of its own.
        if trainer.logger is not None:
            trainer.logger.experiment.finish()  # type: ignore[attr-defined]

    # Write the files; that of the result comes last, because the cell counts as finished from then on.
    job.check_claim()
    draw_partition(job.results, data, job.cell)
    write_csv(folder / "curve.csv", columns_of(rounds, ["round"]), rounds)
    clients = _rows_of_clients(metric, data)
    if clients:
        write_csv(folder / "clients.csv", list(clients[0]), clients)
    if config.get("keep_model"):
        write_model(folder, attempt.file("best.ckpt"), method)
    about = {
        "seconds": seconds,
        "begun": begun.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "resumed": resumed is not None,
        "device": str(trainer.strategy.root_device),
        **package_versions(),
    }
    write_json(folder / "run.json", about)
    job.check_claim()
    write_json(folder / "result.json", result)
    return result


def _checkpoint_to_resume(attempt: Claim, best: ModelCheckpoint | None) -> Path | None:
    """Return the newest checkpoint of the attempts before, from which a fit goes on; ``None`` if none can be used.

    One that is damaged, or whose best model is, cannot; it is named. Neither can one that was written in another
    folder, or by a version with other callbacks: it does not know the best model so far.
    """
    for earlier in attempt.earlier():
        path = earlier.file("last.ckpt")
        if not path.exists():
            continue
        try:
            state = read_checkpoint(path)["callbacks"]
            if best is None:
                return path
            kept = state.get(best.state_key, {})
            if kept.get("dirpath") != best.dirpath:
                continue
            if kept["best_model_path"]:
                check_whole(Path(kept["best_model_path"]))
        except (OSError, DamagedCheckpointError) as error:
            warnings.warn(f"{error} The cell does not go on from {path}.", stacklevel=2)
        else:
            return path
    return None


def _logger(job: CellJob) -> Any:
    if not job.wandb:
        return False
    cell = job.cell
    labels = {"data": cell.data, "method": cell.method, "fold": cell.fold, "seed": cell.seed, "values": cell.values}
    # The trials of a search differ in their values alone.
    values = [f"{name}={value}" for name, value in cell.values.items()]
    settings = {
        "name": "-".join([cell.data, cell.method, str(cell.fold), str(cell.seed), *values]),
        "group": f"{cell.data}-{cell.method}",
        "config": {**labels, "cell": cell.config, "code": code_version(), **package_versions()},
        **job.wandb,
    }
    # Each attempt has a folder of its own; `wandb sync` joins the folders of one id.
    return make_wandb_logger(save_dir=job.folder, id=cell.id, resume="allow", **settings)


def _outcome(
    trainer: L.Trainer, model: L.LightningModule, data: FederatedDataModule, monitor: str, best: ModelCheckpoint | None
) -> Result:
    """Return the validation score and all test metrics of the selected model."""
    path: str | None = None
    rounds = trainer.current_epoch
    score = trainer.callback_metrics.get(monitor)
    if best is not None:
        path = best.best_model_path
        score = best.best_model_score
        if not path or score is None or not bool(score.isfinite()):
            raise ValueError(_why_there_is_none(monitor, trainer, best))
        rounds = int(read_checkpoint(Path(path))["epoch"]) + 1
    test = {}
    if data.test_dataloader():
        [tested] = trainer.test(model, datamodule=data, ckpt_path=path, verbose=False)
        test = {name: float(value) for name, value in tested.items()}
    return {"best_round": rounds, "val": None if score is None else float(score), "test": test}


def _rows_of_clients(metric: ClientMetrics, data: FederatedDataModule) -> list[dict[str, Any]]:
    """Return each test client's number, its name if clients have names, its number of samples, and its scores.

    These are the score of the model that all clients share and, if it has one, of the client's own model.
    """
    names = data.client_names
    owners = data.eval_client_ids("test")
    samples = Counter([] if owners is None else owners.tolist())
    own = metric.own_values.get("test", {})
    rows = []
    for client, score in metric.shared_values.get("test", {}).items():
        row: dict[str, Any] = {"client": client}
        if names is not None:
            row["name"] = names[client]
        row["samples"] = samples[client]
        row[f"test_{metric.name}"] = score
        if own:
            row[f"test_{metric.name}_personal"] = own[client]
        rows.append(row)
    return rows


def constant_scores(metric: ClientMetrics, data: FederatedDataModule) -> dict[str, float]:
    """Return the test scores, by their names, of the best model that predicts one class for every sample.

    There are none if targets are no classes, or the metric takes other scores than those of classes.
    """
    owners = data.eval_client_ids("test")
    name = f"test_{metric.name}"
    found: dict[str, list[float]] = defaultdict(list)
    # The metric decides what it takes, and says so by errors of any kind.
    with suppress(Exception):
        target = torch.cat([data.outputs_and_targets(batch, None)[1] for batch in data.test_dataloader()])
        counts = torch.bincount(target)
        found["test_acc"].append(float(counts.max()) / len(target))
        for label in counts.topk(min(_MOST_CLASSES, len(counts))).indices:
            preds = torch.zeros(len(target), max(2, len(counts)))
            preds[:, label] = 1
            found[name].append(float(metric.metric(preds, target)))
            if owners is not None:
                of_clients = [float(metric.metric(*rows)) for _, rows in rows_of_clients(owners, preds, target)]
                found[f"{name}_clients"].append(float(np.mean(_finite(of_clients))))
    best = {}
    for key, scores in found.items():
        known = _finite(scores)
        if known:
            best[key] = max(known)
    return best


def _finite(numbers: Sequence[float]) -> list[float]:
    return [number for number in numbers if math.isfinite(number)]


def best_checkpoint(path: Path, config: dict[str, Any], algorithm: Algorithm) -> ModelCheckpoint | None:
    """Return the callback that keeps the best model of a fit; ``None`` if the last one is to be tested.

    Args:
        path: The file for the best model.
        config: The configuration of the cell.
        algorithm: The algorithm, which may not aggregate in every round.

    Raises:
        ValueError: If the fit could never have a best model.
    """
    if config["select"] == "last":
        return None
    trainer = config["trainer"]
    every = int(trainer.get("check_val_every_n_epoch", 1))
    rounds = trainer["max_epochs"]
    if every > rounds:
        raise ValueError(f"No model would be validated: validation comes every {every} rounds of {rounds}.")
    settings: dict[str, Any] = {
        "monitor": config["monitor"],
        "mode": config["mode"],
        # Clients' own models are in the algorithm's state, which a checkpoint of weights lacks.
        "save_weights_only": not algorithm.has_personal,
        "enable_version_counter": False,
    }
    if config["among"] == "virtual":
        return ModelCheckpoint(path.parent, path.stem, every_n_epochs=every, **settings)
    schedule = algorithm.schedule
    may_skip = algorithm.participation.available is not None or not algorithm.sampler.always_draws
    validated = range(every, rounds + 1, every)
    if not any(schedule.may_show_aggregate(number, may_skip_rounds=may_skip) for number in validated):
        raise ValueError(
            f"No aggregated model would be validated: validation comes every {every} of {rounds} rounds, and none of "
            "these ends with a move of the server. Let `check_val_every_n_epoch` divide the rounds between its moves, "
            "or give `among: virtual`."
        )
    return FederatedCheckpoint(path.parent, path.stem, save_last=False, **settings)


def _why_there_is_none(monitor: str, trainer: L.Trainer, best: ModelCheckpoint) -> str:
    """Return a sentence that says why a fit has no best model, after the fit."""
    if monitor not in trainer.callback_metrics:
        logged = ", ".join(sorted(trainer.callback_metrics)) or "none"
        return f"`monitor` {monitor} was never logged; metrics were {logged}. Maybe the split has no validation."
    if best.best_model_path:
        return f"`monitor` {monitor} was never finite: lower the learning rate."
    return (
        "No validated model was aggregated. Rounds may have been empty: let `check_val_every_n_epoch` be 1. Or the "
        "clients handed back NaN, and `fed/left_out` counts them: lower the learning rate."
    )
