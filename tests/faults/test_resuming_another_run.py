"""A checkpoint is resumed with the clients and the algorithm that wrote it; other settings are told in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from torch import nn
from torch.nn import functional as F

from fl_lightning import (
    AggregationCallback,
    FedAsync,
    FedAvg,
    FedDyn,
    Federated,
    FederatedDataModule,
    RADFed,
    TensorDataModule,
)
from fl_lightning.data import (
    ClientDatasetsModule,
    ClientSplit,
    ImageDataModule,
    LabelFlipping,
    Source,
    WithinClientSplit,
)
from fl_lightning.partitioners import IIDPartitioner
from fl_lightning.parts import (
    Adaptive,
    Clip,
    DifferentialPrivacy,
    Exchange,
    ImportanceSampler,
    Mixing,
    Momentum,
    Proximal,
    Redistribution,
    TopK,
    UniformSampler,
    WeightedMean,
)


class Table(FederatedDataModule):
    """Thirty samples of a table."""

    def load(self) -> Source:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(30, 4, generator=generator), torch.arange(30) % 3
        return Source(torch.utils.data.TensorDataset(x, y), y)


class Linear(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


QUADRATIC = partial(Quadratic, lr=0.1)


def table(seed: int = 0, **options: Any) -> Table:
    return Table(IIDPartitioner(num_clients=5, seed=seed), **{"batch_size": 3, **options})


def toy(batch_size: int | None = None, order: tuple[int, ...] = (0, 1, 2), **options: Any) -> TensorDataModule:
    clients = quadratic_clients([1, 1, 1], [1, 2, 3], [4, 4, 4])
    return TensorDataModule(clients=[clients[place] for place in order], batch_size=batch_size, **options)


def resume(
    tmp_path: Path,
    first: AggregationCallback,
    second: AggregationCallback,
    data: Any = toy,
    other: Any = None,
    module: Callable[[], Any] | None = None,
) -> Any:
    """Train two rounds with the first callback, and two more with the second; return the module at the end."""
    if module is None:
        module = QUADRATIC if data is toy else Linear
    trainer = quiet_trainer(max_epochs=2, callbacks=[first])
    trainer.fit(module(), datamodule=data() if data is toy else data)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    following = quiet_trainer(max_epochs=4, callbacks=[second])
    data = other or (toy() if data is toy else data)
    resumed = module()
    following.fit(resumed, datamodule=data, ckpt_path=tmp_path / "run.ckpt")
    return resumed


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "other settings" in record.getMessage()]


def test_another_seed_of_the_partitioner_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"another federation .*order of clients differ. Resume with the same data"):
        resume(tmp_path, FedAvg(2, seed=1), FedAvg(2, seed=1), data=table(0), other=table(1))


def test_the_same_partition_is_the_same_federation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2, seed=1), FedAvg(2, seed=1), data=table(0), other=table(0))
    assert told(caplog) == []


def test_another_seed_of_the_split_within_clients_is_refused(tmp_path: Path) -> None:
    data, other = (table(split=WithinClientSplit(0.5, 0, seed=seed)) for seed in (0, 1))
    with pytest.raises(ValueError, match=r"another federation .*Resume with the same data, partitioner, split"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=data, other=other)


def test_folds_with_the_same_training_clients_are_told_apart(tmp_path: Path) -> None:
    data, other = (table(split=ClientSplit(fold=fold)) for fold in (0, 1))
    with pytest.raises(ValueError, match=r"other validation or test data .*Resume with the same split, fold"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=data, other=other)
    assert data.client_ids == other.client_ids


def test_another_validation_set_is_refused(tmp_path: Path) -> None:
    data, other = (toy(val=quadratic_clients([1], [1], [size])[0]) for size in (2, 3))
    with pytest.raises(ValueError, match=r"other validation or test data \(2 validation samples, .*now 3 validation s"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=data, other=other, module=QUADRATIC)


def test_reordered_clients_are_refused(tmp_path: Path) -> None:
    def labelled(order: tuple[int, ...]) -> TensorDataModule:
        clients = [(torch.randn(6, 4), torch.full((6,), label)) for label in range(3)]
        return TensorDataModule(clients=[clients[place] for place in order], batch_size=3)

    with pytest.raises(ValueError, match="another federation"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=labelled((0, 1, 2)), other=labelled((1, 0, 2)))


@pytest.mark.parametrize("unknown", ["evaluation", "module_changed"])
def test_a_checkpoint_of_an_earlier_release_is_refused(unknown: str, tmp_path: Path) -> None:
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)])
    trainer.fit(QUADRATIC(), datamodule=toy())
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    checkpoint = torch.load(tmp_path / "run.ckpt", weights_only=True)
    del checkpoint["callbacks"]["FedAvg"][unknown]
    torch.save(checkpoint, tmp_path / "run.ckpt")
    following = quiet_trainer(max_epochs=2, callbacks=[FedAvg(2)])
    with pytest.raises(ValueError, match=r"earlier release of fl-lightning .*Its weights can be loaded"):
        following.fit(QUADRATIC(), datamodule=toy(), ckpt_path=tmp_path / "run.ckpt")


def test_another_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"written by FedDyn, not by FedAvg. To start another algorithm from its wei"):
        resume(tmp_path, FedDyn(0.1, 2), FedAvg(2))


def test_another_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"written with Synchronous as the algorithm's `schedule`, .* Redistribution"):
        resume(tmp_path, Federated(2), Federated(2, schedule=Redistribution(3)))


@pytest.mark.parametrize("redistributions", [2, 5])
def test_a_cycle_of_another_length_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, redistributions: int
) -> None:
    error = r"2 rounds after the last aggregation, in a cycle of 3, but `redistributions"
    with caplog.at_level("INFO"), pytest.raises(ValueError, match=error):
        resume(tmp_path, RADFed(3, 2), RADFed(redistributions, 2))
    assert told(caplog) == []  # nothing resumed


NOISE = DifferentialPrivacy(1.0, noise_multiplier=1.0, delta=1e-3)


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ([], [TopK(0.5)], "without the exchange TopK, which the algorithm now has"),
        ([NOISE], [], "with the exchange DifferentialPrivacy, which the algorithm no longer has"),
        ([], [NOISE], "without the exchange DifferentialPrivacy, which the algorithm now has"),
        ([Clip(1.0), TopK(0.5)], [TopK(0.5), Clip(1.0)], "in the order BufferExchange, Clip, TopK, and that is now"),
    ],
    ids=["new", "gone", "new sum", "order"],
)
def test_another_exchange_is_named(
    tmp_path: Path, first: list[Exchange], second: list[Exchange], difference: str
) -> None:
    with pytest.raises(ValueError, match=rf"checkpoint was written .*{difference}.*Resume with the same `exchange`"):
        before, after = (FedAvg(2, weighting="uniform", exchange=exchange) for exchange in (first, second))
        resume(tmp_path, before, after)


def test_after_an_aggregation_a_cycle_may_have_another_length(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, RADFed(2, 2, seed=1), RADFed(4, 2, seed=1))
    assert told(caplog) == ["Resuming with other settings than the checkpoint's: redistributions 2 -> 4."]


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (FedAvg(2), FedAvg(3, local_epochs=2), "clients_per_round 2 -> 3, .*local_epochs 1 -> 2"),
        (FedAsync(2, speeds=[1, 2, 3]), FedAsync(2, speeds=[1, 2, 4]), r"speeds \[1, 2, 3\] -> \[1, 2, 4\]"),
        (
            Federated(2, objective=Proximal(0.1), aggregation=WeightedMean("uniform")),
            Federated(sampler=UniformSampler(2), objective=Proximal(0.2), aggregation=WeightedMean("uniform")),
            r"objective Proximal\(mu=0.1\) -> Proximal\(mu=0.2\)",
        ),
        (
            FedAvg(sampler=ImportanceSampler(2, score="batch")),
            FedAvg(sampler=ImportanceSampler(2, score="sum")),
            r"sampler ImportanceSampler\(clients_per_round=2\) -> .*score='sum'",
        ),
    ],
    ids=["clients", "speeds", "objective", "score"],
)
def test_other_settings_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, line: str
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, first, second)
    (message,) = told(caplog)
    assert re.search(line, message), message


@pytest.mark.parametrize(
    ("first", "second"),
    [(FedDyn(0.1, 2), FedDyn(0.2, 2)), (FedDyn(0.1, 2), FedDyn(0.1, 2, scale_alpha="none"))],
    ids=["alpha", "scale"],
)
def test_another_alpha_is_refused(tmp_path: Path, first: Any, second: Any) -> None:
    with pytest.raises(ValueError, match="the clients' stored vectors are in units of alpha"):
        resume(tmp_path, first, second)


class WithOptimizer(Linear):
    """Its optimizer is the next one of a list."""

    def __init__(self, makers: list[Any]) -> None:
        super().__init__()
        self.make = makers.pop(0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = self.make(self.parameters())
        return optimizer


def test_an_optimizer_of_another_class_is_refused(tmp_path: Path) -> None:
    makers = [partial(torch.optim.SGD, lr=0.1), partial(torch.optim.Adam, lr=0.1)]
    message = "has the state of SGD, and `configure_optimizers` now returns Adam"
    with pytest.raises(ValueError, match=message):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=table(0), module=lambda: WithOptimizer(makers))


def test_other_settings_of_an_optimizer_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    makers = [partial(torch.optim.SGD, lr=0.1), partial(torch.optim.SGD, lr=0.1, weight_decay=0.9)]
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=table(0), module=lambda: WithOptimizer(makers))
    lines = [record.getMessage() for record in caplog.records]
    assert "Optimizers go on with the checkpoint's settings: weight_decay 0 (given: 0.9)." in lines


def shrinking(round_index: int) -> float:
    return 0.9**round_index


@pytest.mark.parametrize(
    "make",
    [partial(Mixing, shrinking), partial(Momentum, 0.5, shrinking), partial(Adaptive, "adam", shrinking)],
    ids=["mixing", "momentum", "adaptive"],
)
def test_a_schedule_of_the_server_is_the_same_setting_in_every_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Any
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, Federated(2, server=make(), seed=1), Federated(2, server=make(), seed=1))
    assert told(caplog) == []


@pytest.mark.parametrize(
    ("other", "line"),
    [
        ({"batch_size": 2}, "batch_size None -> 2"),
        ({"drop_last": True}, "drop_last False -> True"),
    ],
)
def test_other_batches_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, other: dict[str, Any], line: str
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), other=toy(**other))
    assert told(caplog) == [f"Resuming with other settings than the checkpoint's: {line}."]


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def in_order(client: int, dataset: Any, generator: torch.Generator) -> range:
    return range(len(dataset))


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        ({}, {"train_transform": doubled}, "train_transform None -> doubled"),
        ({"train_transform": doubled}, {"train_transform": halved}, "train_transform doubled -> halved"),
        ({}, {"eval_transform": doubled}, "eval_transform None -> doubled"),
        ({}, {"sampler": in_order}, "the data's sampler None -> in_order"),
        ({}, {"standardize": "global"}, "standardize None -> 'global'"),
        ({}, {"impute": "local"}, "impute None -> 'local'"),
        ({"feature_noise": 0.5}, {}, "feature_noise 0.5 -> 0.0"),
        ({"shuffle": False}, {}, "shuffle False -> True"),
        ({}, {"eval_batch_size": 8}, "eval_batch_size 256 -> 8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_settings_of_the_data_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: dict[str, Any], second: dict[str, Any], line: str
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=table(**first), other=table(**second))
    assert told(caplog) == [f"Resuming with other settings than the checkpoint's: {line}."]


class Scaled:
    """A transform with a setting."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return f"Scaled(\n    {self.factor}\n)"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def test_another_setting_inside_of_a_transform_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        data, other = (table(train_transform=Scaled(factor)) for factor in (1, 2))
        resume(tmp_path, FedAvg(2), FedAvg(2), data=data, other=other)
    assert told(caplog) == ["Resuming with other settings than the checkpoint's: train_transform (in part)."]


