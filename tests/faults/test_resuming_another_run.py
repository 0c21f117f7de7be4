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
from helpers.written import assert_as_in, messages
from torch import nn
from torch.nn import functional as F

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.data import ClientSplit, ImageDataModule, LabelFlipping, Source, WithinClientSplit
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


# ---- what is refused ----


def labelled(order: tuple[int, ...]) -> fl.TensorDataModule:
    return fl.TensorDataModule([(torch.ones(6, 4), torch.full((6,), label)) for label in order], batch_size=3)


def with_exchange(*exchange: parts.Exchange) -> fl.FedAvg:
    return fl.FedAvg(2, weighting="uniform", exchange=exchange)


TOP, CLIP = (partial(parts.TopK, 0.5), partial(parts.Clip, 1.0))


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


@pytest.mark.parametrize(("first", "second"), [("sequential", "vectorized"), ("vectorized", "sequential")])
def test_any_executor_goes_on_from_the_checkpoint_of_any(tmp_path: Path, first: Any, second: Any) -> None:
    module = resume(tmp_path, fl.FedAvg(3, executor=first), fl.FedAvg(3, executor=second))
    # each round takes the model a tenth of the way to 2, the mean of the clients' optima
    assert float(module.w) == pytest.approx(2 * (1 - 0.9**4), rel=1e-12)


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


class Evaluated(Linear):
    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("samples", float(len(batch[0])), reduce_fx="sum")


def centrally(folder: Path) -> None:
    """Test a federated run without its algorithm, and go on with it centrally."""
    data, path = table(split=ClientSplit()), folder / "federated.ckpt"
    fit(fl.FedAvg(2), Evaluated(), data, 1).save_checkpoint(path)
    assert quiet_trainer().test(Evaluated(), datamodule=data, ckpt_path=path, verbose=False) == [{"samples": 6.0}]
    quiet_trainer(max_epochs=2).fit(Evaluated(), datamodule=data, ckpt_path=path)


def from_central(folder: Path) -> None:
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(Linear(), datamodule=table(standardize="global"))
    trainer.save_checkpoint(folder / "central.ckpt")
    quiet_trainer(max_epochs=2).fit(Linear(), datamodule=table(standardize="global"), ckpt_path=folder / "central.ckpt")
    fit(fl.FedAvg(2), Linear(), table(), 2, ckpt_path=folder / "central.ckpt")


class WithRate(Quadratic):
    """Has another rate, and perhaps a hyperparameter more."""

    def __init__(self, lr: float, **further: Any) -> None:
        super().__init__(lr)
        self.save_hyperparameters()


def with_rates(folder: Path, **further: Any) -> None:
    """Optimizers keep the checkpoint's rate."""
    module = resume(folder, modules=(WithRate(0.1), WithRate(0.2, **further)))
    assert module.trainer.optimizers[0].param_groups[0]["lr"] == 0.1


def of(first: Callable[[], Any], second: Callable[[], Any] = lambda: None, **others: Any) -> Callable[[Path], Any]:
    """Return a run that begins with one algorithm and goes on with another."""
    return lambda folder: resume(folder, first(), second(), **others)


def on(data: Callable[[], Any], other: Callable[[], Any], *modules: Callable[[], Any]) -> Callable[[Path], Any]:
    """Return a run that begins on some data and goes on on others."""
    return lambda folder: resume(folder, data=data(), other=other(), modules=tuple(make() for make in modules) or None)


def steps(kind: Any, **options: Any) -> Callable[[], Any]:
    return lambda: WithOptimizer(kind, **options)


def pictures(augment: bool) -> Callable[[], Any]:
    return lambda: Pictures(IIDPartitioner(5), augment=augment)


FEDAVG, TABLE = partial(fl.FedAvg, 2), partial(table, 0)
SMALL, LARGE = (partial(toy, val=quadratic_clients([1], [1], [size])[0]) for size in (2, 3))
SPLIT = partial(WithinClientSplit, 0.5, 0)
MANY = partial(table, train_transform=doubled, feature_noise=0.5, shuffle=False)
OTHERS = partial(table, batch_size=2, drop_last=True, sampler=in_order, standardize="global")
QUADRATIC = partial(Quadratic, 0.1)

