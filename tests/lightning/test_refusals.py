"""What cannot work federatedly is refused before training, with the argument that is to change; the rest is told.

The text file has each error, and what is warned of where there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import pytorch_lightning
import torch
from helpers.comparison import Classifier, ValidatedClassifier, clients_of, samples, train_federatedly
from helpers.toys import Quadratic, fit_clients, quadratic_clients, quiet_trainer
from helpers.written import assert_as_in, messages
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import ClientMetrics, FedAvg, FedBuff, Federated, FedProx, RADFed, TensorDataModule, WithinClientSplit
from fl_lightning._lightning import check_version
from fl_lightning.parts import Redistribution


class Untrained(ValidatedClassifier):
    """Comes to no batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        pytest.fail("a batch was trained")


class Frozen(Untrained):
    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Backboned(Classifier):
    @property
    def backbone(self) -> nn.Module:
        return self.layers[0]


class WithBackbone(Untrained, Backboned):
    """Comes to no batch."""


class Masked(ValidatedClassifier):
    """Its ``forward`` takes two arguments."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.layers(x * mask)


class StepsItself(Classifier):
    """Steps an optimizer of its own in ``training_step``, and returns no loss."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        optimizer.zero_grad()
        self.loss(batch).backward()
        optimizer.step()


class Alone(Classifier):
    """Steps without the closure."""

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.optimizers[0].step()


