"""Learning-rate schedules: an epoch is a round; by steps, every client of a round walks the same stretch."""

from __future__ import annotations

from typing import Any

import lightning as L
import pytest
from helpers.comparison import Classifier, clients_of, samples, train_centrally, train_federatedly
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback, LearningRateMonitor
from lightning.pytorch.loggers.logger import DummyLogger
from torch.optim import SGD, lr_scheduler

from fl_lightning import FedAsync, FedAvg, RADFed, TensorDataModule
from fl_lightning.parts import Participation

SIZES = (8, 3, 20)  # 2, 1 and 5 batches of 4: the mean is 8 / 3, rounded up to 3


class Rates(Callback):
    """Notes the learning rate of every batch, client by client."""

    def __init__(self) -> None:
        self.rounds: list[list[list[float]]] = []

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.rounds.append([])

    def on_client_start(self, *_: Any) -> None:
        self.rounds[-1].append([])

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not self.rounds[-1]:  # stock Lightning has no clients
            self.on_client_start()
        self.rounds[-1][-1].append(round(trainer.optimizers[0].param_groups[0]["lr"], 9))


class Scheduled(Classifier):
    """Takes what ``configure_optimizers`` returns from the test."""

    def __init__(self, schedule: Any, **settings: Any) -> None:
        super().__init__()
        self.schedule, self.settings = schedule, settings

    def configure_optimizers(self) -> Any:
        optimizer = SGD(self.parameters(), lr=1.0)
        self.made = self.schedule(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.made, **self.settings}}


def halve(optimizer: Any) -> Any:
    return lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


def run(module: L.LightningModule, **settings: Any) -> list[list[list[float]]]:
    """Return the learning rates of rounds, clients (shortest first) and batches."""
    rates = Rates()
    train_federatedly(module, clients_of(*SIZES), callbacks=[rates], **settings)
    return [sorted(clients, key=len) for clients in rates.rounds]


#: A stretch is 3 steps, so the client with 5 batches stays at its end. Of two batches each: 1, 1, 3 steps, and 2.
WALKS: list[tuple[dict[str, Any], dict[str, Any], list[list[float]], float, int]] = [
    ({}, {}, [[1.0], [1.0, 1.0], [1.0] * 5], 0.5, 2),
    ({"interval": "step"}, {}, [[1.0], [1.0, 0.5], [1.0, 0.5, 0.25, 0.125, 0.125]], 1 / 8, 6),
    ({"interval": "step", "frequency": 2}, {}, [[1.0], [1.0, 1.0], [1.0, 1.0, 0.5, 0.5, 0.5]], 0.5, 2),
    (
        *({"interval": "step"}, {"accumulate_grad_batches": 2}),
        *([[1.0], [1.0, 1.0], [1.0, 1.0, 0.5, 0.5, 0.25]], 0.25, 4),
    ),
]


@pytest.mark.parametrize(("settings", "trainer", "first", "factor", "steps"), WALKS)
def test_every_client_walks_the_rounds_stretch(
    settings: dict[str, Any], trainer: dict[str, Any], first: list[list[float]], factor: float, steps: int
) -> None:
    module = Scheduled(halve, **settings)
    assert run(module, max_epochs=2, **trainer) == [first, [[lr * factor for lr in client] for client in first]]
    assert module.made.last_epoch == steps


def test_by_epoch_with_frequency_and_with_local_steps() -> None:
    rates = run(Scheduled(halve, frequency=2), max_epochs=5)
    assert [clients[0][0] for clients in rates] == [1.0, 1.0, 0.5, 0.5, 0.25]
    module = Scheduled(halve, interval="step")
    train_federatedly(module, clients_of(*SIZES), algorithm=FedAvg(1.0, local_steps=4), max_epochs=2)
    assert module.made.last_epoch == 8


def test_batches_that_are_none_lead_no_further_than_the_stretch() -> None:
    module = Scheduled(lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=6), interval="step")
    module.on_after_batch_transfer = lambda *_: None  # type: ignore[method-assign]
    run(module, max_epochs=2)
    assert module.made.last_epoch == 6


class Plateau(Scheduled):
    """Reduces when its validation loss stops falling."""

    def __init__(self, losses: list[float], **settings: Any) -> None:
        super().__init__(lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.1, patience=0), **settings)
        self.losses = losses

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.losses[self.current_epoch])


def test_reduce_on_plateau() -> None:
    module = Plateau([3.0, 2.0, 2.5, 1.0], monitor="val_loss")
    rates = run(module, max_epochs=4, val=samples(4))
    assert [clients[0][0] for clients in rates] == pytest.approx([1.0, 1.0, 1.0, 0.1])


