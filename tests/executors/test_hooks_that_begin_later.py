"""Hooks of clients that load state, change what clients share, or look at optimizers, also from a later round on."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from helpers.toys import quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.utils.data import Dataset

from fl_lightning import ClientDatasetsModule, FedAvg, FedDyn
from fl_lightning.executors import AutoExecutor, SequentialExecutor, VectorizedExecutor

STEPS = (2, 3, 1, 4, 2)  # of clients with twice as many samples
ROUNDS = 3
EXECUTORS = [SequentialExecutor, VectorizedExecutor, AutoExecutor]
every_executor = pytest.mark.parametrize("executor", EXECUTORS)


class Constant(Dataset[Tensor]):
    """Samples ``strength * (client + 1, 1)``; the strength is shared by all clients."""

    def __init__(self, client: int, shared: dict[str, float]) -> None:
        self.client, self.shared = client, shared

    def __len__(self) -> int:
        return 2 * STEPS[self.client]

    def __getitem__(self, index: int) -> Tensor:
        return self.shared["strength"] * torch.tensor([self.client + 1.0, 1.0], dtype=torch.float64)


class Clients(ClientDatasetsModule):
    def __init__(self) -> None:
        self.shared = {"strength": 1.0}
        super().__init__([Constant(client, self.shared) for client in range(len(STEPS))], batch_size=2)


class Line(L.LightningModule):
    """Minimises ``-scale * mean(x @ weight)``: a client's gradient is ``-scale * (client + 1, 1)`` at any weights."""

    def __init__(self, factor: float | None = None, **options: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.scale, self.factor = 1.0, factor
        self.options = {"lr": 0.5, **options}

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return -self.scale * (batch @ self.weight).mean()

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), **self.options)
        if self.factor is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, self.factor)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def fit(executor: type, callback: Callback, module: Line, aggregation: Any = FedAvg, **options: Any) -> Any:
    """Return the weights after three rounds, the trainer, and why clients were not stacked."""
    trains = executor()
    federated = aggregation(clients_per_round=1.0, seed=1, executor=trains)
    trainer = quiet_trainer(callbacks=[callback, federated], **{"max_epochs": ROUNDS, **options})
    trainer.fit(module, datamodule=Clients())
    stacks = getattr(trains, "_vectorized", trains)
    return module.weight.detach(), trainer, getattr(stacks, "cause", None)


def merged(length: Callable[[int, int], float]) -> Tensor:
    """Return the weights if a client moves by ``length(round, client) * (client + 1, 1)``, merged by samples."""
    total = torch.zeros(2, dtype=torch.float64)
    for index in range(ROUNDS):
        for client, steps in enumerate(STEPS):
            share = steps / sum(STEPS)
            total += share * length(index, client) * torch.tensor([client + 1.0, 1.0], dtype=torch.float64)
    return total


def close(weights: Tensor, expected: Tensor) -> bool:
    return torch.allclose(weights, expected, rtol=1e-12, atol=1e-12)


# ---- state that is loaded ----


class KeepsState(Callback):
    """Lets each client's optimizer go on in its next round."""

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if client.task.client in self.states:
            trainer.optimizers[0].load_state_dict(self.states[client.task.client])

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.states[result.task.client] = copy.deepcopy(trainer.optimizers[0].state_dict())


@every_executor
def test_an_optimizer_goes_on_where_the_client_left_it(executor: type) -> None:
    weights, _, cause = fit(executor, KeepsState(), Line(momentum=1.0))
    # the buffer is t times the gradient at a client's t-th step, counted through the rounds
    moved = [[sum(range(r * n + 1, (r + 1) * n + 1)) for n in STEPS] for r in range(ROUNDS)]
    assert close(weights, merged(lambda index, client: 0.5 * moved[index][client]))
    if executor is VectorizedExecutor:
        assert cause == (
            "`on_client_start` loads the state of the optimizer or of a schedule, and a stack starts without"
        )