class Configured(Untrained):
    """Takes what ``configure_optimizers`` returns from a function."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def configure_optimizers(self) -> Any:
        return self.make(self)


def sgd(module: nn.Module, *further: torch.Tensor) -> Any:
    return torch.optim.SGD([*module.parameters(), *further], lr=0.1)


def plateau(module: nn.Module) -> Any:
    """Return a schedule by steps that must know a metric."""
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd(module))
    config = {"scheduler": schedule, "monitor": "val_loss", "interval": "step"}
    return {"optimizer": schedule.optimizer, "lr_scheduler": config}


class Unfreezes(Callback):
    """Trains a layer from the second round on."""

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch == 1:
            pl_module.layers[0].requires_grad_(True)
            trainer.optimizers[0].add_param_group({"params": list(pl_module.layers[0].parameters()), "lr": 0.1})


class HalfFrozen(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.layers[0].requires_grad_(False)  # type: ignore[index]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=0.1)


class AtClientEnd(Callback):
    """Writes into the module when a client ends."""

    def on_client_end(self, trainer: Any, pl_module: L.LightningModule, result: Any) -> None:
        torch.nn.init.ones_(pl_module.layers[0].weight)  # type: ignore[union-attr, arg-type, index]


class Plain(L.LightningDataModule):
    """Belongs to no clients."""

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(*samples(4)))


class OwnLoader(TensorDataModule):
    def train_dataloader(self) -> Any:
        pytest.fail("it was called")


# Objects of the package `pytorch_lightning` are refused with the import that is meant.
class OtherModule(pytorch_lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.layer(batch[0]).sum()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def other_fit(*callbacks: Any, **data: Any) -> None:
    switches = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = pytorch_lightning.Trainer(max_epochs=1, accelerator="cpu", callbacks=list(callbacks), **switches)
    trainer.fit(OtherModule(), **(data or {"datamodule": TensorDataModule(clients_of(4, 4), batch_size=2)}))


def refused(*callbacks: Any, module: Any = None, **options: Any) -> Callable[[Path], Any]:
    """Return a fit in which no batch is trained."""
    module = module or Untrained()
    return lambda _: train_federatedly(module, clients_of(4, 4), val=samples(4), callbacks=callbacks, **options)


def fitted(*callbacks: Any, module: Any = Classifier, **options: Any) -> Callable[[Path], Any]:
    return lambda _: train_federatedly(module(), clients_of(4, 4), callbacks=callbacks, **options)


def set_up(clients: Any, kind: Any = None, **settings: Any) -> None:
    """Set up a trainer as a fit does, without starting its processes."""
    algorithm = FedAvg(clients)
    trainer = quiet_trainer(callbacks=[algorithm], **settings)
    trainer.datamodule = TensorDataModule(clients_of(4, 4))  # type: ignore[attr-defined]
    trainer.datamodule.setup()
    trainer.strategy._lightning_module = Classifier()
    trainer.strategy.__class__ = kind or type(trainer.strategy)
    algorithm.setup(trainer, Classifier(), "fit")


FSDPStrategy = type("FSDPStrategy", (ParallelStrategy,), {})  # Lightning's own needs a GPU


def resumed(folder: Path, *sizes: int, frozen: bool = False) -> None:
    path, module = str(folder / "run.ckpt"), Classifier()
    train_federatedly(Classifier(), clients_of(8, 4), algorithm=RADFed(3, 1.0), max_epochs=2).save_checkpoint(path)
    module.layers[0].bias.requires_grad_(not frozen)  # type: ignore[index,union-attr]
    train_federatedly(module, clients_of(*sizes), algorithm=RADFed(3, 1.0), max_epochs=4, ckpt_path=path)


def fit_twice(callback: Any, rounds: int, written: float = 0.0) -> None:
    """Fit one round at learning rate 0, write into the module, and fit again."""
    module, clients = Quadratic(0.0, [1.0]), quadratic_clients([1.0] * 3, [2.0, 4.0, 9.0])
    trainer = fit_clients(callback, module, clients, 1)
    module.w.data += written
    trainer.fit_loop.max_epochs = rounds
    trainer.fit(module, datamodule=trainer.datamodule)  # type: ignore[attr-defined]
    assert module.w.tolist() == [1.0]


def tried() -> None:
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    Tuner(trainer).lr_find(Classifier(), datamodule=TensorDataModule(clients=clients_of(8), batch_size=4))


OUTSIDE = [torch.zeros(2, 3, requires_grad=True), torch.zeros(2, requires_grad=True)]
SECONDS = timedelta(seconds=90)
MASKED = {"model": Masked(), "datamodule": TensorDataModule(clients_of(8, 8), split=WithinClientSplit(val=0.25))}
PLAIN = {"model": Untrained(), "datamodule": Plain()}

#: What is done, by the name that the text file has for it.
TOLD: dict[str, Callable[[Path], Any]] = {
    "more clients than there are": refused(algorithm=FedAvg(3)),
    "half a round": refused(val_check_interval=0.5),
    "a batch": refused(val_check_interval=1),
    "two batches": refused(val_check_interval=2),
    "seconds": refused(val_check_interval=SECONDS),
    "two batches of all rounds": refused(val_check_interval=2, check_val_every_n_epoch=None),
    "seconds in words": refused(val_check_interval={"seconds": 90}, check_val_every_n_epoch=None),
    "seconds of a clock": refused(val_check_interval="00:00:00:90", check_val_every_n_epoch=None),
    "a frozen module": refused(module=Frozen()),
    "checkpoints by step": refused(ModelCheckpoint(every_n_train_steps=1)),
    "checkpoints by time": refused(ModelCheckpoint(train_time_interval=timedelta(minutes=1))),
    "averages": refused(StochasticWeightAveraging(0.1)),
    "moving averages": refused(EMAWeightAveraging()),
    "batch sizes": refused(BatchSizeFinder()),
    "learning rates": refused(LearningRateFinder()),
    "learning rates by a tuner": lambda _: tried(),
    "pruning": refused(ModelPruning("l1_unstructured", amount=0.5)),
    "two algorithms": refused(RADFed(1, 1.0)),
    "late unfreezing": refused(BackboneFinetuning(1), module=WithBackbone(), max_epochs=2),
    "unfreezing without an end": refused(BackboneFinetuning(1), module=WithBackbone(), max_epochs=-1, max_steps=9),
    "unfreezing after the fit": fitted(BackboneFinetuning(2), module=Backboned, max_epochs=2),
    "a plateau by step": refused(module=Configured(plateau)),
    "tensors of nobody": refused(module=Configured(lambda module: sgd(module, *OUTSIDE))),
    "a tensor of nobody": refused(module=Configured(lambda module: sgd(module, OUTSIDE[0]))),
    "a class for a callback": refused(FedAvg),
    "a class for data": lambda _: quiet_trainer(callbacks=[FedAvg(2)]).fit(Untrained(), datamodule=TensorDataModule),
    "data of no clients": lambda _: quiet_trainer(callbacks=[FedAvg(1.0)]).fit(**PLAIN),
    "a loader": lambda _: quiet_trainer(callbacks=[RADFed(1, 1.0)]).fit(Untrained(), Plain().train_dataloader()),
    "a strategy": lambda _: set_up(1.0, FSDPStrategy),
    "BatchNorm of all processes": lambda _: set_up(1.0, devices=2, strategy="ddp", sync_batchnorm=True),
    "a process without clients": lambda _: set_up(1, devices=2, strategy="ddp"),
    "epochs and steps": lambda _: FedAvg(local_epochs=2, local_steps=3),
    "another trainer": lambda _: other_fit(FedAvg(2)),
    "another trainer alone": lambda _: other_fit(),
    "another trainer with a loader": lambda _: other_fit(FedAvg(2), train_dataloaders=Plain().train_dataloader()),
    "another callback": refused(pytorch_lightning.Callback()),
    "an own one of its class": refused(type("Own", (pytorch_lightning.Callback,), {})()),
    "more clients than before": lambda folder: resumed(folder, 8, 4, 1),
    "other frozen layers than before": lambda folder: resumed(folder, 8, 4, frozen=True),
    "an older Lightning": lambda _: check_version("2.5.6"),
    "a newer Lightning": lambda _: check_version("2.7.0"),
    "the first release": lambda _: check_version("2.6"),
    "the latest release": lambda _: check_version("2.6.9"),
    "another forward": lambda _: quiet_trainer(max_epochs=1, callbacks=[FedAvg(2), ClientMetrics()]).fit(**MASKED),
    "an objective without effect": fitted(module=StepsItself, algorithm=FedProx(0.1, 2)),
    "a step without its closure": fitted(module=Alone),
    "layers unfrozen in a fit": fitted(Unfreezes(), module=HalfFrozen, max_epochs=2),
    "the end of a client": fitted(AtClientEnd()),
    "the end of a client in a stack": fitted(AtClientEnd(), algorithm=FedAvg(1.0, executor="vectorized")),
    "a cycle without its end": fitted(algorithm=RADFed(3, 1), max_epochs=7),
    "a last aggregate": fitted(algorithm=RADFed(3, 1, evaluate="aggregate"), max_epochs=8),
    "a cycle of a schedule": fitted(algorithm=Federated(1, schedule=Redistribution(3)), max_epochs=2),
    "whole cycles": fitted(algorithm=RADFed(3, 1), max_epochs=3),
    "whole cycles of a schedule": fitted(algorithm=Federated(1, schedule=Redistribution(3)), max_epochs=3),
    "one client a round": fitted(algorithm=FedAvg(1), max_epochs=3),
    "a fraction that is one client": fitted(algorithm=FedAvg()),
    "two of three clients": lambda _: train_federatedly(Classifier(), clients_of(4, 5, 6), algorithm=FedAvg(0.7)),
    "one client in all": lambda _: train_federatedly(Classifier(), clients_of(4)),
    "results that arrive": fitted(algorithm=FedBuff(2, 1)),
    "reloaded loaders": fitted(reload_dataloaders_every_n_epochs=1),
    "a loader of one's own": lambda _: quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)]).fit(
        Classifier(), datamodule=OwnLoader(clients_of(4, 4))
    ),
    "a fit without rounds": lambda _: fit_twice(FedAvg(2), 1),
    "writes while models circulate": lambda _: fit_twice(RADFed(4, 2), 4, 5.0),
    "writes while results are under way": lambda _: fit_twice(FedBuff(3), 4, 5.0),
}


def test_what_is_refused_and_what_is_told(tmp_path: Path) -> None:
    assert_as_in(Path(__file__).with_suffix(".txt"), messages(TOLD, tmp_path), tmp_path)
