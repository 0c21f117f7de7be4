"""A checkpoint is resumed with the clients and the algorithm that wrote it; other settings are told in one line."""

from __future__ import annotations

from collections import UserDict, UserList
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from torch import nn
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.data import (
    ClientSplit,
    ImageDataModule,
    LabelFlipping,
    Source,
    WithinClientSplit,
)
from fl_lightning.partitioners import IIDPartitioner
from fl_lightning.testing.fits import fit


class Table(fl.FederatedDataModule):
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


def table(seed: int = 0, **options: Any) -> Table:
    return Table(IIDPartitioner(num_clients=5, seed=seed), **{"batch_size": 3, **options})


def toy(**options: Any) -> fl.TensorDataModule:
    return fl.TensorDataModule(quadratic_clients([1, 1, 1], [1, 2, 3], [4, 4, 4]), batch_size=None, **options)


def resume(
    tmp_path: Path,
    first: fl.AggregationCallback | None = None,
    second: fl.AggregationCallback | None = None,
    data: Any = None,
    other: Any = None,
    modules: tuple[Any, Any] | None = None,
) -> Any:
    """Train two rounds with the first callback, and two more with the second; return the module at the end."""
    data, one = data or toy(), modules or [(Linear() if data else Quadratic(0.1)) for _ in range(2)]
    fit(first or fl.FedAvg(2), one[0], data, 2).save_checkpoint(tmp_path / "run.ckpt")
    fit(second or fl.FedAvg(2), one[1], other or data, 4, ckpt_path=tmp_path / "run.ckpt")
    return one[1]


class Configured(Quadratic):
    """Its hyperparameters are mappings and lists of another package, such as those of Hydra."""

    def __init__(self, config: Any) -> None:
        super().__init__(lr=config["lr"])
        self.save_hyperparameters()


def test_hyperparameters_of_other_packages_are_kept_as_plain_ones(tmp_path: Path) -> None:
    configs = [UserDict(lr=0.1, sizes=UserList([4, 2])) for _ in range(2)]
    resume(tmp_path, modules=(Configured(configs[0]), Configured(configs[1])))
    checkpoint = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"] == {"config": {"lr": 0.1, "sizes": [4, 2]}}


class Noted(Quadratic):
    """Has a hyperparameter more."""

    def __init__(self, config: Any, note: str = "later") -> None:
        super().__init__(lr=config["lr"])
        self.save_hyperparameters()


def test_a_hyperparameter_that_a_checkpoint_lacks_is_no_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, modules=(Configured({"lr": 0.1}), Noted({"lr": 0.2})))
    told = caplog.text
    assert "config {'lr': 0.1} -> {'lr': 0.2}" in told
    assert "note" not in told


# ---- what is refused ----


def labelled(order: tuple[int, ...]) -> fl.TensorDataModule:
    return fl.TensorDataModule([(torch.ones(6, 4), torch.full((6,), label)) for label in order], batch_size=3)


@pytest.mark.parametrize(
    ("data", "other", "match"),
    [
        (
            table(0),
            table(1),
            r"another federation \(3 clients, 18 samples, \w+, now 3 clients, 18 samples, \w+\): .*the same data",
        ),
        (table(split=WithinClientSplit(0.5, 0, seed=0)), table(split=WithinClientSplit(0.5, 0, seed=1)), "split"),
        (table(split=ClientSplit(fold=0)), table(split=ClientSplit(fold=1)), "fold"),  # the same training clients
        (labelled((0, 1, 2)), labelled((1, 0, 2)), "another federation"),
    ],
    ids=["partition", "split within clients", "fold", "order"],
)
def test_other_data_are_refused(tmp_path: Path, data: Any, other: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        resume(tmp_path, data=data, other=other)


def test_another_validation_set_is_refused(tmp_path: Path) -> None:
    data, other = (toy(val=quadratic_clients([1], [1], [size])[0]) for size in (2, 3))
    with pytest.raises(ValueError, match=r"2 validation samples, .*now 3 validation samples"):
        resume(tmp_path, data=data, other=other, modules=(Quadratic(0.1), Quadratic(0.1)))


def with_exchange(*exchange: parts.Exchange) -> fl.FedAvg:
    return fl.FedAvg(2, weighting="uniform", exchange=exchange)


TOP, CLIP = (partial(parts.TopK, 0.5), partial(parts.Clip, 1.0))


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (
            fl.FedDyn(0.1, 2),
            fl.FedAvg(2),
            "written by FedDyn, not by FedAvg.*To start another algorithm from its weights",
        ),
        (fl.Federated(2), fl.Federated(2, schedule=parts.Redistribution(3)), "Synchronous.* Redistribution"),
        (with_exchange(), with_exchange(TOP()), "this run .*TopK"),
        (with_exchange(TOP()), with_exchange(), "TopK.*this run"),
        (with_exchange(CLIP(), TOP()), with_exchange(TOP(), CLIP()), "Clip, TopK.* TopK, Clip"),
        (fl.RADFed(3, 2), fl.RADFed(2, 2), "`redistributions`"),
        (fl.FedDyn(0.1, 2), fl.FedDyn(0.2, 2), "`alpha`"),
        (fl.FedDyn(0.1, 2), fl.FedDyn(0.1, 2, scale_alpha="none"), "`scale_alpha`"),
        (fl.IFCA(2, 2), fl.IFCA(3, 2), "`clusters`"),
    ],
)
def test_another_algorithm_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, match: str
) -> None:
    with caplog.at_level("INFO"), pytest.raises(ValueError, match=match):
        resume(tmp_path, first, second)
    assert "other settings" not in caplog.text  # nothing resumed


