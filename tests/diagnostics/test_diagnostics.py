"""Diagnostics: distance from a central twin, divergence of clients (O16), norms, cost, local accuracy."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from helpers.algorithms import Net, data
from helpers.comparison import assert_same_weights
from helpers.toys import Quadratic, clients_that_reach, quadratic_clients, quiet_trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from fl_lightning import FedAsync, FedAvg, RADFed, Scaffold, TensorDataModule
from fl_lightning.diagnostics import (
    CentralTwin,
    Communication,
    LocalAccuracy,
    LocalCompute,
    LocalDivergence,
    UpdateNorms,
    VirtualTime,
    pairwise_divergence,
    relative_distance,
)
from fl_lightning.models import LogisticRegressionClassifier
from fl_lightning.parts import Participation, VirtualClock

UNEQUAL: dict[str, Any] = {"a": [1.0, 4.0], "c": [0.0, 1.0]}
#: What a client whose training fails hands in does not count.
NO_NUMBERS = [math.inf, math.inf]


class Curve(Callback):
    """Notes every round's logged numbers."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.rounds.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def __getitem__(self, name: str) -> list[float]:
        return [row[name] for row in self.rounds if name in row]


def curves(callbacks: list[Any], module: Any, data: Any, rounds: int, **settings: Any) -> Curve:
    curve = Curve()
    quiet_trainer(max_epochs=rounds, callbacks=[*callbacks, curve], **settings).fit(module, datamodule=data)
    return curve


def test_o16_distance() -> None:
    assert relative_distance(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 5.0])) == pytest.approx(0.632455532, abs=1e-9)
    assert relative_distance(torch.ones(3), torch.ones(3)) == 0.0
    assert relative_distance(torch.ones(3), torch.zeros(3)) == float("inf")


def test_o16_divergence() -> None:
    for rows, expected in [
        ([[1, 0], [0, 1], [-1, 0]], 4 / 3),
        ([[1, 0], [1, 1]], 0.292893219),
        ([[2, 3], [2, 3], [2, 3]], 0.0),
        ([[1, 0], [0, 0], [1, 1]], 0.292893219),  # a vector of length 0 has no direction
        ([[0, 0], [1, 0]], math.nan),
        ([[0, 0]], math.nan),
    ]:
        found = pairwise_divergence(torch.tensor(rows, dtype=torch.float32))
        assert found == pytest.approx(expected, abs=1e-9, nan_ok=True)


def one_step(watcher: Callback, start: list[float], *optima: list[float], rounds: int = 1) -> dict[str, float]:
    """Return what is logged of the last round, in which each client goes from the server's model to its optimum."""
    clients = clients_that_reach(list(optima), [1] * len(optima))
    return curves([FedAvg(1.0), watcher], Quadratic(1.0, start), TensorDataModule(clients), rounds).rounds[-1]


@pytest.mark.parametrize(("of", "expected"), [("weights", [1.0, 1.0]), ("updates", [1 - 1 / 2**0.5, 2.0])])
def test_divergence_of_a_round(of: Any, expected: list[float]) -> None:
    # from (-1, 0): weights (1, 0) and (0, 1), updates (2, 0) and (1, 1); then from (1/2, 1/2), in opposite directions
    for rounds in (1, 2):
        row = one_step(LocalDivergence(of), [-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], NO_NUMBERS, rounds=rounds)
        assert row["fed/divergence"] == pytest.approx(expected[rounds - 1], abs=1e-7)  # logs are float32
    assert "fed/divergence" not in one_step(LocalDivergence(of), [-1.0, 0.0], [1.0, 0.0], NO_NUMBERS)


def test_update_norms() -> None:
    row = one_step(UpdateNorms(), [0.0, 0.0], [3.0, 4.0], [0.0, 1.0])
    assert one_step(UpdateNorms(), [0.0, 0.0], [3.0, 4.0], NO_NUMBERS)["fed/update_norm"] == 5.0
    expected = {"fed/update_norm": 3.0, "fed/update_norm_min": 1.0, "fed/update_norm_max": 5.0}
    assert {name: row[name] for name in row if "update" in name} == pytest.approx(expected, abs=1e-14)


