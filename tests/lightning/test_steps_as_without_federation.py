"""Steps of unusual forms train one client as stock Lightning does without a federation, bit for bit."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import BackboneFinetuning, Callback
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

from fl_lightning import ClientDatasetsModule, FedAvg, TensorDataModule


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.notes: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def samples(number: int = 18) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(number, 6, generator=generator), torch.randint(0, 3, (number,), generator=generator)


def fit(kind: type[Classifier], executor: str | None, data: Any = None, **trainer: Any) -> tuple[Tensor, Any, int]:
    """Return the weights, the module's notes, and the steps."""
    module = kind()
    callbacks = [*trainer.pop("callbacks", tuple)(), *([FedAvg(1.0, executor=executor)] if executor else [])]
    fitter = quiet_trainer(callbacks=callbacks, **{"max_epochs": 1, **trainer})
    given = data() if data else TensorDataModule([samples()], batch_size=4, shuffle=False)
    fitter.fit(module, datamodule=given)
    weights = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
    return weights, module.notes, fitter.global_step


def check(kind: type[Classifier], data: Any = None, **trainer: Any) -> None:
    expected = fit(kind, None, data, **trainer)
    for executor in ("sequential", "vectorized"):
        found = fit(kind, executor, data, **trainer)
        assert torch.equal(found[0], expected[0]), executor
        assert found[1:] == expected[1:], executor


class EndsEarly(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 3:
            raise StopIteration
        return super().training_step(batch, batch_idx)


class SkipsByHand(EndsEarly):
    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


@pytest.mark.parametrize("kind", [EndsEarly, SkipsByHand])
def test_stop_iteration_ends_the_client_alone(kind: type[Classifier]) -> None:
    check(kind, max_epochs=2)
    assert fit(kind, "sequential")[2] == (4 if kind is SkipsByHand else 3)


class Notes(Classifier):
    """Notes the learning rate, and what was the loss."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        optimizer = self.trainer.optimizers[0]
        self.notes.append((optimizer.param_groups[0]["lr"], float(outputs["loss"])))


class Halves(Notes):
    frequency = 2

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        config = {"scheduler": schedule, "interval": "step", "frequency": self.frequency}
        return {"optimizer": optimizer, "lr_scheduler": config}


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_schedules_that_step_at_some_batches(accumulate: int) -> None:
    check(Halves, accumulate_grad_batches=accumulate)


def test_an_accumulation_that_begins_with_a_batch() -> None:
    class Accumulates(Callback):
        def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            trainer.accumulate_grad_batches = 2

    check(Notes, callbacks=lambda: [Accumulates()])


class Momentum(Classifier):
    """The optimizer holds a state before the first step."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        for parameter in self.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
        return optimizer


def test_each_client_begins_with_that_state() -> None:
    def move(clients: int) -> Tensor:
        module = Momentum()
        start = torch.cat([p.detach().flatten() for p in module.parameters()])
        data = TensorDataModule([samples()] * clients, batch_size=None, shuffle=False)
        quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0)]).fit(module, datamodule=data)
        return torch.cat([p.detach().flatten() for p in module.parameters()]) - start

    torch.testing.assert_close(move(3), move(1))


def test_a_state_before_the_first_step() -> None:
    check(Momentum)


def collated(batch: Any) -> Any:
    x, y = default_collate(batch)
    return None if int(y[0]) == 2 else [x, y]


def held_back() -> Any:
    kept: dict[int, Any] = {}

    def collate(batch: Any) -> Any:
        return kept.setdefault(len(kept) % 5, dict(zip("xy", default_collate(batch), strict=True)))

    return collate


class Pops(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch["x"], batch.pop("y")), batch_idx)


def test_a_batch_that_is_none_is_left_out() -> None:
    check(Classifier, lambda: of_samples(collated))


def test_containers_are_made_anew() -> None:
    check(Pops, lambda: of_samples(held_back()), max_epochs=2)


def of_samples(collate: Any) -> Any:
    return ClientDatasetsModule([TensorDataset(*samples(20))], batch_size=4, shuffle=False, collate_fn=collate)


def test_a_step_without_its_closure_is_an_error() -> None:
    class Alone(Classifier):
        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            self.trainer.optimizers[0].step()

    with pytest.raises(MisconfigurationException, match="was not given the closure"):
        fit(Alone, "sequential")


def test_late_unfreezing_is_refused_before_any_work() -> None:
    class WithBackbone(Classifier):
        @property
        def backbone(self) -> nn.Module:
            return self.layers[0]

    with pytest.raises(ValueError, match="other parameters from round 1 on"):
        fit(WithBackbone, "sequential", callbacks=lambda: [BackboneFinetuning(1)], max_epochs=2)
