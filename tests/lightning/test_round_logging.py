"""Loggers count rounds, hold the run's settings, and keep final evaluations out of curves."""

from __future__ import annotations

import csv
import json
import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import yaml
from helpers.comparison import ValidatedClassifier, clients_of, samples, train_federatedly
from helpers.forking import Forked
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from fl_lightning import FedAvg, FederatedCheckpoint, FedProx, TensorDataModule, WithinClientSplit
from fl_lightning.datamodules import DigitsDataModule
from fl_lightning.experiment.sweep import read_history, read_records
from fl_lightning.models import MLPClassifier
from fl_lightning.partitioners import DirichletPartitioner

SIZES = (8, 3, 20)  # 2, 1 and 5 batches of 4


def rows_of(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_csv_and_tensorboard_count_rounds(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    csv_logger, board = CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")
    settings: dict[str, Any] = {"val": samples(4), "max_epochs": 3, "log_every_n_steps": 1}
    train_federatedly(ValidatedClassifier(), clients_of(*SIZES), logger=[csv_logger, board], **settings)
    rows = [row for row in rows_of(csv_logger.log_dir) if row["round"]]
    assert [(row["step"], row["round"], row["epoch"]) for row in rows if row["fed/clients"]] == [
        ("1", "1", "0"),
        ("2", "2", "1"),
        ("3", "3", "2"),
    ]
    assert [row["step"] for row in rows if row["val_loss"]] == ["1", "2", "3"]
    events = EventAccumulator(board.log_dir).Reload()
    for name in ("val_loss", "fed/clients"):
        assert [event.step for event in events.Scalars(name)] == [1, 2, 3]


def test_a_later_evaluation_counts_as_the_round_of_its_model(tmp_path: Path) -> None:
    class Falls(ValidatedClassifier):
        """Is best in the second of four rounds."""

        def on_validation_epoch_end(self) -> None:
            self.log("score", [1.0, 5.0, 3.0, 2.0, 7.0][self.trainer.current_epoch])

    data = TensorDataModule(clients_of(*SIZES), val=samples(4), test=samples(4), batch_size=4)
    logger, best = CSVLogger(tmp_path), ModelCheckpoint(tmp_path, monitor="score", mode="max")
    trainer = quiet_trainer(max_epochs=4, callbacks=[FedAvg(1.0), best], logger=logger, enable_checkpointing=True)
    module = Falls()
    trainer.fit(module, datamodule=data)
    trainer.validate(module, datamodule=data, verbose=False)  # the last model
    assert rows_of(logger.log_dir)[-1]["round"] == "4"
    trainer.validate(datamodule=data, ckpt_path=best.best_model_path, verbose=False)
    last = rows_of(logger.log_dir)[-1]
    assert (last["round"], last["step"], last["epoch"]) == ("2", "2", "1")
    trainer.validate(module, datamodule=data, verbose=False)  # the checkpoint's weights are still in the module
    assert rows_of(logger.log_dir)[-1]["round"] == "2"


def test_the_settings_of_a_run_are_hyperparameters(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    algorithm = FedProx(0.25, clients_per_round=2, executor="sequential", seed=7)
    train_federatedly(ValidatedClassifier(), clients_of(*SIZES), val=samples(4), algorithm=algorithm, logger=logger)
    about = yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())["federated"]
    assert about["algorithm"]["name"] == "FedProx"
    assert (about["algorithm"]["mu"], about["algorithm"]["seed"]) == (0.25, 7)
    assert about["algorithm"]["executor"] == "sequential"
    assert about["parts"]["sampler"] == {"name": "UniformSampler", "clients_per_round": 2, "rounding": "floor"}
    assert about["data"]["name"] == "TensorDataModule"
    federation = about["federation"]
    assert (federation["clients"], federation["training_clients"], federation["training_samples"]) == (3, 3, 31)
    assert federation["fingerprint"].startswith("3 clients, 31 samples, ")
    assert about["versions"]["lightning"] == L.__version__


def test_the_settings_of_data_are_those_that_play_a_part(tmp_path: Path) -> None:
    about = []
    for place, given in enumerate(({"val": samples(4)}, {"split": WithinClientSplit(val=0.25, test=0.0)})):
        data, logger = TensorDataModule(clients_of(*SIZES), batch_size=4, **given), CSVLogger(tmp_path, version=place)
        trainer = quiet_trainer(max_epochs=1, logger=logger, callbacks=[FedAvg(1)])
        trainer.fit(ValidatedClassifier(), datamodule=data)
        about.append(yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())["federated"]["data"])
    assert about[0]["split"] is None
    assert (about[1]["split"]["name"], about[1]["split"]["val"]) == ("WithinClientSplit", 0.25)


def fit_twice(folder: Path) -> None:
    """Train and test three rounds, and resume the fit as another run of Weights & Biases."""
    import wandb

    os.chdir(folder)
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(logging.FileHandler("messages"))
    logger.setLevel(logging.INFO)
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        del os.environ[name]
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    for rounds, name, checkpoint in ((3, "first", None), (4, "second", "checkpoints/last.ckpt")):
        L.seed_everything(1)
        data = DigitsDataModule(DirichletPartitioner(num_clients=10, alpha=0.5, seed=1), batch_size=16)
        module = MLPClassifier(in_features=3 * 32 * 32, hidden=(8,), lr=0.05)
        best = FederatedCheckpoint("checkpoints", monitor="val_acc", mode="max")
        trainer = quiet_trainer(
            max_epochs=rounds,
            callbacks=[FedAvg(clients_per_round=2, executor="sequential"), best],
            log_every_n_steps=1,
            logger=WandbLogger(project="test", id=name),
            enable_checkpointing=True,
        )
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint)
        trainer.test(module, datamodule=data, ckpt_path="best", verbose=False)
        wandb.finish()


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the folder of two runs, and what was written."""
    folder = tmp_path_factory.mktemp("offline")
    runs = Forked(partial(fit_twice, folder), folder / "log")
    assert runs.wait(240.0) == 0, runs.output()
    return folder, (folder / "messages").read_text()


@pytest.mark.long
def test_weights_and_biases_draws_over_rounds(offline: tuple[Path, str]) -> None:
    [path] = (offline[0] / "wandb").glob("offline-*/run-first.wandb")
    axes = {record.metric.name: record.metric.step_metric for record in read_records(path, "metric")}
    assert {axes[name] for name in ("val_acc", "train_loss", "fed/clients", "epoch")} == {"round"}
    rows = [row for row in read_history(path) if "val_acc" in row]
    assert [row["round"] for row in rows] == [1, 2, 3]
    # Lightning's own count is that of the optimizer steps of all clients
    assert rows[0]["trainer/global_step"] > 3
    config: dict[str, Any] = {}
    for record in read_records(path, "config"):
        config |= {item.key: json.loads(item.value_json) for item in record.config.update}
    assert config["federated"]["algorithm"]["name"] == "FedAvg"
    assert config["federated"]["data"]["partitioner"]["alpha"] == 0.5
    assert config["hidden"] == [8]


@pytest.mark.long
def test_weights_and_biases_gets_the_test_as_a_summary(offline: tuple[Path, str]) -> None:
    [path] = (offline[0] / "wandb").glob("offline-*/run-first.wandb")
    assert not [row for row in read_history(path) if "test_acc" in row]
    summary: dict[str, Any] = {}
    for record in read_records(path, "summary"):
        items = record.summary.update
        summary |= {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}
    best = max(read_history(path), key=lambda row: row.get("val_acc", 0.0))
    assert 0.0 < summary["test_acc"] <= 1.0
    assert summary["evaluated_round"] == best["round"]
    assert summary["round"] == 3


@pytest.mark.long
def test_a_resumed_fit_says_how_to_continue_the_same_run(offline: tuple[Path, str]) -> None:
    folder, text = offline
    assert 'WandbLogger(id="first", resume="allow")' in text
    [path] = (folder / "wandb").glob("offline-*/run-second.wandb")
    assert [row["round"] for row in read_history(path) if "val_acc" in row] == [4]