def test_central_twin_trains_on_the_union() -> None:
    # Full batch, two local steps of 0.1. Twin: mean of the gradients of both clients, 2.5 w - 2, from 0: 0.2, 0.35;
    # then 0.4625, 0.546875. FedAvg: locals 0 and 0.64, mean 0.32; then 0.2592 and 0.7552, mean 0.5072 (r = 0.81, 0.36).
    data = TensorDataModule(quadratic_clients(**UNEQUAL), batch_size=None)
    curve = curves([FedAvg(1.0, local_steps=2), CentralTwin()], Quadratic(0.1), data, 2)
    expected = [(0.35 - 0.32) / 0.35, (0.546875 - 0.5072) / 0.546875]
    assert curve["fed/central_distance"] == pytest.approx(expected, abs=1e-7)  # logs are float32


@pytest.mark.parametrize(
    ("work", "options"),
    [
        ({"local_steps": 3}, {"accumulate_grad_batches": 2}),
        ({"local_epochs": 2}, {"accumulate_grad_batches": 2}),  # three batches an epoch: a step of two, and one of one
        ({}, {"limit_train_batches": 0.5}),
        ({"local_epochs": 2}, {"limit_train_batches": 2, "accumulate_grad_batches": 2}),
    ],
)
def test_central_twin_trains_as_long_as_the_rounds_client(work: dict[str, int], options: dict[str, Any]) -> None:
    client = (torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0]).double(), torch.tensor([1.0, 5.0, 9.0, 2.0, 3.0]).double())
    data = TensorDataModule([client, (client[0] + 1, -client[1])], batch_size=2, shuffle=False)
    curve = curves([FedAvg(1, **work), CentralTwin()], Quadratic(0.05), data, 3, **options)
    assert curve["fed/central_distance"] == pytest.approx([0.0] * 3, abs=1e-13)


def test_diagnostics_change_nothing() -> None:
    finals = []
    for diagnostics in ([], [CentralTwin(), LocalDivergence(), UpdateNorms(), LocalAccuracy(), LocalCompute()]):
        module, curve = Net(), Curve()
        callbacks = [RADFed(2, 3, seed=1), *diagnostics, curve]
        trainer = quiet_trainer(max_epochs=4, gradient_clip_val=1.0, callbacks=callbacks)
        trainer.fit(module, datamodule=data(sizes=(8,) * 5))
        lr = trainer.optimizers[0].param_groups[0]["lr"]
        finals.append((module.state_dict(), curve["train_loss_epoch"], trainer.global_step, lr))
    assert finals[0][1:] == finals[1][1:]
    assert_same_weights(finals[0][0], finals[1][0])


def test_communication() -> None:
    # 3 parameters in float64; SCAFFOLD's second vector counts
    data = TensorDataModule([(torch.ones(1, 3).double(), torch.ones(1, 3).double())] * 4, batch_size=None)
    for callback, vectors in [(FedAvg(2), 1), (Scaffold(2), 2)]:
        curve = curves([callback, Communication()], Quadratic(0.1, [0.0] * 3), data, 2)
        assert curve["fed/models_down"] == curve["fed/models_up"] == [2 * vectors, 4 * vectors]
        assert curve["fed/bytes_down"] == curve["fed/bytes_up"] == [2 * vectors * 24, 4 * vectors * 24]


