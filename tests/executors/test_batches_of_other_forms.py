"""Steps that take another way for some batches, or use the module in another way than a stack sees."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule

#: Two clients with whole batches come first, so that trials see no other ones; the last batches have 1 and 3 samples.
SIZES = (8, 8, 12, 9, 8, 11, 12, 8)


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))


class Base(Module):
    """Its loss, which subclasses change for some batches."""

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.layers(batch[0]), batch[1])


class ReadsCounter(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        return loss * (1 + 0.01 * self.global_step) if len(batch[1]) == 1 else loss


class Counts(Base):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen += len(batch[1]) == 1
        return self.loss(batch) * (1 + 0.1 * self.seen)


class Keeps(Base):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.history: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        if len(batch[1]) == 3:
            self.history.append(loss.item())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("history", float(np.sum(self.history)))


class DrawsByPython(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) * (2.0 if random.random() < 0.3 else 1.0)


class DrawsByTorch(Base):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) * (2.0 if torch.rand(1).item() < 0.3 else 1.0)


class UsesOnce(Base):
    """Its second head is used where there is more than one sample."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers, lambda parameters: torch.optim.Adam(parameters, 0.05))
        self.head = nn.Linear(6, 1).double()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(batch)
        return loss + self.head(batch[0]).square().mean() if len(batch[1]) > 1 else loss


class LogsRate(Base):
    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers, self._optimize)

    @staticmethod
    def _optimize(parameters: Any) -> Any:
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.log("lr", self.lr_schedulers().get_last_lr()[0], on_step=True)
        return self.loss(batch)


class KeepsParameters(Base):
    """Penalises parameters that it keeps in a list."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.kept = list(self.parameters())

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(batch) + 5e-5 * sum(parameter.square().sum() for parameter in self.kept)


class Values(Callback):
    """Collects what was logged at the end of each round."""

    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        names = [name for name in trainer.callback_metrics if not name.startswith("fed/")]
        self.found.append({name: float(trainer.callback_metrics[name]) for name in names})


def fit(module: Module, executor: str, clients: Any, rounds: int = 3) -> tuple[Tensor, list[dict[str, float]], Any]:
    values = Values()
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, seed=3, executor=executor), values])
    trainer.fit(module, datamodule=TensorDataModule(clients, batch_size=4))
    return torch.cat([p.detach().flatten() for p in module.parameters()]), values.found, trainer.fit_loop.executor


@pytest.mark.parametrize("layers", [chain, normed])
@pytest.mark.parametrize("kind", [ReadsCounter, Counts, Keeps, DrawsByPython, DrawsByTorch, UsesOnce, LogsRate])
def test_nobody_can_tell(kind: Any, layers: Any) -> None:
    clients = clients_of((6,), SIZES)
    alone, at_once = (fit(kind(layers()), executor, clients) for executor in ("sequential", "vectorized"))
    assert torch.allclose(alone[0], at_once[0], rtol=0, atol=1e-10)
    assert len(alone[1]) == len(at_once[1])
    for one, other in zip(alone[1], at_once[1], strict=True):
        assert one == pytest.approx(other, rel=1e-6)


def test_parameters_that_are_kept_in_a_list_are_seen_in_single_precision() -> None:
    clients = [(x.float(), y) for x, y in clients_of((6,), SIZES)]
    executor = fit(KeepsParameters(chain()).float(), "vectorized", clients)[2]
    assert "takes parameters or buffers by another way than as attributes of the module" in executor.cause


def test_batches_with_other_keys_are_no_group() -> None:
    class Tasks(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            outputs, [(task, target)] = self.layers(batch["x"]), batch["targets"].items()
            return F.cross_entropy(outputs if task == "a" else -outputs, target)

    class Named(TensorDataModule):
        @property
        def source_collate_fn(self) -> Any:
            def collate(samples: Any) -> Any:
                x, y = (torch.stack(part) for part in zip(*samples, strict=True))
                return {"x": x, "targets": {"a" if x[0, 0] > 0 else "b": y}}

            return collate

    ends = []
    for executor in ("sequential", "vectorized"):
        module = Tasks(chain())
        trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, seed=3, executor=executor)])
        trainer.fit(module, datamodule=Named(clients_of((6,), SIZES), batch_size=4))
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.allclose(*ends, rtol=0, atol=1e-10)


def test_inputs_that_are_narrowed_first() -> None:
    class Binary(Base):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.loss((batch[0].to(torch.bool).to(torch.float64), batch[1]))

    clients = [((x > 0).double() * (1 + 2 * (k > 3)), y) for k, (x, y) in enumerate(clients_of((6,), SIZES))]
    alone, at_once = (fit(Binary(chain()), executor, clients) for executor in ("sequential", "vectorized"))
    assert torch.allclose(alone[0], at_once[0], rtol=0, atol=1e-10)


def test_dropout_of_nothing_draws_nothing() -> None:
    def layers() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.0), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3))

    alone, at_once = (
        fit(Base(layers()), executor, clients_of((6,), SIZES)) for executor in ("sequential", "vectorized")
    )
    assert torch.allclose(alone[0], at_once[0], rtol=0, atol=1e-10)
    assert at_once[2].cause is None


class Rows(torch.utils.data.Dataset[Any]):
    """A client's samples, scaled by what all clients share."""

    def __init__(self, x: Tensor, y: Tensor, shared: Any) -> None:
        self.x, self.y, self.shared = x, y, shared

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.x[place] * self.scale(place), self.y[place]

    def scale(self, place: int) -> float:
        raise NotImplementedError


