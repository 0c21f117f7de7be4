"""What cannot work federatedly is refused before training, with the argument, the value and the way out."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

import lightning as L
import pytest
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
    WeightAveraging,
)
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.tuner import Tuner
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

from fl_lightning import FedAvg, Federated, RADFed, TensorDataModule
from fl_lightning._lightning.refusals import UnsupportedError
from fl_lightning.parts import Redistribution


def refused(match: str, *callbacks: Callback, module: Any = None, algorithm: Any = None, **trainer: Any) -> None:
    """Fit, and check that it is refused before a batch was trained."""
    module = module or ValidatedClassifier()
    before = weights_of(module)
    with pytest.raises(ValueError, match=match):
        train_federatedly(module, clients_of(4, 4), val=samples(4), callbacks=callbacks, algorithm=algorithm, **trainer)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


# ---- data ----


def test_plain_data_module() -> None:
    class Plain(L.LightningDataModule):
        def train_dataloader(self) -> Any:
            return DataLoader(TensorDataset(*samples(4)))

    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    expected = r"FedAvg needs to know which client.*got Plain\. Call trainer.fit\(module, datamodule=...\) with a Fed"
    with pytest.raises(ValueError, match=expected):
        trainer.fit(Classifier(), datamodule=Plain())


def test_a_data_loader_does_not_know_the_clients() -> None:
    trainer = quiet_trainer(max_epochs=1, callbacks=[RADFed(1, 1.0)])
    expected = (
        r"RADFed needs to know which client .* got a DataLoader, which does not say which client holds which .* "
        r"datamodules.TorchDatasetDataModule\(loader.dataset, partitioner\). .* TensorDataModule\(clients=.* ClientData"
    )
    with pytest.raises(UnsupportedError, match=expected):
        trainer.fit(Classifier(), DataLoader(TensorDataset(*samples(4))))


def test_more_clients_a_round_than_there_are() -> None:
    refused("`clients_per_round` is 3, but only 2 clients train. Give at most 2, or a fraction", algorithm=FedAvg(3))


# ---- the trainer ----


@pytest.mark.parametrize("number", [0, -1])
def test_gradients_of_no_batches(number: int) -> None:
    refused(f"`accumulate_grad_batches` must be at least 1, got {number}", accumulate_grad_batches=number)


# 1 is one batch, 1.0 a whole round
@pytest.mark.parametrize("interval", [0.5, 1, 2])
def test_validation_inside_a_round(interval: Any) -> None:
    refused(
        rf"got `val_check_interval={interval}` and `check_val_every_n_epoch=1`. Leave `val_check_interval` at 1.0",
        val_check_interval=interval,
    )


@pytest.mark.parametrize("interval", ["00:00:00:90", timedelta(seconds=90), {"seconds": 90}])
@pytest.mark.parametrize("rounds", [1, None])
def test_validation_by_time(interval: Any, rounds: int | None) -> None:
    refused(
        rf"got `val_check_interval=datetime.timedelta\(seconds=90\)` and `check_val_every_n_epoch={rounds}`. Leave",
        val_check_interval=interval,
        check_val_every_n_epoch=rounds,
    )


def test_validation_by_steps_across_rounds() -> None:
    refused(
        "got `val_check_interval=2` and `check_val_every_n_epoch=None`.*`check_val_every_n_epoch=n`",
        val_check_interval=2,
        check_val_every_n_epoch=None,
    )


class FSDPStrategy(ParallelStrategy):
    """Stands for Lightning's own, which needs a GPU."""


def prepared(algorithm: FedAvg, **settings: Any) -> L.Trainer:
    """Return a trainer as it is when a fit is set up, without starting its processes."""
    trainer = quiet_trainer(callbacks=[algorithm], **settings)
    trainer.datamodule = TensorDataModule(clients_of(4, 4))  # type: ignore[attr-defined]
    trainer.datamodule.setup()
    trainer.strategy._lightning_module = Classifier()
    return trainer


def test_strategy_that_shards_the_model() -> None:
    algorithm = FedAvg(1.0)
    trainer = prepared(algorithm)
    trainer.strategy.__class__ = FSDPStrategy
    with pytest.raises(ValueError, match=r'FedAvg cannot run under FSDPStrategy: .* Use strategy="auto" or'):
        algorithm.setup(trainer, Classifier(), "fit")


def test_synchronised_batch_norm_across_clients() -> None:
    algorithm = FedAvg(1.0)
    trainer = prepared(algorithm, devices=2, strategy="ddp", sync_batchnorm=True)
    with pytest.raises(ValueError, match=r"`Trainer\(sync_batchnorm=True\)` would mix.*Leave it off"):
        algorithm.setup(trainer, Classifier(), "fit")