def test_the_same_settings_of_the_data_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"train_transform": doubled, "sampler": in_order, "standardize": "global"}
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=table(**options), other=table(**options, num_workers=1))
    assert told(caplog) == []


class Pictures(ImageDataModule):
    """Thirty black images."""

    mean, std = (0.5,), (0.5,)

    def load(self) -> Source:
        images, labels = torch.zeros(30, 1, 2, 2, dtype=torch.uint8), torch.arange(30) % 3
        return Source(torch.utils.data.TensorDataset(images, labels), labels)


class OfPictures(Linear):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step([batch[0].flatten(1), batch[1]], batch_idx)


def test_augmentation_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data, other = (Pictures(IIDPartitioner(5), augment=augment) for augment in (False, True))
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=data, other=other, module=OfPictures)
    assert told(caplog) == ["Resuming with other settings than the checkpoint's: augment False -> True."]


def stacked(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples)


def test_another_collate_function_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def module(**options: Any) -> ClientDatasetsModule:
        x, y = torch.ones(6, 4), torch.zeros(6, dtype=torch.int64)
        return ClientDatasetsModule([torch.utils.data.TensorDataset(x, y)] * 3, **options)

    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=module(), other=module(collate_fn=stacked))
    assert told(caplog) == ["Resuming with other settings than the checkpoint's: collate_fn None -> stacked."]