class Manual(Scheduled):
    """Steps its schedule by hand after every batch."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()  # type: ignore[union-attr]
        self.manual_backward(self.loss(batch))
        optimizer.step()  # type: ignore[union-attr]
        self.lr_schedulers().step()  # type: ignore[union-attr]


def test_manual_schedules_start_alike_for_all_clients_and_go_on_from_the_first() -> None:
    rates = Rates()
    train_federatedly(Manual(halve), clients_of(*SIZES), callbacks=[rates], max_epochs=2)
    first, second = rates.rounds
    assert {client[0] for client in first} == {1.0}
    assert max(first, key=len) == [1.0, 0.5, 0.25, 0.125, 0.0625]
    assert {client[0] for client in second} == {first[0][-1] / 2}


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAsync(1, concurrency=1, seed=1),
        RADFed(6, 3, unequal="reduce", participation=Participation(dropout=0.5), seed=7),
    ],
)
def test_manual_schedules_go_on_where_slot_0_does_not_train(algorithm: Any) -> None:
    trained, found = [0], []

    class Ends(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: L.LightningModule) -> None:
            trained.append(trained[-1] + bool(algorithm.algorithm.report.reported))  # one batch a client
            found.append(trainer.optimizers[0].param_groups[0]["lr"])

    train_federatedly(Manual(halve), clients_of(4, 4, 4), algorithm=algorithm, callbacks=[Ends()], max_epochs=6)
    assert found == [0.5**rounds for rounds in trained[1:]]
    assert trained[-1] > 2


class TwiceScheduled(Scheduled):
    """Has a second schedule, by steps."""

    def configure_optimizers(self) -> Any:
        optimizer, first = super().configure_optimizers().values()
        second = {"scheduler": lr_scheduler.ExponentialLR(optimizer, gamma=0.9), "interval": "step"}
        return [optimizer], [first, second]


@pytest.mark.parametrize(
    ("settings", "accumulate"),
    [
        *(({}, 2), ({"interval": "step"}, 1), ({"interval": "step"}, 2)),
        *(({"interval": "step", "frequency": 2}, 3), ({"interval": "step", "frequency": 3}, 2)),
    ],
    ids=str,
)
def test_one_clients_rates_are_those_of_stock_lightning(settings: dict[str, Any], accumulate: int) -> None:
    federated, central = Rates(), Rates()
    common: dict[str, Any] = {"max_epochs": 2, "accumulate_grad_batches": accumulate}
    data = clients_of(*SIZES)[2]
    train_federatedly(TwiceScheduled(halve, **settings), [data], callbacks=[federated], **common)
    train_centrally(TwiceScheduled(halve, **settings), data, callbacks=[central], **common)
    assert federated.rounds == central.rounds


class Grows(Callback):
    """Doubles the batch size in each round."""

    def on_train_epoch_end(self, trainer: Any, pl_module: L.LightningModule) -> None:
        trainer.datamodule.batch_size *= 2


def test_one_clients_rates_where_the_batch_size_changes() -> None:
    rates, client = Rates(), clients_of(*SIZES)[2]
    train_federatedly(Scheduled(halve, interval="step"), [client], callbacks=[rates, Grows()], max_epochs=3)
    # 5, 3 and 2 steps
    found = [rate for clients in rates.rounds for client in clients for rate in client]
    assert found == [round(0.5**number, 9) for number in range(5 + 3 + 2)]


@pytest.mark.parametrize(("every", "accumulate"), [(1, 3), (3, 2)])
def test_a_stack_notes_the_rate_of_each_accumulated_batch(every: int, accumulate: int) -> None:
    def noted(executor: Any) -> list[float]:
        rates, module = LearningRateMonitor(), Scheduled(halve, interval="step")
        settings = {"accumulate_grad_batches": accumulate, "log_every_n_steps": every, "logger": DummyLogger()}
        algorithm = FedAvg(1.0, executor=executor)
        train_federatedly(module, clients_of(*SIZES), algorithm=algorithm, callbacks=[rates], max_epochs=4, **settings)
        return rates.lrs["lr-SGD"]

    expected = noted("sequential")
    assert len(expected) > 5
    assert noted("vectorized") == pytest.approx(expected)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_no_warning_of_a_schedule_before_its_optimizer(recwarn: pytest.WarningsRecorder, executor: Any) -> None:
    """Stacks step another optimizer than the one that the schedule holds; it is the second fit that would warn."""
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1.0, seed=0, executor=executor)])
    data, module = TensorDataModule(clients=clients_of(8, 12, 20), batch_size=4), Scheduled(halve)
    for rounds in (1, 2):
        trainer.fit_loop.max_epochs = rounds
        trainer.fit(module, datamodule=data)
    assert not [warning for warning in recwarn if "before `optimizer.step()`" in str(warning.message)]