def test_more_processes_than_clients_in_a_round() -> None:
    algorithm = FedAvg(1)
    trainer = prepared(algorithm, devices=2, strategy="ddp")
    expected = r"1 client trains in a round, but there are 2 processes.*Raise `clients_per_round` or .* at most 1\."
    with pytest.raises(ValueError, match=expected):
        algorithm.setup(trainer, Classifier(), "fit")


def test_training_step_that_takes_the_loaders_iterator() -> None:
    class Iterates(Classifier):
        def training_step(self, dataloader_iter: Any) -> Any:  # type: ignore[override]
            return self.loss(next(dataloader_iter)[0])

    expected = r"`training_step\(self, dataloader_iter\)` cannot run.*Use `training_step\(self, batch, batch_idx\)`"
    refused(expected, module=Iterates())


# ---- other callbacks ----


@pytest.mark.parametrize("settings", [{"every_n_train_steps": 5}, {"train_time_interval": timedelta(minutes=1)}])
def test_checkpoints_inside_a_round(tmp_path: Any, settings: Any) -> None:
    keep = ModelCheckpoint(tmp_path, **settings)
    refused("`every_n_train_steps` or `train_time_interval` would save.*`every_n_epochs=n`; an epoch is a round", keep)


class AveragesByRound(WeightAveraging):
    """Lightning's documented way to average by epochs alone."""

    def should_update(self, step_idx: int | None = None, epoch_idx: int | None = None) -> bool:
        return epoch_idx is not None


@pytest.mark.parametrize("average", [lambda: StochasticWeightAveraging(0.1), EMAWeightAveraging, AveragesByRound])
def test_weight_averaging(average: Any) -> None:
    ways_out = r"FedAvg\(server_lr=\.\.\.\).*over rounds, call `update_parameters\(pl_module\)`.*`on_round_end`"
    refused(rf"(Averaging|ByRound) puts a mean of its own in the place of the server's model.*{ways_out}", average())


def test_the_way_out_of_weight_averaging() -> None:
    """The mean over rounds, in a callback's `on_round_end`."""

    class MeanOfRounds(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            self.mean, self.models = AveragedModel(pl_module), []

        def on_round_end(self, trainer: Any, pl_module: Any) -> None:
            self.mean.update_parameters(pl_module)
            self.models.append(parameters_to_vector(pl_module.parameters()).detach().clone())

    means = MeanOfRounds()
    trainer = quiet_trainer(max_epochs=3, callbacks=[FedAvg(1.0), means])
    trainer.fit(Classifier(), datamodule=TensorDataModule(clients_of(8, 4), batch_size=4))
    assert len(means.models) == 3
    found = parameters_to_vector(means.mean.module.parameters())
    torch.testing.assert_close(found, torch.stack(means.models).mean(0))


@pytest.mark.parametrize("finder", [BatchSizeFinder, LearningRateFinder])
def test_finders(finder: Any) -> None:
    refused(rf"{finder.__name__} runs trial steps.*Find the value centrally", finder())


def test_tuner() -> None:
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)])
    data = TensorDataModule(clients=clients_of(8), batch_size=4)
    with pytest.raises(ValueError, match="LearningRateFinder runs trial steps"):
        Tuner(trainer).lr_find(Classifier(), datamodule=data)


def test_pruning() -> None:
    refused("ModelPruning replaces parameters.*Prune before or after", ModelPruning("l1_unstructured", amount=0.5))


def test_two_aggregation_callbacks() -> None:
    refused("two aggregation callbacks, FedAvg and RADFed; there is one server. Keep one", RADFed(1, 1.0))


# ---- the module ----


def test_nothing_to_train() -> None:
    class Frozen(Classifier):
        def configure_optimizers(self) -> None:
            return None

    module = Frozen()
    module.requires_grad_(False)
    refused("Frozen has no parameter with `requires_grad=True`.*Unfreeze at least one layer", module=module)


# ---- constructors ----


@pytest.mark.parametrize("value", [0, -1, 0.0, 1.5, True, "all"])
@pytest.mark.parametrize("kind", [FedAvg, lambda value: RADFed(1, value)])
def test_clients_per_round(kind: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"`clients_per_round` must be a float in \(0, 1\].*; got {value!r}\. For"):
        kind(value)


@pytest.mark.parametrize("value", [0, -2, 1.5, True])
@pytest.mark.parametrize("name", ["local_epochs", "local_steps"])
@pytest.mark.parametrize("kind", [FedAvg, lambda **settings: RADFed(1, **settings)])
def test_local_epochs_and_steps(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"`{name}` must be a whole number of at least 1, got {value!r}\."):
        kind(**{name: value})


