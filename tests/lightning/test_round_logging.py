"""Loggers count rounds, hold the run's settings, and keep final evaluations out of curves."""

from __future__ import annotations

import csv
import logging
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import yaml
from helpers.comparison import ValidatedClassifier, clients_of, samples, train_federatedly
from helpers.forking import Forked
from helpers.memory import Memory
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from helpers.wandb_files import read_history, read_records, values_in
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger, WandbLogger

from fl_lightning import FedAvg, FederatedCheckpoint, FedProx, TensorDataModule, WithinClientSplit
from fl_lightning.datamodules import DigitsDataModule
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
    counts = [(row["step"], row["round"], row["epoch"]) for row in rows if row["fed/clients"]]
    assert counts == [("1", "1", "0"), ("2", "2", "1"), ("3", "3", "2")]
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
    trainer.validate(module, datamodule=data, verbose=False)
    assert [rows_of(logger.log_dir)[-1][name] for name in ("round", "step", "epoch")] == ["0", "0", "0"]
    trainer.fit(module, datamodule=data)
    trainer.validate(module, datamodule=data, verbose=False)  # the last model
    assert rows_of(logger.log_dir)[-1]["round"] == "4"
    trainer.validate(datamodule=data, ckpt_path=best.best_model_path, verbose=False)
    last = rows_of(logger.log_dir)[-1]
    assert (last["round"], last["step"], last["epoch"]) == ("2", "2", "1")
    trainer.validate(module, datamodule=data, verbose=False)  # the checkpoint's weights are still in the module
    assert rows_of(logger.log_dir)[-1]["round"] == "2"


class Saved(ValidatedClassifier):
    """Has a hyperparameter."""

    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


def test_the_settings_of_a_run_are_hyperparameters(tmp_path: Path) -> None:
    logger = CSVLogger(tmp_path)
    algorithm = FedProx(0.25, clients_per_round=2, executor="sequential", seed=7)
    data = TensorDataModule(clients_of(*SIZES), batch_size=4, split=WithinClientSplit(val=0.25, test=0.0))
    data.save_hyperparameters({"country": "Chile"})
    trainer = quiet_trainer(max_epochs=1, logger=logger, callbacks=[algorithm])
    given: list[set[str]] = []
    stock = logger.log_hyperparams
    logger.log_hyperparams = lambda params: given.append({*params}) or stock(params)  # type: ignore[method-assign]
    trainer.fit(Saved(0.25), datamodule=data)
    assert given[0] == {"country", "lr", "federated"}  # TensorBoard shows the first ones alone
    about = yaml.safe_load((Path(logger.log_dir) / "hparams.yaml").read_text())["federated"]
    settings = {"name": "FedProx", "mu": 0.25, "seed": 7, "executor": "sequential"}
    assert settings.items() <= about["algorithm"].items()
    assert about["parts"]["sampler"] == {"name": "UniformSampler", "clients_per_round": 2, "rounding": "floor"}
    assert about["data"]["name"] == "TensorDataModule"
    assert (about["data"]["split"]["name"], about["data"]["split"]["val"]) == ("WithinClientSplit", 0.25)
    # a quarter of 8 + 3 + 20 samples, rounded for each client, validates
    assert {"clients": 3, "training_clients": 3, "training_samples": 24}.items() <= about["federation"].items()
    assert about["federation"]["fingerprint"].startswith("3 clients, 24 samples, ")
    assert about["versions"]["lightning"] == L.__version__


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


class Run:
    """Stands for a run of Weights & Biases."""

    id = "run"

    def __init__(self) -> None:
        self.axes: dict[str, str | None] = {}
        self.rows: list[dict[str, Any]] = []
        self.config = SimpleNamespace(update=lambda *_, **__: None)
        self.summary: dict[str, Any] = {}

    def define_metric(self, name: str, step_metric: str | None = None, **_: Any) -> None:
        self.axes[name] = step_metric

    def log(self, metrics: dict[str, Any]) -> None:
        self.rows.append(metrics)