#: A run that goes on with something else; the text file has the error, or what is told.
RUNS: dict[str, Callable[[Path], Any]] = {
    "another partition": on(TABLE, partial(table, 1)),
    "another split within clients": on(partial(table, split=SPLIT(seed=0)), partial(table, split=SPLIT(seed=1))),
    "another fold, the same training clients": on(
        partial(table, split=ClientSplit(fold=0)), partial(table, split=ClientSplit(fold=1))
    ),
    "another order of clients": on(partial(labelled, (0, 1, 2)), partial(labelled, (1, 0, 2))),
    "another validation set": on(SMALL, LARGE, QUADRATIC, QUADRATIC),
    "another algorithm": of(partial(fl.FedDyn, 0.1, 2), FEDAVG),
    "another schedule": of(partial(fl.Federated, 2), lambda: fl.Federated(2, schedule=parts.Redistribution(3))),
    "an exchange more": of(with_exchange, lambda: with_exchange(TOP())),
    "an exchange less": of(lambda: with_exchange(TOP()), with_exchange),
    "exchanges in another order": of(lambda: with_exchange(CLIP(), TOP()), lambda: with_exchange(TOP(), CLIP())),
    "other redistributions": of(partial(fl.RADFed, 3, 2), partial(fl.RADFed, 2, 2)),
    "another alpha": of(partial(fl.FedDyn, 0.1, 2), partial(fl.FedDyn, 0.2, 2)),
    "another scale of alpha": of(partial(fl.FedDyn, 0.1, 2), partial(fl.FedDyn, 0.1, 2, scale_alpha="none")),
    "other groups": of(partial(fl.HierFAVG, [[0, 1], [2]], 3), partial(fl.HierFAVG, [[0], [1, 2]], 3)),
    "other clusters": of(partial(fl.IFCA, 2, 2), partial(fl.IFCA, 3, 2)),
    "another optimizer": on(TABLE, TABLE, steps(torch.optim.AdamW), steps(torch.optim.SGD)),
    "another optimizer that is kept": lambda folder: resume(
        *(folder, fl.FedAvg(2, optimizer_state="kept"), fl.FedAvg(2, optimizer_state="kept"), table(0)),
        modules=(WithOptimizer(torch.optim.AdamW), WithOptimizer(torch.optim.SGD)),
    ),
    "no algorithm": centrally,
    "no algorithm before": from_central,
    "other numbers": of(FEDAVG, partial(fl.FedAvg, 3, local_epochs=2)),
    "other speeds": of(partial(fl.FedAsync, 2, speeds=[1, 2, 3]), partial(fl.FedAsync, 2, speeds=[1, 2, 4])),
    "the same speeds": of(partial(fl.FedAsync, 2, speeds=[1, 2, 3]), partial(fl.FedAsync, 2, speeds=[1, 2, 3])),
    "another objective": of(partial(pull, 0.1), partial(pull, 0.2)),
    "another executor": of(FEDAVG, partial(fl.FedAvg, 2, executor="sequential")),
    "another seed": of(partial(fl.FedAvg, 2, seed=1), partial(fl.FedAvg, 2, seed=2)),
    "the seed that was not given": of(partial(fl.FedAvg, 2, seed=1)),
    "the same function": of(*[lambda: fl.Federated(2, server=parts.Mixing(shrinking))] * 2),
    "other settings of data": on(MANY, OTHERS),
    "the same settings of data": on(OTHERS, OTHERS),
    "another transform": on(partial(table, train_transform=Scaled(1)), partial(table, train_transform=Scaled(2))),
    "no poisons": on(poisoned, TABLE),
    "augmented": on(pictures(False), pictures(True), OfPictures, OfPictures),
    "another option of the optimizer": on(
        TABLE, TABLE, steps(torch.optim.SGD), steps(torch.optim.SGD, weight_decay=0.9)
    ),
    "another rate": with_rates,
    "another rate, and a hyperparameter more": partial(with_rates, note="later"),
}


def test_what_is_refused_and_what_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def told() -> list[str]:
        lines = [text for text in caplog.messages if any(each in text for each in (" -> ", "Seed", "no state"))]
        caplog.clear()
        return lines

    with caplog.at_level("INFO"):
        assert_as_in(Path(__file__).with_suffix(".txt"), messages(RUNS, tmp_path, told), tmp_path)