def test_local_epochs_with_local_steps() -> None:
    with pytest.raises(ValueError, match="Give `local_epochs` or `local_steps`, not both; got 2 and 3"):
        FedAvg(local_epochs=2, local_steps=3)


@pytest.mark.parametrize("value", [-1, 0.5, True])
def test_seed(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"`seed` must be a whole number of at least 0, got {value!r}\."):
        FedAvg(seed=value)


def test_weighting() -> None:
    with pytest.raises(ValueError, match="`weighting` must be one of 'samples', 'uniform', got 'size'"):
        FedAvg(weighting="size")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), True])
def test_server_lr(value: float) -> None:
    with pytest.raises(ValueError, match=rf"`server_lr` must be a finite number greater than 0, got {value!r}\. 1.0 "):
        FedAvg(server_lr=value)


@pytest.mark.parametrize("value", [0, 2.0, True])
def test_redistributions(value: Any) -> None:
    with pytest.raises(ValueError, match=rf"`redistributions` must be a whole .* at least 1, got {value!r}\. 1 is Fed"):
        RADFed(value)


def test_evaluate() -> None:
    with pytest.raises(ValueError, match="`evaluate` must be one of 'virtual', 'aggregate', got 'mean'"):
        RADFed(2, evaluate="mean")  # type: ignore[arg-type]


# ---- a cycle that the fit does not complete ----


@pytest.mark.parametrize(
    ("rounds", "evaluate", "match"),
    [
        (
            7,
            "virtual",
            r"`max_epochs=7` is not .* of `redistributions=3`: the last round comes.* circulating .*=6 or 9 ",
        ),
        (8, "aggregate", r"`max_epochs=8` .*: the last 2 rounds come.* the last aggregate.*max_epochs=6 or 9 "),
        (2, "virtual", r"`max_epochs=2` .*max_epochs=3 for whole cycles"),
    ],
)
@pytest.mark.parametrize("composed", [False, True])
def test_an_incomplete_cycle_is_a_warning(rounds: int, evaluate: Any, match: str, composed: bool) -> None:
    algorithm = Federated(1, schedule=Redistribution(3, evaluate)) if composed else RADFed(3, 1, evaluate=evaluate)
    with pytest.warns(UserWarning, match=match):
        train_federatedly(Classifier(), clients_of(4), algorithm=algorithm, max_epochs=rounds)


@pytest.mark.parametrize("algorithm", [RADFed(3, 1), Federated(1, schedule=Redistribution(3)), FedAvg(1)])
@pytest.mark.parametrize("rounds", [3, 6])
def test_whole_cycles_are_none(rounds: int, algorithm: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*is not a multiple.*")
        train_federatedly(Classifier(), clients_of(4), algorithm=algorithm, max_epochs=rounds)


# ---- a checkpoint of another run ----


@pytest.fixture
def checkpoint(tmp_path: Any) -> str:
    """A checkpoint of RADFed(3), two rounds into a cycle, of clients with 8 and 4 samples."""
    trainer = train_federatedly(Classifier(), clients_of(8, 4), algorithm=RADFed(3, 1.0), max_epochs=2)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    return str(tmp_path / "run.ckpt")


@pytest.mark.parametrize("sizes", [(4, 8), (8, 5), (8, 4, 1), (12,)])
def test_checkpoint_of_another_federation(checkpoint: str, sizes: Any) -> None:
    expected = rf"another federation \(2 clients, 12 samples, .*, now {len(sizes)} clients.*Resume with the same data"
    with pytest.raises(ValueError, match=expected):
        train_federatedly(
            Classifier(), clients_of(*sizes), algorithm=RADFed(3, 1.0), max_epochs=4, ckpt_path=checkpoint
        )


def test_checkpoint_beyond_the_cycle(checkpoint: str) -> None:
    expected = "2 rounds after the last aggregation, in a cycle of 3, but `redistributions` is 2. Resume with 3"
    with pytest.raises(ValueError, match=expected):
        train_federatedly(Classifier(), clients_of(8, 4), algorithm=RADFed(2, 1.0), max_epochs=4, ckpt_path=checkpoint)


def test_checkpoint_with_other_layers_frozen(checkpoint: str) -> None:
    module = Classifier()
    module.layers[0].bias.requires_grad_(False)  # type: ignore[index,union-attr]
    expected = "server model has 43 values, the module 38. Resume with the same module and the same frozen layers"
    with pytest.raises(ValueError, match=expected):
        train_federatedly(module, clients_of(8, 4), algorithm=RADFed(3, 1.0), max_epochs=4, ckpt_path=checkpoint)
