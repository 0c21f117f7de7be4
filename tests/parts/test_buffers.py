"""Constant buffers stay where they are and cost nothing; integer buffers that training changes are averaged exactly."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
import pytest
import torch
from helpers.algorithms import ALGORITHMS, Net, data, one_in
from helpers.toys import Descending, Quadratic, fit_clients, fit_quadratic, quadratic_clients
from torch import Tensor, nn

from fl_lightning import FedAsync, FedAvg, Federated, FedNova, HierFAVG, QFedAvg, RADFed, Scaffold, parts
from fl_lightning.diagnostics import Communication
from fl_lightning.testing.fits import fit

MASK = torch.full((4, 4), -math.inf).triu(1)
INTEGERS = torch.tensor([123456789, -1, 2**60 + 1])  # the last has more digits than double precision
ROTATION = torch.tensor([1j, -1.0, complex(math.nan, 0.0)], dtype=torch.complex64)


def add_tables(module: nn.Module) -> None:
    """Register what attention with rotary positions and hashed embeddings have."""
    module.register_buffer("mask", MASK.clone())
    module.register_buffer("integers", INTEGERS.clone())
    module.register_buffer("rotation", ROTATION.clone())
    module.register_buffer("flags", torch.tensor([True, False]))
    module.register_buffer("missing", torch.tensor([math.nan, 1.0]))


def assert_tables_are_as_they_were(module: nn.Module) -> None:
    assert torch.equal(module.mask, MASK)
    assert module.integers.tolist() == INTEGERS.tolist()
    assert torch.view_as_real(module.rotation).tolist()[:2] == torch.view_as_real(ROTATION).tolist()[:2]
    assert module.flags.tolist() == [True, False]
    assert module.missing.isnan().tolist() == [True, False]


class NetWithTables(Net):
    """The network of all algorithms, with BatchNorm, and with tables that it uses."""

    def __init__(self) -> None:
        super().__init__()
        add_tables(self)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        attention = torch.softmax(torch.zeros(2, 2) + self.mask[:2, :2], dim=1)  # (1, 0) and (1/2, 1/2)
        one = attention.diagonal().sum() * (self.integers[0] % 10) / 13.5 * self.rotation[0].abs()
        return super().training_step(batch, batch_idx) * one


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize("name", one_in(80))
def test_tables_stay_as_they_are_and_leave_nobody_out(
    name: str, executor: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    callbacks, nets = [], [NetWithTables(), Net()]
    for net in nets:
        callbacks.append(ALGORITHMS[name](seed=1, executor=executor))
        fit(callbacks[-1], net, data(), 4, left_out := LeftOut())
        assert left_out.seen == []
    assert_tables_are_as_they_were(nets[0])
    assert callbacks[0].algorithm.traffic == callbacks[1].algorithm.traffic
    for key, value in nets[1].state_dict().items():
        torch.testing.assert_close(nets[0].state_dict()[key], value, rtol=1e-9, atol=1e-10)


class LeftOut(L.Callback):
    """Notes clients with NaN or infinite values."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_round_end(self, trainer: Any, pl_module: Any) -> None:
        self.seen += trainer.callbacks[0].algorithm.report.left_out


class Counter(Descending):
    """A weight, tables, and a counter of steps that begins at 123456789, more than single precision can count."""

    def __init__(self, counts: bool = True) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))
        self.counts = counts
        self.register_buffer("steps", torch.tensor(123456789))
        add_tables(self)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.counts:
            self.steps += 1
        return (self.w - batch[0]).square().mean()


CLIENTS = [(torch.ones(2),), (torch.ones(4),)]