class KeepsSchedule(Callback):
    """Lets each client's schedule by steps go on in its next round."""

    def __init__(self) -> None:
        self.states: dict[int, Any] = {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        [config] = trainer.lr_scheduler_configs
        if client.task.client in self.states:
            config.scheduler.load_state_dict(self.states[client.task.client])
            trainer.optimizers[0].param_groups[0]["lr"] = config.scheduler.get_last_lr()[0]

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        [config] = trainer.lr_scheduler_configs
        self.states[result.task.client] = copy.deepcopy(config.scheduler.state_dict())


@every_executor
def test_a_schedule_goes_on_where_the_client_left_it(executor: type) -> None:
    weights, _, _ = fit(executor, KeepsSchedule(), Line(factor=1.0))
    alone, _, _ = fit(SequentialExecutor, KeepsSchedule(), Line(factor=0.8))
    other, _, _ = fit(executor, KeepsSchedule(), Line(factor=0.8))
    assert close(weights, merged(lambda index, client: 0.5 * STEPS[client]))
    assert close(alone, other)


# ---- what clients share ----


class Halves(Callback):
    """Halves the loss after each client, from the second round on."""

    def __init__(self) -> None:
        self.order: list[tuple[int, int]] = []

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        if trainer.current_epoch:
            pl_module.scale *= 0.5
        self.order.append((result.task.round, result.task.client))


@every_executor
def test_an_attribute_that_a_client_leaves_holds_for_the_next(executor: type) -> None:
    halves = Halves()
    weights, _, cause = fit(executor, halves, Line())
    later = {place: number for number, place in enumerate(halves.order[len(STEPS) :])}
    assert len(later) == 10
    assert close(weights, merged(lambda *place: 0.5 * STEPS[place[1]] * 0.5 ** later.get(place, 0)))
    if executor is VectorizedExecutor:
        assert cause is not None
        assert cause.startswith("`on_client_end` or `training_step` changes `self.scale`")


class Strengthens(Callback):
    """Gives each client's samples a strength, from the second round on."""

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        if trainer.current_epoch:
            trainer.datamodule.shared["strength"] = 1.0 + client.task.client


@every_executor
def test_data_that_hooks_change_are_each_client_s(executor: type) -> None:
    weights, _, cause = fit(executor, Strengthens(), Line())
    assert close(weights, merged(lambda index, client: 0.5 * STEPS[client] * (1 + client if index else 1)))
    if executor is VectorizedExecutor:
        assert cause == "`on_client_start` changes `trainer.datamodule.shared`, of which there is one for all clients"


class Follows(Callback):
    """Gives a client the learning rate of the number of the client before it."""

    def __init__(self) -> None:
        self.last, self.rates = 0, {}

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        rate = self.rates[client.task.round, client.task.client] = 0.1 * (1 + self.last)
        trainer.optimizers[0].param_groups[0]["lr"] = rate

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        self.last = result.task.client


@every_executor
def test_a_rate_may_depend_on_the_client_before(executor: type) -> None:
    follows = Follows()
    weights, _, _ = fit(executor, follows, Line())
    assert len(set(follows.rates.values())) == 5
    assert close(weights, merged(lambda *place: follows.rates[place] * STEPS[place[1]]))


# ---- options that some clients have not ----


class Sets(Callback):
    """Sets an option of the optimizer for each client."""

    def __init__(self, option: str, value: Callable[[int], Any]) -> None:
        self.option, self.value = option, value

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        trainer.optimizers[0].param_groups[0][self.option] = self.value(client.task.client)


@every_executor
def test_some_clients_do_not_move(executor: type) -> None:
    weights, _, cause = fit(executor, Sets("lr", lambda client: 0.5 * (client % 2)), Line())
    assert close(weights, merged(lambda index, client: 0.5 * (client % 2) * STEPS[client]))
    assert cause is None or executor is AutoExecutor


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("weight_decay", lambda client: 0.1 * (client % 2)),
        ("weight_decay", lambda client: 0.1 * (client < 4)),
        ("momentum", lambda client: 0.9 * (client != 2)),
        ("nesterov", lambda client: client % 2 == 0),
        ("maximize", lambda client: client == 3),
    ],
)
def test_options_that_are_nothing_for_some_clients(option: str, value: Any) -> None:
    options = {"weight_decay": 0.1} if option == "weight_decay" else {"momentum": 0.9}
    alone, _, _ = fit(SequentialExecutor, Sets(option, value), Line(**options))
    for executor in (VectorizedExecutor, AutoExecutor):
        weights, _, cause = fit(executor, Sets(option, value), Line(**options))
        assert close(weights, alone)
        assert cause is None or executor is AutoExecutor


class SetsTwoThings(Callback):
    """Sets a learning rate for every client, and an attribute for one, from the second round on."""

    def __init__(self, at: int) -> None:
        self.at, self.place = at, -1

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        pl_module.scale = 1.0

    def on_client_start(self, trainer: Any, pl_module: Any, client: Any) -> None:
        trainer.optimizers[0].param_groups[0]["lr"] = 0.1 * (1 + client.task.client % 2)
        if trainer.current_epoch and client.task.slot >= self.at:
            pl_module.scale = 2.0