def test_a_seed_that_is_not_used_and_another_executor_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2, seed=1), FedAvg(2, seed=9, executor="sequential"))
    assert told(caplog) == [
        "Resuming with other settings than the checkpoint's: executor 'auto' -> 'sequential'. Seed 9 is not used: the "
        "checkpoint's seed 1 goes on."
    ]


@pytest.mark.parametrize("first", ["auto", "sequential", "vectorized"])
@pytest.mark.parametrize("second", ["auto", "sequential", "vectorized"])
def test_any_executor_goes_on_from_the_checkpoint_of_any(tmp_path: Path, first: Any, second: Any) -> None:
    module = resume(tmp_path, FedAvg(3, executor=first), FedAvg(3, executor=second))
    # each round takes the model a tenth of the way to 2, the mean of the clients' optima
    assert float(module.w) == pytest.approx(2 * (1 - 0.9**4), rel=1e-12)


def test_a_seed_that_nobody_gave_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2, seed=1), FedAvg(2))
    assert "not used" not in caplog.text


def test_a_federated_run_does_not_go_on_centrally(tmp_path: Path) -> None:
    data = table()
    federated = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)])
    federated.fit(Linear(), datamodule=data)
    federated.save_checkpoint(tmp_path / "federated.ckpt")
    with pytest.raises(
        ValueError, match=r"written by FedAvg, and the trainer has no aggregation callback.*callbacks=\["
    ):
        quiet_trainer(max_epochs=2).fit(Linear(), datamodule=data, ckpt_path=tmp_path / "federated.ckpt")
    central = quiet_trainer(max_epochs=1)
    central.fit(Linear(), datamodule=data)
    central.save_checkpoint(tmp_path / "central.ckpt")
    further = quiet_trainer(max_epochs=2)
    further.fit(Linear(), datamodule=table(), ckpt_path=tmp_path / "central.ckpt")
    assert further.global_step == 12  # 18 samples train, 3 a batch


