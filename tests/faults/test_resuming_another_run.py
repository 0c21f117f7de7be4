"""A checkpoint is resumed with the clients and the algorithm that wrote it; other settings are told in one line."""

from __future__ import annotations

import re
from collections import UserDict, UserList
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


QUADRATIC = partial(Quadratic, lr=0.1)


def table(seed: int = 0, **options: Any) -> Table:
    return Table(IIDPartitioner(num_clients=5, seed=seed), **{"batch_size": 3, **options})


def toy(batch_size: int | None = None, order: tuple[int, ...] = (0, 1, 2), **options: Any) -> fl.TensorDataModule:
    clients = quadratic_clients([1, 1, 1], [1, 2, 3], [4, 4, 4])
    return fl.TensorDataModule(clients=[clients[place] for place in order], batch_size=batch_size, **options)


def resume(
    tmp_path: Path,
    first: fl.AggregationCallback,
    second: fl.AggregationCallback,
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


class Configured(Quadratic):
    """Its hyperparameters are mappings and lists of another package, such as those of Hydra."""

    def __init__(self, config: Any) -> None:
        super().__init__(lr=config["lr"])
        self.save_hyperparameters()


def test_hyperparameters_of_other_packages_are_kept_as_plain_ones(tmp_path: Path) -> None:
    resume(tmp_path, fl.FedAvg(), fl.FedAvg(), module=lambda: Configured(UserDict(lr=0.1, sizes=UserList([4, 2]))))
    checkpoint = torch.load(tmp_path / "run.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"] == {"config": {"lr": 0.1, "sizes": [4, 2]}}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "other settings" in record.getMessage()]


def labelled(order: tuple[int, ...]) -> fl.TensorDataModule:
    clients = [(torch.ones(6, 4), torch.full((6,), label)) for label in range(3)]
    return fl.TensorDataModule(clients=[clients[place] for place in order], batch_size=3)


def validated(size: int) -> fl.TensorDataModule:
    return toy(val=quadratic_clients([1], [1], [size])[0])


@pytest.mark.parametrize(
    ("data", "other", "match"),
    [
        (table(0), table(1), "another federation .*Resume with the same data"),
        *[
            (table(split=WithinClientSplit(0.5, 0, seed=0)), table(split=WithinClientSplit(0.5, 0, seed=1)), "split"),
            (table(split=ClientSplit(fold=0)), table(split=ClientSplit(fold=1)), "fold"),  # the same training clients
            (labelled((0, 1, 2)), labelled((1, 0, 2)), "another federation"),
        ],
        (validated(2), validated(3), "2 validation samples, .*now 3 validation samples"),
    ],
    ids=["partition", "split within clients", "fold", "order", "validation set"],
)
def test_other_data_are_refused(tmp_path: Path, data: Any, other: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        resume(
            tmp_path, fl.FedAvg(2), fl.FedAvg(2), data=data, other=other, module=QUADRATIC if "valid" in match else None
        )


def with_exchange(*exchange: parts.Exchange) -> fl.FedAvg:
    return fl.FedAvg(2, weighting="uniform", exchange=exchange)


@pytest.mark.parametrize(
    ("first", "second", "match"),
    [
        (fl.FedDyn(0.1, 2), fl.FedAvg(2), "written by FedDyn, not by FedAvg"),
        (fl.Federated(2), fl.Federated(2, schedule=parts.Redistribution(3)), "Synchronous.* Redistribution"),
        (with_exchange(), with_exchange(parts.TopK(0.5)), "this run .*TopK"),
        (with_exchange(parts.TopK(0.5)), with_exchange(), "TopK.*this run"),
        (
            with_exchange(parts.Clip(1.0), parts.TopK(0.5)),
            with_exchange(parts.TopK(0.5), parts.Clip(1.0)),
            "Clip, TopK.* TopK, Clip",
        ),
        (fl.RADFed(3, 2), fl.RADFed(2, 2), "`redistributions`"),
        (fl.FedDyn(0.1, 2), fl.FedDyn(0.2, 2), "`alpha`"),
        (fl.FedDyn(0.1, 2), fl.FedDyn(0.1, 2, scale_alpha="none"), "`scale_alpha`"),
    ],
)
def test_another_algorithm_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, match: str
) -> None:
    with caplog.at_level("INFO"), pytest.raises(ValueError, match=match):
        resume(tmp_path, first, second)
    assert told(caplog) == []  # nothing resumed


def shrinking(round_index: int) -> float:
    return 0.9**round_index


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        (fl.FedAvg(2), fl.FedAvg(3, local_epochs=2), "clients_per_round 2 -> 3, .*local_epochs 1 -> 2"),
        (fl.FedAsync(2, speeds=[1, 2, 3]), fl.FedAsync(2, speeds=[1, 2, 4]), r"speeds \[1, 2, 3\] -> \[1, 2, 4\]"),
        (
            fl.Federated(2, objective=parts.Proximal(0.1), aggregation=parts.WeightedMean("uniform")),
            fl.Federated(2, objective=parts.Proximal(0.2), aggregation=parts.WeightedMean("uniform")),
            r"objective Proximal\(mu=0.1\) -> Proximal\(mu=0.2\)",
        ),
        (fl.FedAvg(2, seed=1), fl.FedAvg(2, seed=9, executor="sequential"), "executor 'auto' -> 'sequential'"),
        # what is the same is not told
        (fl.FedAvg(2, seed=1), fl.FedAvg(2), None),
        (fl.FedAsync(2, speeds=[1, 2, 3], seed=3), fl.FedAsync(2, speeds=[1, 2, 3], seed=3), None),
        (*(fl.Federated(2, server=parts.Mixing(shrinking), seed=1) for _ in range(2)), None),
    ],
)  # fmt: skip
def test_other_settings_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, line: str | None
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, first, second)
    assert ("Seed 9 is not used" in caplog.text) is (second.settings.seed == 9)
    if line is None:
        assert told(caplog) == []
    else:
        (message,) = told(caplog)
        assert re.search(line, message), message