def test_a_longer_history_begins_with_the_models_that_are_there(tmp_path: Path) -> None:
    callback = fl.FedAsync(4, history=9)
    resume(tmp_path, fl.FedAsync(4, history=1), callback)
    assert sorted(callback.algorithm.schedule.models) == list(range(7, 16))


class WithOptimizer(Linear):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.kind, self.options = kind, options

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = self.kind(self.parameters(), lr=0.1, **self.options)
        return optimizer


@pytest.mark.parametrize("options", [{}, {"optimizer_state": "kept"}])
def test_an_optimizer_of_another_class_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    modules = WithOptimizer(torch.optim.AdamW), WithOptimizer(torch.optim.SGD)
    with pytest.raises(ValueError, match="state of AdamW, and `configure_optimizers` now returns SGD"):
        resume(tmp_path, fl.FedAvg(2, **options), fl.FedAvg(2, **options), data=table(0), modules=modules)


# ---- what is told ----


def shrinking(round_index: int) -> float:
    return 0.9**round_index


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def in_order(client: int, dataset: Any, generator: torch.Generator) -> range:
    return range(len(dataset))


@dataclass
class Scaled:
    """A transform with a setting."""

    factor: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


class Pictures(ImageDataModule):
    """Thirty black images."""

    mean, std = (0.5,), (0.5,)

    def load(self) -> Source:
        images, labels = torch.zeros(30, 1, 2, 2, dtype=torch.uint8), torch.arange(30) % 3
        return Source(torch.utils.data.TensorDataset(images, labels), labels)


class OfPictures(Linear):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return super().training_step([batch[0].flatten(1), batch[1]], batch_idx)


def poisoned() -> Table:
    data = table(0)
    data.poison_with(LabelFlipping([1], 3))
    return data


def pull(mu: float) -> fl.Federated:
    return fl.Federated(2, objective=parts.Proximal(mu), aggregation=parts.WeightedMean("uniform"))