def train(module: Counter, callback: Any, rounds: int) -> dict[str, float]:
    """Train clients of 2 and 4 steps; return what was sent."""
    communication = Communication()
    trainer = fit_clients(callback, module, CLIENTS, rounds, communication, batch_size=1)
    assert getattr(trainer.fit_loop.executor, "cause", None) is None  # nothing that was to be stacked was not
    return communication.values


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # 2 and 4 steps a round: 3 more each round; by samples (2 * 2 + 4 * 4) / 6 = 10 / 3, which clients get rounded
        (lambda **k: FedAvg(1.0, weighting="uniform", **k), [3, 6, 9]),
        (lambda **k: FedAvg(1.0, **k), [3, 6, 9]),
        (lambda **k: FedAvg(1.0, weighting="uniform", exchange=parts.Clip(1e-3), **k), [3, 6, 9]),
        (lambda **k: RADFed(1, 1.0, **k), [3, 6, 9]),
        # each client goes on from its own: 2 and 4, 4 and 8, 6 and 12
        (lambda **k: FedAvg(1.0, weighting="uniform", buffers="local", **k), [3, 6, 9]),
        # client 0 arrives at 1 and 2, client 1 at 2: 2, 4, then client 1's 4; the last arrival wins
        (lambda **k: FedAsync(1, mixing=1.0, staleness="constant", speeds=[100, 50], **k), [2, 4, 4]),
    ],
    ids=["uniform", "samples", "clipped", "radfed", "local", "asynchronous"],
)
def test_counters_are_averaged_exactly(make: Any, expected: list[int], executor: Any) -> None:
    module, seen = Counter(), list[int]()
    module.on_train_epoch_end = lambda: seen.append(int(module.steps) - 123456789)  # type: ignore[method-assign]
    train(module, make(executor=executor), rounds=3)
    assert seen == expected
    assert_tables_are_as_they_were(module)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
@pytest.mark.parametrize(
    ("buffers", "counts", "size"),
    # a weight of 4 bytes and a counter of 8
    [("average", True, 4 + 8), ("local", True, 4), ("server", True, 4), ("average", False, 4)],
)
def test_only_buffers_that_change_and_travel_cost_traffic(buffers: Any, counts: bool, size: int, executor: Any) -> None:
    module = Counter(counts)
    sent = train(module, FedAvg(1.0, buffers=buffers, executor=executor), rounds=3)
    # the counter is known to change when the first round has ended, and is counted from that round on
    assert sent["fed/bytes_up"] == sent["fed/bytes_down"] == 3 * 2 * size
    assert counts or int(module.steps) == 123456789
    assert_tables_are_as_they_were(module)


def test_a_client_whose_changing_buffer_is_infinite_is_left_out() -> None:
    class Spoiled(Counter):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if len(batch[0]) == 4:  # client 1's only batch
                self.missing[1] = math.inf
            return super().training_step(batch, batch_idx)

    callback = FedAvg(1.0)
    module = Spoiled()
    with pytest.warns(UserWarning, match=r"clients \[1\]"):
        fit_clients(callback, module, CLIENTS)
    assert callback.algorithm.report.left_out == [1]
    assert int(module.steps) == 123456790
    assert_tables_are_as_they_were(module)


@pytest.mark.parametrize("executor", ["sequential", "vectorized"])
def test_a_complex_buffer_that_training_changes_is_refused(executor: Any) -> None:
    class Turns(Counter):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            self.rotation *= 1j
            return super().training_step(batch, batch_idx)

    module = Turns()
    with pytest.raises(RuntimeError, match="'rotation' of Turns"):
        train(module, FedAvg(1.0, executor=executor), rounds=1)
    assert float(module.w.detach()) == 0.0
    assert int(module.steps) == 123456789
    assert_tables_are_as_they_were(module)