class FromGenerator(Rows):
    def scale(self, place: int) -> float:
        return 1 + 0.3 * self.shared.standard_normal()  # type: ignore[no-any-return]


class FromIterator(Rows):
    def scale(self, place: int) -> float:
        return next(self.shared)  # type: ignore[no-any-return]


class FromCounter(Rows):
    def scale(self, place: int) -> float:
        self.shared.append(place)
        return 1 + len(self.shared) % 5 / 5


class FromGlobal(Rows):
    def scale(self, place: int) -> float:
        global READS
        READS += 1
        return 1 + READS % 5 / 5


class FromCache(Rows):
    kept: Any = None

    def scale(self, place: int) -> float:
        if self.kept is None:
            self.kept = {}
        self.shared.setdefault(id(self.x), {})[place] = self.kept[place] = 1.5
        return self.kept[place]  # type: ignore[no-any-return]


READS = 0


def fit_rows(kind: type[Rows], shared: Any, executor: str) -> tuple[Tensor, str | None]:
    module = Base(chain())
    clients = [kind(x, y, shared) for x, y in clients_of((6,), SIZES)]
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, seed=3, executor=executor)])
    trainer.fit(module, datamodule=ClientDatasetsModule(clients, batch_size=4))
    weights = torch.cat([p.detach().flatten() for p in module.parameters()])
    return weights, None if executor == "sequential" else trainer.fit_loop.executor.cause


@pytest.mark.parametrize(
    ("kind", "shared", "name"),
    [
        (FromGenerator, lambda: np.random.default_rng(0), "FromGenerator.shared"),
        (FromGenerator, lambda: np.random.RandomState(0), "FromGenerator.shared"),
        (FromIterator, lambda: itertools.cycle([1.0, 1.2, 0.8]), "FromIterator.shared"),
        (FromIterator, lambda: (1 + n % 7 / 7 for n in itertools.count()), "FromIterator.shared"),
        (FromCounter, list, "FromCounter.shared"),
        (FromGlobal, lambda: -1, "FromGlobal.READS"),
    ],
)
def test_data_whose_reading_changes_what_clients_share(kind: type[Rows], shared: Any, name: str) -> None:
    global READS
    ends = []
    for executor in ("sequential", "vectorized"):
        READS = 0
        end, cause = fit_rows(kind, shared(), executor)
        ends.append(end)
    assert torch.equal(*ends)
    assert cause is not None and f"reading the data, or `training_step`, changes `{name}" in cause


def test_data_that_keep_what_they_have_read_are_stacked() -> None:
    ends = [fit_rows(FromCache, {}, executor) for executor in ("sequential", "vectorized")]
    assert ends[1][1] is None
    assert torch.allclose(ends[0][0], ends[1][0], rtol=0, atol=1e-6)