@pytest.mark.parametrize("at", [0, 1])
def test_an_attribute_that_comes_beside_rates_is_seen(at: int) -> None:
    alone, _, _ = fit(SequentialExecutor, SetsTwoThings(at), Line())
    weights, _, _ = fit(VectorizedExecutor, SetsTwoThings(at), Line())
    assert close(weights, alone)


# ---- what hooks read ----


class Reads(Callback):
    """Notes gradient, momentum and learning rate at each client's end."""

    def __init__(self) -> None:
        self.notes: dict[tuple[int, int], list[float]] = {}

    def on_client_end(self, trainer: Any, pl_module: Any, result: Any) -> None:
        [optimizer] = trainer.optimizers
        [group] = optimizer.param_groups
        buffer = optimizer.state[pl_module.weight].get("momentum_buffer", torch.zeros(2))
        noted = [*pl_module.weight.grad.tolist(), *buffer.tolist(), group["lr"], group["weight_decay"]]
        self.notes[result.task.round, result.task.client] = noted


@every_executor
def test_gradients_and_momentum_are_the_client_s_own(executor: type) -> None:
    reads = Reads()
    _, _, cause = fit(executor, reads, Line(momentum=0.5))
    assert cause is None or executor is AutoExecutor
    for index in range(ROUNDS):
        for client, steps in enumerate(STEPS):
            many = 2 - 0.5 ** (steps - 1)  # 1 + 1/2 + 1/4 ...
            expected = [-client - 1, -1, many * (-client - 1), -many, 0.5, 0]
            assert reads.notes[index, client] == pytest.approx(expected)


@every_executor
def test_learning_rates_are_those_of_the_client_s_last_step(executor: type) -> None:
    reads = Reads()
    fit(executor, reads, Line(factor=0.5))
    # in a round a schedule by steps walks 3 steps: those of a client of mean size, 24 / 5 samples in batches of 2
    for (index, client), noted in reads.notes.items():
        assert noted[4] == 0.5 * 0.5 ** (3 * index + min(STEPS[client], 3))


@pytest.mark.parametrize("penalty", ["weight_decay", "gradient"])
def test_gradients_are_corrected_ones(penalty: str) -> None:
    notes = []
    for executor in EXECUTORS:
        reads = Reads()
        fit(executor, reads, Line(), partial(FedDyn, 0.5, penalty=penalty))
        notes.append(reads.notes)
    assert notes[1] == notes[2] == {place: pytest.approx(noted) for place, noted in notes[0].items()}
    assert len({tuple(noted) for noted in notes[0].values()}) > 3


# ---- the progress bar ----


@every_executor
def test_the_progress_bar_ends_with_the_last_client(executor: type) -> None:
    _, trainer, _ = fit(executor, Callback(), Line(), max_epochs=2)
    assert trainer.progress_bar_metrics["client"] == "5/5"


class DoublesLater(Callback):
    """Doubles gradients from the second round on, by what is set on an object of Lightning's or on this callback."""

    def __init__(self, place: str) -> None:
        self.place = place

    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        if trainer.current_epoch != 1:
            return
        strategy, precision = trainer.strategy, trainer.precision_plugin
        if self.place == "precision":
            precision.pre_backward = lambda loss, module: 2 * loss  # type: ignore[method-assign, assignment]
        elif self.place == "strategy":
            stock = strategy.backward
            strategy.backward = lambda loss, *rest: stock(2 * loss, *rest)  # type: ignore[method-assign]
        elif self.place == "callback":
            self.on_after_backward = lambda *_: pl_module.weight.grad.mul_(2)  # type: ignore[method-assign]


@every_executor
@pytest.mark.parametrize("place", ["precision", "strategy", "callback"])
def test_steps_that_are_changed_in_a_later_round(place: str, executor: type) -> None:
    """By hand: a round adds half the mean of ``steps * (client + 1, 1)``, weighted by steps, and then twice that."""
    weights, _, cause = fit(executor, DoublesLater(place), Line())
    once = torch.tensor([sum(n * n * (k + 1) for k, n in enumerate(STEPS)), sum(n * n for n in STEPS)]) / 12 / 2
    assert torch.allclose(weights, (1 + 2 + 2) * once.double())
    assert cause is None or "one model at a time" in cause