def test_every_value_of_weights_and_biases_has_the_round_as_its_axis() -> None:
    run = Run()
    logger = WandbLogger(experiment=run, prefix="own")
    trainer = train_federatedly(ValidatedClassifier(), clients_of(8, 3), val=samples(4), logger=logger)
    assert run.axes["own-round"] is None
    assert {run.axes[name] for name in ("own-val_loss", "own-epoch", "own-fed/clients")} == {"own-round"}
    # the third of three steps, from 0
    steps = [(row["own-round"], row["trainer/global_step"]) for row in run.rows if "own-val_loss" in row]
    assert steps == [(1, 2)]
    rows = len(run.rows)
    trainer.validate(trainer.lightning_module, datamodule=trainer.datamodule, verbose=False)  # type: ignore[attr-defined]
    assert run.summary.keys() == {"own-val_loss", "own-evaluated_round"}
    assert (run.summary["own-evaluated_round"], len(run.rows)) == (1, rows)


def test_a_fit_that_logs_to_another_run_than_its_checkpoint_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = TensorDataModule(quadratic_clients([1.0], [1.0]))
    for number, name in enumerate(["first", "second"]):
        run = Run()
        run.id = name
        trainer = quiet_trainer(max_epochs=1 + number, callbacks=[FedAvg(1.0)], logger=WandbLogger(experiment=run))
        with caplog.at_level(logging.INFO):
            trainer.fit(Quadratic(0.1), data, ckpt_path=tmp_path / "fit.ckpt" if number else None)
        trainer.save_checkpoint(tmp_path / "fit.ckpt")
    assert 'second; the checkpoint\'s run is first. To continue that run: WandbLogger(id="first", r' in caplog.text


def test_a_step_that_the_module_logs_is_the_step_of_its_values() -> None:
    class Steps(ValidatedClassifier):
        def on_validation_epoch_end(self) -> None:
            self.log("step", 40.0)

    train_federatedly(Steps(), clients_of(8, 3), val=samples(4), logger=(memory := Memory()))
    assert [step for step, _ in memory.values("val_loss")] == [40]


@pytest.mark.long
def test_weights_and_biases_draws_over_rounds_and_gets_the_test_as_a_summary(tmp_path: Path) -> None:
    runs = Forked(partial(fit_twice, tmp_path), tmp_path / "log")
    assert runs.wait(240.0) == 0, runs.output()
    path, resumed = (next((tmp_path / "wandb").glob(f"offline-*/run-{name}.wandb")) for name in ("first", "second"))

    def sent(kind: str) -> dict[str, Any]:
        return values_in([item for record in read_records(path, kind) for item in getattr(record, kind).update])

    axes = {record.metric.name: record.metric.step_metric for record in read_records(path, "metric")}
    assert {axes[name] for name in ("val_acc", "train_loss", "fed/clients", "epoch")} == {"round"}
    rows = [row for row in read_history(path) if "val_acc" in row]
    assert [row["round"] for row in rows] == [1, 2, 3]
    # Lightning's own count is that of the optimizer steps of all clients
    assert rows[0]["trainer/global_step"] > 3
    config = sent("config")
    assert config["federated"]["algorithm"]["name"] == "FedAvg"
    assert config["federated"]["data"]["partitioner"]["alpha"] == 0.5
    assert config["hidden"] == [8]
    assert 'WandbLogger(id="first", resume="allow")' in (tmp_path / "messages").read_text()
    assert [row["round"] for row in read_history(resumed) if "val_acc" in row] == [4]
    assert not [row for row in read_history(path) if "test_acc" in row]
    summary, best = sent("summary"), max(rows, key=lambda row: row["val_acc"])
    assert 0.0 < summary["test_acc"] <= 1.0
    assert (summary["evaluated_round"], summary["round"]) == (best["round"], 3)


def test_names_of_what_a_round_logs() -> None:
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    trainer.fit(Quadratic(0.1), TensorDataModule(quadratic_clients([1.0] * 3, [1.0] * 3)))
    logged = {name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith("fed/")}
    assert logged.keys() <= trainer.logged_metrics.keys()
    assert logged == {
        "fed/clients": 3,
        "fed/dropped": 0,
        "fed/left_out": 0,
        "fed/aggregations": 1,
        "fed/aggregated": 1,
        "fed/models_sent": 6,
    }