def test_a_federated_checkpoint_is_evaluated_without_the_callback(tmp_path: Path) -> None:
    class Evaluated(Linear):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("samples", float(len(batch[0])), reduce_fx="sum")

    data = table(split=ClientSplit())
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)])
    trainer.fit(Evaluated(), datamodule=data)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    (result,) = quiet_trainer().test(Evaluated(), datamodule=data, ckpt_path=tmp_path / "run.ckpt", verbose=False)
    assert result == {"samples": 6.0}


def test_a_poison_that_is_gone_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    poisoned = table(0)
    poisoned.poison_with(LabelFlipping([1], 3))
    with caplog.at_level("INFO"):
        resume(tmp_path, FedAvg(2), FedAvg(2), data=poisoned, other=table(0))
    line = "poisons [LabelFlipping(clients=[1], num_classes=3)] -> []"
    assert told(caplog) == [f"Resuming with other settings than the checkpoint's: {line}."]


def test_the_same_settings_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        speeds = list(range(1, 4))
        resume(tmp_path, FedAsync(2, speeds=speeds, seed=3), FedAsync(2, speeds=speeds, seed=4))
    assert told(caplog) == []


class WithRate(Quadratic):
    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


def test_another_learning_rate_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = quiet_trainer(max_epochs=1, callbacks=[FedAvg(2)])
    first.fit(WithRate(0.1), datamodule=toy())
    first.save_checkpoint(tmp_path / "run.ckpt")
    second = quiet_trainer(max_epochs=2, callbacks=[FedAvg(2)])
    with caplog.at_level("INFO"):
        second.fit(WithRate(0.2), datamodule=toy(), ckpt_path=tmp_path / "run.ckpt")
    (message,) = [r.getMessage() for r in caplog.records if "hyperparameters differ" in r.getMessage()]
    assert "lr 0.1 -> 0.2. Optimizers and schedules keep" in message
    assert second.optimizers[0].param_groups[0]["lr"] == 0.1


def test_the_seed_of_a_resumed_run_does_not_stay_for_another_fit(tmp_path: Path) -> None:
    def fit(callback: FedAvg, rounds: int, **options: Any) -> float:
        module = Quadratic(lr=0.1)
        quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=toy(), **options)
        return module.w.item()

    first = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1, seed=1)])
    first.fit(Quadratic(lr=0.1), datamodule=toy())
    first.save_checkpoint(tmp_path / "run.ckpt")
    callback = FedAvg(1, seed=2)
    assert fit(callback, 8, ckpt_path=tmp_path / "run.ckpt") == fit(FedAvg(1, seed=1), 8)
    assert callback.seed == 1
    assert fit(callback, 8) == fit(FedAvg(1, seed=2), 8) != fit(FedAvg(1, seed=1), 8)
    assert callback.seed == 2