class WithOptimizer(Linear):
    """Its optimizer is the next one of a list."""

    def __init__(self, makers: list[Any]) -> None:
        super().__init__()
        self.make = makers.pop(0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = self.make(self.parameters())
        return optimizer


def test_an_optimizer_of_another_class_is_refused_and_of_other_settings_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    makers = [partial(torch.optim.SGD, lr=0.1), partial(torch.optim.Adam, lr=0.1)]
    with pytest.raises(ValueError, match="state of SGD, and `configure_optimizers` now returns Adam"):
        resume(tmp_path, fl.FedAvg(2), fl.FedAvg(2), data=table(0), module=lambda: WithOptimizer(makers))
    makers = [partial(torch.optim.SGD, lr=0.1), partial(torch.optim.SGD, lr=0.1, weight_decay=0.9)]
    with caplog.at_level("INFO"):
        resume(tmp_path, fl.FedAvg(2), fl.FedAvg(2), data=table(0), module=lambda: WithOptimizer(makers))
    assert "weight_decay 0 -> 0.9" in caplog.text


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


def in_order(client: int, dataset: Any, generator: torch.Generator) -> range:
    return range(len(dataset))


class Scaled:
    """A transform with a setting."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return f"Scaled({self.factor})"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


#: Settings of the data before and after, and what is told of them.
SETTINGS: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    (
        {"train_transform": doubled, "feature_noise": 0.5, "shuffle": False},
        {"train_transform": halved, "batch_size": 2, "drop_last": True, "sampler": in_order, "standardize": "global"},
        [
            *("train_transform doubled -> halved", "feature_noise 0.5 -> 0.0", "drop_last False -> True"),
            *("batch_size 3 -> 2", "the data's sampler None -> in_order", "standardize None -> 'global'"),
        ],
    ),
    ({"train_transform": Scaled(1)}, {"train_transform": Scaled(2)}, ["train_transform Scaled(1) -> Scaled(2)"]),
    ({"sampler": in_order, "standardize": "global"}, {"sampler": in_order, "standardize": "global"}, []),
]


@pytest.mark.parametrize(("first", "second", "lines"), SETTINGS, ids=["several", "inside", "same"])
def test_other_settings_of_the_data_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, lines: list[str]
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, fl.FedAvg(2), fl.FedAvg(2), data=table(**first), other=table(**second))
    assert sum(told(caplog)[0].count(line) for line in lines) == len(lines) if lines else told(caplog) == []


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


@pytest.mark.parametrize(
    ("first", "second", "module", "line"),
    [
        *[
            (*(Pictures(IIDPartitioner(5), augment=augment) for augment in (False, True)), OfPictures, "augment False"),
            (poisoned(), table(0), Linear, "poisons [LabelFlipping(clients=[1], num_classes=3)] -> []"),
        ],
    ],
    ids=["augment", "poison"],
)
def test_other_settings_of_other_data_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any, second: Any, module: Any, line: str
) -> None:
    with caplog.at_level("INFO"):
        resume(tmp_path, fl.FedAvg(2), fl.FedAvg(2), data=first, other=second, module=module)
    (message,) = told(caplog)
    assert line in message


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
    federated = quiet_trainer(max_epochs=1, callbacks=[fl.FedAvg(2)])
    federated.fit(Evaluated(), datamodule=data)
    federated.save_checkpoint(path)
    with pytest.raises(ValueError, match=r"written by FedAvg.*callbacks="):
        quiet_trainer(max_epochs=2).fit(Evaluated(), datamodule=data, ckpt_path=path)
    assert quiet_trainer().test(Evaluated(), datamodule=data, ckpt_path=path, verbose=False) == [{"samples": 6.0}]


class WithRate(Quadratic):
    def __init__(self, lr: float) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


def test_another_learning_rate_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rates = [0.1, 0.2]
    with caplog.at_level("INFO"):
        resumed = resume(tmp_path, fl.FedAvg(2), fl.FedAvg(2), module=lambda: WithRate(rates.pop(0)))
    assert "lr 0.1 -> 0.2. Optimizers and schedules keep" in caplog.text
    assert resumed.trainer.optimizers[0].param_groups[0]["lr"] == 0.1


def test_the_seed_of_a_resumed_run_does_not_stay_for_another_fit(tmp_path: Path) -> None:
    def fit(callback: fl.FedAvg, rounds: int, **options: Any) -> float:
        module = Quadratic(lr=0.1)
        quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(module, datamodule=toy(), **options)
        return module.w.item()

    first = quiet_trainer(max_epochs=2, callbacks=[fl.FedAvg(1, seed=1)])
    first.fit(Quadratic(lr=0.1), datamodule=toy())
    first.save_checkpoint(tmp_path / "run.ckpt")
    callback = fl.FedAvg(1, seed=2)
    assert fit(callback, 8, ckpt_path=tmp_path / "run.ckpt") == fit(fl.FedAvg(1, seed=1), 8)
    assert callback.settings.run_seed == 1
    assert fit(callback, 8) == fit(fl.FedAvg(1, seed=2), 8) != fit(fl.FedAvg(1, seed=1), 8)
    assert callback.settings.run_seed == 2
