"""Steps that take another way for some batches, or use the module in another way than a stack sees."""

from __future__ import annotations

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


class Noisy(torch.utils.data.Dataset[Any]):
    """Adds noise from a generator that all clients share."""

    def __init__(self, x: Tensor, y: Tensor, rng: np.random.Generator) -> None:
        self.x, self.y, self.rng = x, y, rng

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.x[place] + 0.3 * self.rng.standard_normal(), self.y[place]


def test_data_that_draw_from_a_generator_of_their_own() -> None:
    ends = []
    for executor in ("sequential", "vectorized"):
        rng, module = np.random.default_rng(0), Base(chain())
        clients = [Noisy(x, y, rng) for x, y in clients_of((6,), SIZES)]
        trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, seed=3, executor=executor)])
        trainer.fit(module, datamodule=ClientDatasetsModule(clients, batch_size=4))
        ends.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    assert torch.equal(*ends)
    assert "the data draw from a random generator of their own" in trainer.fit_loop.executor.cause
