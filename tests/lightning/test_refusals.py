"""What cannot work federatedly is refused before training, with the argument that is to change."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import lightning as L
import pytest
import pytorch_lightning
import torch
from helpers.comparison import Classifier, ValidatedClassifier, clients_of, samples, train_federatedly, weights_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import (
    BatchSizeFinder,
    Callback,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FedAvg, Federated, RADFed, TensorDataModule
from fl_lightning.parts import Redistribution


def refused(match: str, *callbacks: Callback, module: Any = None, algorithm: Any = None, **trainer: Any) -> None:
    """Fit, and check that it is refused before a batch was trained."""
    module = module or ValidatedClassifier()
    before = weights_of(module)
    with pytest.raises(ValueError, match=match):
        train_federatedly(module, clients_of(4, 4), val=samples(4), callbacks=callbacks, algorithm=algorithm, **trainer)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Frozen(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)

    def configure_optimizers(self) -> None:
        return None


SECONDS, SHOWN = timedelta(seconds=90), r"datetime\.timedelta\(seconds=90\)"
#: What the error names, and the trainer's settings.
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("`clients_per_round`", {"algorithm": FedAvg(3)}),
    # 1 is one batch, 1.0 a whole round
    *(
        (rf"`val_check_interval={shown}` and `check_val_every_n_epoch=1`", {"val_check_interval": interval})
        for shown, interval in ((r"0\.5", 0.5), ("1", 1), ("2", 2), (SHOWN, SECONDS))
    ),
    *(
        (
            f"`val_check_interval={shown}` and `check_val_every_n_epoch=None`",
            {"val_check_interval": interval, "check_val_every_n_epoch": None},
        )
        for shown, interval in (("2", 2), (SHOWN, {"seconds": 90}), (SHOWN, "00:00:00:90"))
    ),
    ("requires_grad=True", {"module": Frozen()}),
]


def test_settings_and_modules() -> None:
    for match, settings in SETTINGS:
        refused(match, **settings)


@pytest.mark.parametrize(
    ("match", "make"),
    [
        ("every_n_train_steps", lambda folder: ModelCheckpoint(folder, every_n_train_steps=5)),
        ("train_time_interval", lambda folder: ModelCheckpoint(folder, train_time_interval=timedelta(minutes=1))),
        ("StochasticWeightAveraging.*`on_round_end`", lambda _: StochasticWeightAveraging(0.1)),
        ("EMAWeightAveraging.*`on_round_end`", lambda _: EMAWeightAveraging()),
        ("BatchSizeFinder runs trial steps", lambda _: BatchSizeFinder()),
        ("LearningRateFinder runs trial steps", lambda _: LearningRateFinder()),
        ("ModelPruning replaces parameters", lambda _: ModelPruning("l1_unstructured", amount=0.5)),
        ("two aggregation callbacks, FedAvg and RADFed; there is one server", lambda _: RADFed(1, 1.0)),
    ],
)
def test_callbacks(match: str, make: Any, tmp_path: Any) -> None:
    refused(match, make(tmp_path))


def test_tuner() -> None:
    data = TensorDataModule(clients=clients_of(8), batch_size=4)
    with pytest.raises(ValueError, match="LearningRateFinder"):
        Tuner(quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])).lr_find(Classifier(), datamodule=data)


def test_data_of_no_clients() -> None:
    class Plain(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*samples(4)))

    with pytest.raises(ValueError, match=r"FedAvg needs .*got a Plain"):
        quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)]).fit(Classifier(), datamodule=Plain())
    with pytest.raises(ValueError, match=r"RADFed needs .*got a DataLoader.*TorchDatasetDataModule"):
        quiet_trainer(max_epochs=1, callbacks=[RADFed(1, 1.0)]).fit(Classifier(), Plain().train_dataloader())


FSDPStrategy = type("FSDPStrategy", (ParallelStrategy,), {})  # Lightning's own needs a GPU
TWO: dict[str, Any] = {"devices": 2, "strategy": "ddp"}


@pytest.mark.parametrize(
    ("match", "clients", "settings"),
    [
        ("FedAvg cannot run under FSDPStrategy", 1.0, {}),
        ("sync_batchnorm", 1.0, {**TWO, "sync_batchnorm": True}),
        ("`clients_per_round` must be at least 2, .*, got 1: .*at most 1", 1, TWO),
    ],
)
def test_strategies(match: str, clients: Any, settings: dict[str, Any]) -> None:
    """A trainer as it is when a fit is set up, without starting its processes."""
    algorithm = FedAvg(clients)
    trainer = quiet_trainer(callbacks=[algorithm], **settings)
    trainer.datamodule = TensorDataModule(clients_of(4, 4))  # type: ignore[attr-defined]
    trainer.datamodule.setup()
    trainer.strategy._lightning_module = Classifier()
    if "FSDPStrategy" in match:
        trainer.strategy.__class__ = FSDPStrategy
    with pytest.raises(ValueError, match=match):
        algorithm.setup(trainer, Classifier(), "fit")


def test_local_epochs_with_local_steps() -> None:
    with pytest.raises(ValueError, match=r"`local_epochs` or `local_steps`.* got 2 and 3"):
        FedAvg(local_epochs=2, local_steps=3)


def test_a_cycle_that_the_fit_does_not_complete() -> None:
    for rounds, make, match in (
        (7, lambda: RADFed(3, 1), r"`max_epochs=7` .*`redistributions=3`.*ends 1 rounds .*=9"),
        (8, lambda: RADFed(3, 1, evaluate="aggregate"), r"`max_epochs=8` .*ends 2 rounds .*last aggregate.*=9"),
        (2, lambda: Federated(1, schedule=Redistribution(3)), r"`max_epochs=2` .*max_epochs=3"),
    ):
        with pytest.warns(UserWarning, match=match):
            train_federatedly(Classifier(), clients_of(4), algorithm=make(), max_epochs=rounds)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is not a multiple.*")
        for whole in (RADFed(3, 1), Federated(1, schedule=Redistribution(3)), FedAvg(1)):
            train_federatedly(Classifier(), clients_of(4), algorithm=whole, max_epochs=3)


def test_a_checkpoint_of_more_clients_or_other_frozen_layers(tmp_path: Any) -> None:
    path, other = str(tmp_path / "run.ckpt"), Classifier()
    train_federatedly(Classifier(), clients_of(8, 4), algorithm=RADFed(3, 1.0), max_epochs=2).save_checkpoint(path)
    other.layers[0].bias.requires_grad_(False)  # type: ignore[index,union-attr]
    for sizes, module, match in (((8, 4, 1), Classifier(), "now 3 clients"), ((8, 4), other, "frozen tensors")):
        with pytest.raises(ValueError, match=match):
            train_federatedly(module, clients_of(*sizes), algorithm=RADFed(3, 1.0), max_epochs=4, ckpt_path=path)


# ---- objects of the package `pytorch_lightning` are refused with the import that is meant ----

HINT = "`import lightning.pytorch as pl`"


class OtherModule(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def other_trainer(*callbacks: Any) -> pytorch_lightning.Trainer:
    switches = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return pytorch_lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=list(callbacks), **switches)


def test_a_trainer_of_the_other_package() -> None:
    data, loader = TensorDataModule(clients_of(4, 4), batch_size=2), DataLoader(TensorDataset(*samples(4)))
    for callbacks, given in (([FedAvg(2)], data), ([], data), ([FedAvg(2)], loader)):
        options = {"datamodule": given} if given is data else {"train_dataloaders": given}
        with pytest.raises(TypeError, match=f"The trainer is a Trainer of .*{HINT}"):
            other_trainer(*callbacks).fit(OtherModule(), **options)


def test_a_callback_of_the_other_package() -> None:
    with pytest.raises(TypeError, match=f"A callback is a Callback of .*{HINT}"):
        train_federatedly(Classifier(), clients_of(4, 4), callbacks=[pytorch_lightning.Callback()])