class Validated(Quadratic):
    """Validates w itself."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("w", self.w.detach())


@pytest.mark.parametrize(("start", "mode"), [(0.0, "max"), (2.0, "min")])
@pytest.mark.parametrize(("callback", "factor"), [(FedAvg(1.0), 1), (Scaffold(1.0), 2)], ids=["fedavg", "scaffold"])
def test_rounds_and_cost_to_a_target(callback: Any, factor: int, start: float, mode: Any) -> None:
    # w = 0.5, 0.75, 0.875 or 1.5, 1.25, 1.125 after rounds 1, 2, 3
    [client] = quadratic_clients([1.0], [1.0])
    communication = Communication(target=0.75 + start / 4, monitor="w", mode=mode)
    data = TensorDataModule([client], val=client, batch_size=None)
    curve = curves([callback, communication], Validated(0.5, start), data, 3)
    assert (communication.rounds_to_target, communication.cost_to_target) == (2, 2 * factor)
    assert curve["fed/cost_to_target"] == [2 * factor] * 2
    assert curve["fed/rounds_to_target"] == [2, 2]
    resumed = Communication(target=0.75, monitor="w")
    resumed.load_state_dict(communication.state_dict())
    assert resumed.state_dict() == communication.state_dict() == {"rounds": 2, "cost": 2 * factor, "seen": 3}
    assert str(communication) == "2"


@pytest.mark.parametrize(
    ("settings", "batch_size", "steps", "samples"),
    [({"local_epochs": 2}, 3, 6, 14), ({"local_steps": 4}, 3, 4, 10), ({"local_epochs": 2}, None, 2, 14)],
)
def test_local_compute(settings: dict[str, int], batch_size: int | None, steps: int, samples: int) -> None:
    # clients of 7 samples; 4 steps are one pass (3 + 3 + 1) and a batch of 3
    data = TensorDataModule(quadratic_clients([1.0] * 2, [1.0] * 2, sizes=[7, 7]), batch_size=batch_size)
    compute = LocalCompute()
    curve = curves([FedAvg(1.0, **settings), compute], Quadratic(0.1), data, 3)
    assert curve["fed/local_steps"] == [2 * steps * r for r in (1, 2, 3)]
    assert curve["fed/local_samples"] == [2 * samples * r for r in (1, 2, 3)]
    assert compute.rounds_of_client == {0: 3, 1: 3}


def test_another_fit_counts_anew_and_one_that_goes_on_counts_on() -> None:
    # two clients of one step each, at speeds at which a round takes one unit of time; w - c halves in each round
    observers = [Communication(0.0, "val_loss"), LocalCompute(), VirtualTime(VirtualClock(100)), CentralTwin()]
    data = TensorDataModule(quadratic_clients([1.0, 1.0], [2.0, 4.0]), batch_size=None)
    names = ("fed/models_up", "fed/local_steps", "fed/virtual_time", "fed/central_distance")
    logged = []
    for _ in range(2):
        curve, module = Curve(), Quadratic(0.5)
        trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0), *observers, curve])
        trainer.fit(module, datamodule=data)
        logged.append([curve[name] for name in names])
        assert str(observers[0]) == "2+"
    assert logged == [[[2.0, 4.0], [2.0, 4.0], [1.0, 2.0], [0.0, 0.0]]] * 2
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, datamodule=data)
    assert [curve[name][-1] for name in names] == [6.0, 6.0, 3.0, 0.0]
    assert str(observers[0]) == "3+"


def test_local_accuracy() -> None:
    # after local training each predicts its own majority: 3/4 and 5/6; the weighted mean predicts class 1
    clients = [(torch.zeros(4, 1), torch.tensor([0, 0, 0, 1])), (torch.zeros(6, 1), torch.tensor([1, 1, 1, 1, 1, 0]))]
    accuracy = LocalAccuracy()
    data = TensorDataModule([*clients, (torch.tensor([NO_NUMBERS]).T, clients[0][1][:2])], batch_size=None)
    curve = curves([FedAvg(1.0), accuracy], LogisticRegressionClassifier(1, 2, lr=1.0), data, 1)
    assert accuracy.local == {0: pytest.approx(3 / 4), 1: pytest.approx(5 / 6)}
    assert accuracy.aggregated == {0: pytest.approx(1 / 4), 1: pytest.approx(5 / 6)}
    assert curve["fed/local_acc"] == [pytest.approx((3 / 4 + 5 / 6) / 2)]
    assert curve["fed/aggregated_acc"] == [pytest.approx((1 / 4 + 5 / 6) / 2)]


class Sign(L.LightningModule):
    """One logit: the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_local_accuracy_looks_at_as_many_batches_as_a_validation() -> None:
    # six batches of one sample, of which the first, second and sixth are right
    x = torch.tensor([[1.0], [-1.0], [1.0], [1.0], [1.0], [-1.0]])
    data = TensorDataModule([(x, torch.tensor([1, 0, 0, 0, 0, 0]))], batch_size=None, eval_batch_size=1)
    limits: list[tuple[float, list[float]]] = [(1.0, [3 / 6]), (4, [2 / 4]), (0.5, [2 / 3]), (9, [3 / 6]), (0, [])]
    for limit, expected in limits:
        curve = curves([FedAvg(1.0), LocalAccuracy()], Sign(), data, 1, limit_val_batches=limit)
        assert curve["fed/local_acc"] == curve["fed/aggregated_acc"] == pytest.approx(expected)


@pytest.mark.auto_decides
def test_local_accuracy_is_no_work_of_a_client(caplog: pytest.LogCaptureFixture) -> None:
    data = TensorDataModule([(torch.ones(10, 1), torch.ones(10))] * 2, batch_size=None)
    for watchers in ([], [LocalAccuracy()]):
        with caplog.at_level("DEBUG"):
            curves([FedAvg(1.0, executor="auto"), *watchers], Sign(), data, 1)
    told = [record.getMessage() for record in caplog.records if "client's step has" in record.getMessage()]
    # a product of ten numbers with one, and one of its gradient with the ten: 2 operations for each pair
    assert told == ["A client's step has 40 operations."] * 2