#: Arguments of :func:`resume`, and what is told; what is the same is not told.
TOLD: list[tuple[Callable[[], dict[str, Any]], list[str]]] = [
    (
        lambda: {"first": fl.FedAvg(2), "second": fl.FedAvg(3, local_epochs=2)},
        ["clients_per_round 2 -> 3", "local_epochs 1 -> 2"],
    ),
    (
        lambda: {"first": fl.FedAsync(2, speeds=[1, 2, 3]), "second": fl.FedAsync(2, speeds=[1, 2, 4])},
        ["speeds [1, 2, 3] -> [1, 2, 4]"],
    ),
    (lambda: {"first": pull(0.1), "second": pull(0.2)}, ["objective Proximal(mu=0.1) -> Proximal(mu=0.2)"]),
    (lambda: {"second": fl.FedAvg(2, executor="sequential")}, ["executor 'auto' -> 'sequential'"]),
    (lambda: {"first": fl.FedAvg(2, seed=1)}, []),
    (lambda: {name: fl.FedAsync(2, speeds=[1, 2, 3]) for name in ("first", "second")}, []),
    (lambda: {name: fl.Federated(2, server=parts.Mixing(shrinking)) for name in ("first", "second")}, []),
    (
        lambda: {
            "data": table(train_transform=doubled, feature_noise=0.5, shuffle=False),
            "other": table(batch_size=2, drop_last=True, sampler=in_order, standardize="global"),
        },
        [
            *("train_transform doubled -> None", "feature_noise 0.5 -> 0.0", "drop_last False -> True"),
            *("batch_size 3 -> 2", "the data's sampler None -> in_order", "standardize None -> 'global'"),
        ],
    ),
    (
        lambda: {"data": table(train_transform=Scaled(1)), "other": table(train_transform=Scaled(2))},
        ["train_transform Scaled(factor=1) -> Scaled(factor=2)"],
    ),
    (lambda: {name: table(sampler=in_order, standardize="global") for name in ("data", "other")}, []),
    (
        lambda: {"data": poisoned(), "other": table(0)},
        ["poisons [LabelFlipping(clients=[1], num_classes=3)] -> []"],
    ),
    (
        lambda: {
            "data": Pictures(IIDPartitioner(5), augment=False),
            "other": Pictures(IIDPartitioner(5), augment=True),
            "modules": (OfPictures(), OfPictures()),
        },
        ["augment False"],
    ),
    (
        lambda: {
            "data": table(0),
            "modules": (WithOptimizer(torch.optim.SGD), WithOptimizer(torch.optim.SGD, weight_decay=0.9)),
        },
        ["weight_decay 0 -> 0.9"],
    ),
]


@pytest.mark.parametrize(("changes", "lines"), TOLD)
def test_other_settings_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: Callable[[], dict[str, Any]], lines: list[str]
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, **changes())
    told = [text for record in caplog.records if " -> " in (text := record.getMessage())]
    assert len(told) == bool(lines)
    assert all(line in told[0] for line in lines), told


@pytest.mark.parametrize(("first", "second"), [("sequential", "vectorized"), ("vectorized", "sequential")])
def test_any_executor_goes_on_from_the_checkpoint_of_any(tmp_path: Path, first: Any, second: Any) -> None:
    module = resume(tmp_path, fl.FedAvg(3, executor=first), fl.FedAvg(3, executor=second))
    # each round takes the model a tenth of the way to 2, the mean of the clients' optima
    assert float(module.w) == pytest.approx(2 * (1 - 0.9**4), rel=1e-12)


class Evaluated(Linear):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("samples", float(len(batch[0])), reduce_fx="sum")


def test_a_federated_run_does_not_go_on_centrally_but_is_evaluated(tmp_path: Path) -> None:
    data, path = table(split=ClientSplit()), tmp_path / "federated.ckpt"
    fit(fl.FedAvg(2), Evaluated(), data, 1).save_checkpoint(path)
    with pytest.raises(ValueError, match=r"written by FedAvg,.*callbacks=\[FedAvg\(.*load_state_dict"):
        quiet_trainer(max_epochs=2).fit(Evaluated(), datamodule=data, ckpt_path=path)
    assert quiet_trainer().test(Evaluated(), datamodule=data, ckpt_path=path, verbose=False) == [{"samples": 6.0}]


class WithRate(Quadratic):
    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


def test_another_learning_rate_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        resumed = resume(tmp_path, modules=(WithRate(0.1), WithRate(0.2)))
    assert "lr 0.1 -> 0.2. Optimizers and schedules keep" in caplog.text
    assert resumed.trainer.optimizers[0].param_groups[0]["lr"] == 0.1


def test_the_seed_of_a_resumed_run_does_not_stay_for_another_fit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def end(callback: fl.FedAvg, rounds: int, **options: Any) -> float:
        fit(callback, module := Quadratic(lr=0.1), toy(), rounds, **options)
        return module.w.item()

    fit(fl.FedAvg(1, seed=1), Quadratic(lr=0.1), toy(), 2).save_checkpoint(tmp_path / "run.ckpt")
    callback = fl.FedAvg(1, seed=2)
    with caplog.at_level("INFO"):
        assert end(callback, 8, ckpt_path=tmp_path / "run.ckpt") == end(fl.FedAvg(1, seed=1), 8)
    assert "Seed 2 is not used: the checkpoint's seed 1 goes on" in caplog.text
    assert callback.settings.run_seed == 1
    assert end(callback, 8) == end(fl.FedAvg(1, seed=2), 8) != end(fl.FedAvg(1, seed=1), 8)
    assert callback.settings.run_seed == 2
