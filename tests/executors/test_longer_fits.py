"""Stacks in fits that go on: resumed ones end with the same bits, and what changes between fits is seen."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MeanMetric

from fl_lightning import FedAvg, TensorDataModule
from fl_lightning.executors import VectorizedExecutor

SIZES = (8, 8, 12, 8, 9, 8, 12, 8)


def fit(
    module: Module, executor: Any = "vectorized", rounds: int = 4, path: Path | None = None, sizes: Any = SIZES
) -> tuple[Tensor, Any]:
    """Return the weights and buffers after so many rounds, and the trainer."""
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[FedAvg(1.0, seed=1, executor=executor)])
    data = TensorDataModule(clients_of((6,), sizes), batch_size=4)
    trainer.fit(module, datamodule=data, ckpt_path=path, weights_only=None if path is None else False)
    return torch.cat([value.detach().double().flatten() for value in module.state_dict().values()]), trainer


class CountsLater(Module):
    """Counts its steps, which a stack would take once for all, from the third round on."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__(layers)
        self.on, self.seen = False, 0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.seen += int(self.on)
        return F.cross_entropy(self.layers(batch[0]), batch[1]) * (1 + 0.1 * self.seen)

    def on_train_epoch_start(self) -> None:
        self.on = self.on or self.current_epoch >= 2


class CountsAtTheSeventhBatch(CountsLater):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.on = batch_idx == 6
        return super().training_step(batch, batch_idx)


class Normalised(Module):
    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__(layers)
        nn.utils.parametrizations.weight_norm(layers[0])
        self.handle = layers[2].register_forward_hook(_twice, with_kwargs=True)


def _twice(layer: nn.Module, arguments: Any, options: Any, output: Tensor) -> Tensor:
    return 2 * output


class LaterAndLater(Module):
    """In each round the loss is measured otherwise, so that ways come that were never taken before."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__(nn.Sequential(nn.BatchNorm1d(6), layers, nn.Dropout(0.1)))
        self.average = MeanMetric()
        self.register_buffer("round", torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = torch.cat([batch[0], 2 * batch[0]])  # a batch may have one sample
        loss = F.cross_entropy(self.layers(x), batch[1].repeat(2))
        self.average.update(loss.detach())
        for limit in (0.5, 1.5, 2.5):
            if self.round > limit:
                loss = loss * 1.1
        return 2 * loss if batch[0].mean() > 0 else loss

    def on_train_epoch_end(self) -> None:
        self.round += 1
        self.log("average", self.average.compute())
        self.average.reset()


@pytest.mark.parametrize(
    ("make", "rounds"),
    [
        (CountsLater, 2),
        pytest.param(Normalised, 2, marks=pytest.mark.long),
        (LaterAndLater, 2),
        pytest.param(Module, 2, marks=pytest.mark.long),
    ],
)
def test_a_resumed_fit_ends_with_the_same_bits(make: type[Module], rounds: int, tmp_path: Path) -> None:
    whole, trainer = fit(make(linear()))
    assert (trainer.fit_loop.executor.cause is None) == (make not in (CountsLater, LaterAndLater))
    _, begun = fit(make(linear()), rounds=rounds)
    begun.save_checkpoint(tmp_path / "last.ckpt")
    resumed, _ = fit(make(linear()), path=tmp_path / "last.ckpt")
    assert torch.equal(whole, resumed)


def test_a_second_fit_looks_for_changes_in_its_first_round() -> None:
    ends = []
    for executor in ("sequential", "vectorized"):
        module = CountsLater(linear())
        _, trainer = fit(module, executor, rounds=2)
        module.on = True
        trainer.fit_loop.max_epochs = 3
        trainer.fit(module, datamodule=TensorDataModule(clients_of((6,), SIZES), batch_size=4))
        ends.append(torch.cat([parameter.detach().flatten() for parameter in module.parameters()]))
    assert torch.allclose(*ends, rtol=0, atol=1e-10)


def test_clients_longer_than_all_before() -> None:
    sizes = (24, 24, 32, 24, 32, 24, 40, 32)  # 6, 8 and 10 batches
    modules = [CountsAtTheSeventhBatch(linear()), CountsAtTheSeventhBatch(linear())]
    ends = [
        fit(module, name, 3, None, sizes)[0] for module, name in zip(modules, ("sequential", "vectorized"), strict=True)
    ]
    assert torch.allclose(*ends, rtol=0, atol=1e-10)
    assert [module.seen for module in modules] == [12, 12]  # four longer clients in each of three rounds


def test_a_callback_with_an_executor_of_ones_own_can_be_pickled_after_a_fit() -> None:
    callback = FedAvg(1.0, executor=VectorizedExecutor())
    trainer = quiet_trainer(max_epochs=1, callbacks=[callback])
    trainer.fit(Module(linear()), datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    assert isinstance(pickle.loads(pickle.dumps(callback)), FedAvg)