def test_local_accuracy_of_clients_that_hand_in_several_results() -> None:
    class Value(Quadratic):
        """Its score is w, whatever the input."""

        def forward(self, x: Tensor) -> Tensor:
            return self.w.expand(len(x))

    # a step goes half way to 8 or to 0, and the server takes each result whole: client 0 hands in 4 and 6 at 0.4 and
    # 0.8, and client 1, which began at 0, hands in 0 at 1.0
    data = TensorDataModule(quadratic_clients([1.0, 1.0], [8.0, 0.0]), batch_size=None)
    accuracy = LocalAccuracy(lambda scores, targets: float(scores.mean()), name="w")
    asynchronous = FedAsync(3, mixing=1.0, staleness="constant", speeds=[2.5, 1.0])
    curve = curves([asynchronous, accuracy], Value(0.5), data, 1)
    assert accuracy.local == {0: (4 + 6) / 2, 1: 0.0}
    assert accuracy.aggregated == {0: 0.0, 1: 0.0}
    assert curve["fed/local_w"] == [pytest.approx((4 + 6 + 0) / 3)]
    assert curve["fed/aggregated_w"] == [0.0]
    with pytest.raises(TypeError, match="metric"):
        curves([FedAvg(1.0), LocalAccuracy(lambda scores, targets: None, name="w")], Value(0.5), data, 1)


def test_an_empty_round_has_no_divergence() -> None:
    nobody = Participation(available=lambda round_index: [])
    observers = [LocalDivergence(), UpdateNorms(), LocalCompute(), CentralTwin(), LocalAccuracy()]
    observers.append(VirtualTime(VirtualClock()))
    data = TensorDataModule(quadratic_clients(**UNEQUAL), batch_size=None)
    curve = curves([FedAvg(1.0, participation=nobody), *observers], Quadratic(0.1, 1.0), data, 2)
    assert curve["fed/divergence"] == curve["fed/update_norm"] == []
    assert curve["fed/local_steps"] == curve["fed/virtual_time"] == [0.0, 0.0]
    assert curve["fed/central_distance"] == [0.0, 0.0]


def test_buffers_do_not_count() -> None:
    class Normed(Quadratic):
        """Keeps running means of what it sees, and never moves."""

        def __init__(self) -> None:
            super().__init__(lr=0.0, start=1.0)
            self.norm = nn.BatchNorm1d(1).double()

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.norm(batch[1][:, None])
            return super().training_step(batch, batch_idx)

    data = TensorDataModule(quadratic_clients([1.0, 1.0], [2.0, 4.0], sizes=[2, 2]), batch_size=None)
    [row] = curves([FedAvg(1.0), CentralTwin(), LocalDivergence(), UpdateNorms()], Normed(), data, 1).rounds
    names = ("fed/central_distance", "fed/divergence", "fed/update_norm_max")
    assert [row[name] for name in names] == pytest.approx([0.0] * 3, abs=1e-7)


def test_what_another_process_has_seen_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def log(observer: Any, theirs: Any) -> dict[str, float]:
        def loop_of(trainer: L.Trainer) -> Any:
            training = trainer.fit_loop.training  # type: ignore[attr-defined]
            return SimpleNamespace(training=training, gather_objects=lambda mine: [mine, theirs])

        monkeypatch.setattr(f"{type(observer).__module__}.loop_of", loop_of)
        data = TensorDataModule([(torch.ones(2, 1), torch.ones(2))], batch_size=None)
        [row] = curves([FedAvg(1.0), observer], Sign(), data, 1).rounds
        return row

    # w is 1 and does not move
    compute = LocalCompute()
    row = log(compute, [(5, 10, 20)])
    assert (row["fed/local_steps"], row["fed/local_samples"], compute.rounds_of_client) == (11, 22, {0: 1, 5: 1})
    assert log(UpdateNorms(), [2.0])["fed/update_norm"] == 1.0
    assert log(LocalDivergence(), [torch.tensor([-1.0])])["fed/divergence"] == 2.0
    row = log(LocalAccuracy(), ([(5, 0.5)], {5: 0.25}))
    assert (row["fed/local_acc"], row["fed/aggregated_acc"]) == (0.75, 0.625)