class Statistic(Quadratic):
    """Has a buffer that becomes its client's optimum."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.register_buffer("statistic", torch.zeros((), dtype=torch.float64))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.statistic = batch[1].mean()
        return super().training_step(batch, batch_idx)


def test_a_circulating_model_that_nobody_trained_counts_with_the_server_s_values() -> None:
    # Two of three models train, half the way to 4 and to 8: the median of 0, 2 and 4, then of 2, 3 and 5; and the means
    # of 0, 4 and 8, and of 4, 4 and 8.
    options: dict[str, Any] = {"unequal": "park", "participation": parts.Participation(available=lambda t: [0, 1])}
    module, clients = Statistic(), quadratic_clients([1.0] * 3, [4.0, 8.0, 99.0])
    weights = fit_quadratic(RADFed(1, 3, aggregation=parts.Median(), **options), module, clients, 2)
    assert float(weights) == 3.0
    assert float(module.statistic) == pytest.approx(16 / 3, rel=1e-15)


class Around(parts.Aggregation):
    """Holds another aggregation and does what it does."""

    def __init__(self, held: parts.Aggregation) -> None:
        self.held = held

    def weight_of(self, result: Any) -> float:
        return self.held.weight_of(result)

    def merge(self, model: Tensor, results: Any) -> Tensor | None:
        return self.held.merge(model, results)


PLAIN, BY_SAMPLES = (4 + 8 + 100) / 3, (1 * 4 + 3 * 8 + 4 * 100) / 8


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (FedAvg(1.0), BY_SAMPLES),
        (FedAvg(1.0, weighting="uniform"), PLAIN),
        (Scaffold(1.0, weighting="samples"), BY_SAMPLES),
        (HierFAVG([[0, 1], [2]], 1), BY_SAMPLES),
        (FedNova(1.0), BY_SAMPLES),
        (FedNova(1.0, weighting="uniform"), PLAIN),
        (Federated(1.0, aggregation=Around(parts.NormalizedMean())), BY_SAMPLES),
        # losses at 0 are 8, 32 and 5000
        (QFedAvg(0.0, 1.0), PLAIN),
        (QFedAvg(1.0, 1.0), (8 * 4 + 32 * 8 + 5000 * 100) / 5040),
        # updates are 2, 4 and 50
        (FedAvg(1.0, aggregation=parts.Median()), PLAIN),
        (FedAvg(1.0, aggregation=parts.TrimmedMean(1)), PLAIN),
        (FedAvg(1.0, aggregation=parts.TrimmedMean(0, before=parts.NormBounding(5.0))), (4 + 8 + 0.1 * 100) / 2.1),
        (FedAvg(1.0, aggregation=parts.Krum(0)), 4.0),
        (FedAvg(1.0, aggregation=parts.Krum(0, num_selected=2)), 6.0),
        (
            FedAvg(1.0, aggregation=parts.GeometricMedian(max_iterations=1)),
            (4 / 2 + 8 / 4 + 100 / 50) / (1 / 2 + 1 / 4 + 1 / 50),
        ),
        (FedAvg(1.0, aggregation=parts.CenteredClipping(10.0)), (4 + 8 + 0.2 * 100) / 2.2),
        (FedAvg(1.0, evaluate="active"), BY_SAMPLES),
        (FedAvg(1.0, weighting="uniform", evaluate="all"), PLAIN),
    ],
)
def test_buffers_have_the_weights_of_parameters(callback: Any, expected: float) -> None:
    module = Statistic()
    fit_quadratic(callback, module, quadratic_clients([1.0] * 3, [4.0, 8.0, 100.0], [1, 3, 4]), 1)
    assert float(module.statistic) == pytest.approx(expected, rel=1e-12)


class LazyAtFour(Statistic):
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return -1 if float(batch[1][0]) == 4.0 else None


@pytest.mark.parametrize(
    ("callback", "weight", "statistic"),
    [
        (FedNova(1.0), 4.0, 8.0),
        # The update is -4, and L is 2: with a loss of 32 it counts 32 * 8 / (64 + 2 * 32).
        (QFedAvg(1.0, 1.0), 2.0, 8.0),
        # These count it with what it received.
        (Federated(1.0, aggregation=parts.RememberedUpdates()), 4.0 / 2, 8.0 / 2),
        (Scaffold(1.0), 4.0 / 2, 8.0 / 2),
    ],
)
def test_a_client_without_a_step_has_one_weight_in_all(callback: Any, weight: float, statistic: float) -> None:
    module = LazyAtFour()
    fit_quadratic(callback, module, quadratic_clients([1.0, 1.0], [4.0, 8.0], [1, 2]), 1)
    assert (float(module.w), float(module.statistic)) == (weight, statistic)
