"""What asynchronous algorithms do beside their closed forms: waiting, drawing, losing, resuming, refusing."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fl_lightning.parts.asynchronous.report import ArrivalRecord
from fl_lightning.parts.participation import Participation
from fl_lightning.parts.server_optimizers import Mixing
from helpers.algorithms import SPEEDS, Net, data
from helpers.toys import Quadratic, quadratic_clients, quiet_trainer
from helpers.watching import of_ten, watch
from lightning.pytorch.callbacks import Callback
from matplotlib.backends.backend_agg import FigureCanvasAgg

from fl_lightning import (
    AggregationCallback,
    DynamicWeightFedBuff,
    FedAsync,
    FedAvg,
    FedBuff,
    Federated,
    FedProx,
    RADFed,
    TensorDataModule,
)
from fl_lightning.diagnostics import Timeline, VirtualTime
from fl_lightning.parts import Aggregation, ClientResult
from fl_lightning.parts.asynchronous import (
    PAPER_STALENESS,
    Asynchronous,
    VirtualClock,
    calibrate_staleness,
)
from fl_lightning.parts.objectives import ControlVariates
from fl_lightning.parts.sampling import ImportanceSampler

TEN = [100, 95, 90, 85, 80, 25, 20, 15, 10, 5]


def train(callback: AggregationCallback, rounds: int = 5, *others: Callback) -> tuple[Net, list[float]]:
    """Train the network of all algorithms, with dropout, BatchNorm, momentum and a schedule."""
    net, rates = Net(), []

    class Rates(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, Rates(), *others])
    trainer.fit(net, datamodule=data())
    return net, rates


# ---- training ahead ----

MAKERS: dict[str, Callable[..., AggregationCallback]] = {
    "FedAsync": lambda **k: FedAsync(4, rho=lambda t: 0.1 * t, speeds=SPEEDS, seed=2, **k),
    "FedBuff": lambda **k: FedBuff(2, 4, clock=VirtualClock(SPEEDS, jitter=0.5, dropout=0.2), seed=2, **k),
    "waiting": lambda **k: FedBuff(3, 4, wait_for_flush=True, concurrency=4, speeds=SPEEDS, seed=2, **k),
    "DynamicWeight": lambda **k: DynamicWeightFedBuff(3, 4, speeds=SPEEDS, seed=2, **k),
    "local buffers": lambda **k: FedBuff(2, 4, buffers="local", speeds=SPEEDS, seed=2, **k),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("lookahead", [2, 100])
def test_clients_trained_together_give_bitwise_what_they_give_one_at_a_time(name: str, lookahead: int) -> None:
    one, _ = train(MAKERS[name](lookahead=1))
    many, _ = train(MAKERS[name](lookahead=lookahead))
    for key, value in one.state_dict().items():
        assert torch.equal(many.state_dict()[key], value), key


def test_a_client_trains_with_the_rates_of_the_round_in_which_it_received_its_model() -> None:
    # speed 5 takes 20 units of time: it starts in round 0 and is trained rounds later, with that round's rate
    net, rates = train(FedAsync(4, speeds=[100, 95, 50, 25, 20, 20], lookahead=1), 5)
    cosine = [0.1 * (1 + np.cos(np.pi * t / 7)) / 2 for t in range(5)]
    assert {round(rate, 12) for rate in rates} <= {round(rate, 12) for rate in cosine}
    # in time order: uploads at 1, 1.05, 2, 2 | 2.1, 3, 3.2, 4 | ...: in the second round, client 0 comes again at 3
    # with the model of round 0's third upload, client 3 (speed 25) at 4 with the first of all
    assert rates.count(rates[0]) > sum(-(-n // 4) for n in (8, 14, 6))
    assert len(net.state_dict()) > 0


class Constant(Net):
    """Without a schedule: a second fit begins one anew."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Fail(Callback):
    """Raises once, in the middle of a round."""

    def __init__(self, in_round: int) -> None:
        self.in_round = in_round

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.current_epoch == self.in_round and batch_idx == 1:
            self.in_round = -1
            raise RuntimeError("once")


@pytest.mark.parametrize("name", MAKERS)
def test_a_round_that_is_broken_off_leaves_no_trace(name: str) -> None:
    whole = Constant()
    quiet_trainer(max_epochs=5, callbacks=[MAKERS[name]()]).fit(whole, datamodule=data())
    callback, net = MAKERS[name](), Constant()
    trainer = quiet_trainer(max_epochs=5, callbacks=[callback, Fail(2)])
    with pytest.raises(RuntimeError, match="once"):
        trainer.fit(net, datamodule=data())
    trainer.fit(net, datamodule=data())
    for key, value in whole.state_dict().items():
        assert torch.equal(net.state_dict()[key], value), key


def test_models_are_kept_only_while_clients_work_on_them() -> None:
    seen: list[tuple[int, int]] = []

    class Look(Callback):
        def on_round_end(self, trainer: Any, module: Any) -> None:
            simulation = trainer.callbacks[0].algorithm.schedule.simulation
            seen.append((len(simulation.models), len({flight.version for flight in simulation.flights.values()})))

    train(FedBuff(3, 6, speeds=SPEEDS, lookahead=1), 8, Look())
    # all but the client that the last reply is for are under way
    assert all(models == versions <= 5 for models, versions in seen)


# ---- waiting, concurrency, coming and going ----


class EverySecond(Aggregation):
    """Merges every second buffer, and stays after the others."""

    def __init__(self) -> None:
        self.deltas, self.buffers = list[torch.Tensor](), 0

    def update(self, result: ClientResult) -> None:
        self.deltas.append(result.delta)

    def merge(self, model: torch.Tensor) -> torch.Tensor | None:
        deltas, self.deltas = self.deltas, []
        self.buffers += 1
        return model + sum(deltas) / len(deltas) if self.buffers % 2 == 0 else None

    def state_dict(self) -> dict[str, Any]:
        return {"buffers": self.buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffers = state["buffers"]


def test_clients_that_wait_go_on_when_the_server_stays() -> None:
    aggregation = EverySecond()
    timeline = Timeline()
    callback = FedBuff(2, 2, wait_for_flush=True, speeds=[100, 50], server_lr=0.5, aggregation=aggregation)
    module = Quadratic(1.0, 0.0)
    data = TensorDataModule(quadratic_clients([1.0, 1.0], [2.0, 4.0]), batch_size=None)
    quiet_trainer(max_epochs=5, callbacks=[callback, timeline]).fit(module, datamodule=data)
    # one step takes a client to its optimum, 2 or 4; every second buffer moves the server half of the way to 3
    assert float(module.w) == 2.25
    assert (aggregation.buffers, callback.algorithm.server.aggregations) == (5, 2)
    # in each round both clients begin together, and the slower one takes 2 units of time
    assert [(record.arrived, record.client) for record in timeline.arrivals] == [(t, (t + 1) % 2) for t in range(1, 11)]
    assert [record.arrived for record in timeline.arrivals if record.moved] == [4, 8]


def test_clients_wait_for_the_flush() -> None:
    # durations 1, 2, 4 and K = 2: 0 and 1 arrive at 1 and 2 and start again at 2; then 0 at 3, and 1 and 2 at 4: the
    # flush comes with 1 (the smaller client), 0 and 1 start at 4, and 2, whose result waits, with the flush at 5
    seen = watch(FedBuff(2, 7, wait_for_flush=True, speeds=[100, 50, 25]), 1, [0.0, 0.0, 0.0])
    assert [(r.arrived, r.client, r.staleness, r.moved) for r in seen.arrivals] == [
        (1, 0, 0, False),
        (2, 1, 0, True),
        (3, 0, 0, False),
        (4, 1, 0, True),
        (4, 2, 2, False),
        (5, 0, 0, True),
        (6, 0, 0, False),
    ]
    # idle: 0 waits in (1, 2), (3, 4), and 2 in (4, 5): 3 of 18 client units up to time 6
    assert seen.values[0]["fed/utilization"] == pytest.approx(15 / 18)


def test_at_most_so_many_train_at_once() -> None:
    seen = of_ten(FedAsync(300, concurrency=3, speeds=100), 4).arrivals
    # the three of a moment are in the order of their numbers: at best 0, at worst 2 of this moment and 2 of the last
    assert max(record.staleness for record in seen) == 4
    assert sum(record.staleness for record in seen) / len(seen) == pytest.approx(2.0, abs=0.01)
    starts = Counter(record.sent for record in seen)
    assert max(starts.values()) == 3
    clients = Counter(record.client for record in seen)
    # drawn uniformly: 120 each, sd 10.4
    assert all(abs(clients[client] - 120) < 45 for client in range(10))


def test_clients_come_and_go() -> None:
    # one unit a task; client 1 is there in (1.5, 3) and (10, 20): it finishes at 2.5, what it begins then is lost at 3
    clock = VirtualClock(100, online={1: [(1.5, 3), (10, 20)]})
    seen = watch(FedAsync(13, clock=clock), 1, [0.0, 0.0]).arrivals
    assert [(r.sent, r.arrived, r.outcome) for r in seen if r.client == 1] == [
        (1.5, 2.5, "used"),
        (2.5, 3, "lost"),
        (10, 11, "used"),
    ]


def test_with_concurrency_a_place_stays_empty_until_somebody_comes() -> None:
    clock = VirtualClock(100, online={0: [(2, 100)], 1: [(5, 7)]})
    seen = watch(FedAsync(5, clock=clock, concurrency=2), 1, [0.0, 0.0]).arrivals
    assert [(r.arrived, r.client) for r in seen] == [(3, 0), (4, 0), (5, 0), (6, 0), (6, 1)]


def test_lost_results_cost_time_and_no_more() -> None:
    seen = watch(FedAsync(400, clock=VirtualClock(100, dropout=0.25)), 1, [0.0])
    lost = sum(record.outcome == "lost" for record in seen.arrivals)
    # 400 results that arrive, and 400 / 3 that do not on average, sd 13
    assert 85 < lost < 190
    assert seen.arrivals[-1].arrived == 400 + lost


def test_nobody_left_is_an_error() -> None:
    clock = VirtualClock(100, online={0: [(0, 2)], 1: [(0, 1.5)]})
    with pytest.raises(RuntimeError, match=r"No client is at work any more at virtual time 2 and none comes back"):
        watch(FedAsync(4, clock=clock), 2, [0.0, 0.0])


def test_work_is_counted_in_samples_or_steps() -> None:
    targets, sizes = [0.0, 0.0], [1, 3]
    for work, times in (("samples", {0: 1.0, 1: 3.0}), ("steps", {0: 1.0, 1: 1.0})):
        callback = FedAsync(2, clock=VirtualClock(2, work=work), local_epochs=2)  # type: ignore[arg-type]
        first = {record.client: record.arrived for record in reversed(watch(callback, 3, targets, sizes).arrivals)}
        assert first == times


def test_jitter_and_drawn_speeds_are_fixed_by_the_seed() -> None:
    def arrivals(seed: int) -> list[float]:
        clock = VirtualClock(lambda n, rng: rng.uniform(10, 100, n), jitter=0.5, seed=seed)
        return [record.arrived for record in of_ten(FedAsync(20, clock=clock), 1).arrivals]

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])  # the second is what spreadsheets write
def test_a_trace_file_gives_speeds_delays_and_windows(tmp_path: Path, encoding: str) -> None:
    path, text = (
        tmp_path / "trace.csv",
        "client,speed,delay,online_from,online_until\n1,50,0.5,,\n0,100,,0,1\n0,100,,4,inf\n",
    )
    path.write_text(text, encoding=encoding)
    seen = watch(FedAsync(4, clock=VirtualClock.from_file(path)), 1, [0.0, 0.0]).arrivals
    assert [(r.client, r.arrived) for r in seen] == [(0, 1), (1, 2.5), (0, 5), (1, 5)]


def test_models_sent_are_counted() -> None:
    callback = FedAsync(4, speeds=[100, 50])
    watch(callback, 2, [0.0, 0.0])
    # 2 at first, and a reply to each of the 8 results but for the last, which is sent when the next round begins
    assert callback.algorithm.traffic.models_down == 2 + 7
    assert callback.algorithm.traffic.models_up == 8


def test_broadcasts_cost_traffic_alone() -> None:
    results, sent = [], []
    for threshold in (None, 1e-6):
        callback = FedBuff(2, 6, speeds=TEN, broadcast_threshold=threshold)
        results.append(of_ten(callback, 2).weights)
        sent.append(callback.algorithm.traffic.models_down)
    assert results[0] == results[1]
    # six moves, each of them large, to ten clients
    assert sent[1] - sent[0] == 60


def test_flush_at_each_rounds_end() -> None:
    seen = watch(FedBuff(4, 1, flush_rounds=True, staleness="constant"), 2, [3.0])
    # each round's single update is used at its end, divided by one
    assert seen.weights == [3.0, 3.0]


def test_once_per_buffer_rejects_a_second_result() -> None:
    seen = watch(FedBuff(2, 4, once_per_buffer=True, speeds=[100, 40]), 1, [0.0, 0.0]).arrivals
    assert [(r.client, r.outcome) for r in seen] == [(0, "used"), (0, "rejected"), (1, "used"), (0, "used")]


def test_invalid_results_are_left_out() -> None:
    with pytest.warns(UserWarning, match="Round 1: 2 models of client 1 were left out: they have NaN or infinite"):
        seen = watch(FedBuff(2, 6, wait_for_flush=True, speeds=[100, 50, 40]), 1, [0.0, float("nan"), 1.0])
    assert {r.client: r.outcome for r in seen.arrivals}[1] == "invalid"
    assert np.isfinite(seen.weights[0])
    with pytest.raises(FloatingPointError, match=r"Client 1 \(1 sample\) handed back NaN"):
        watch(FedBuff(2, 6, speeds=[100, 50, 40], invalid_updates="raise"), 1, [0.0, float("nan"), 1.0])


# ---- synchronous rounds on the same clock ----


@pytest.mark.parametrize(("callback", "rounds"), [(FedAvg(1.0), 3), (RADFed(3, 1.0), 3), (FedProx(0.1), 3)])
def test_a_synchronous_round_takes_as_long_as_its_slowest_client(callback: AggregationCallback, rounds: int) -> None:
    time = VirtualTime(VirtualClock([100, 50, 20]))
    data_module = TensorDataModule(quadratic_clients([1.0] * 3, [0.0, 1.0, 2.0]), batch_size=None)
    trainer = quiet_trainer(max_epochs=rounds, callbacks=[callback, time])
    trainer.fit(Quadratic(lr=0.1), datamodule=data_module)
    if not isinstance(callback, FedProx):  # which draws one client of the three
        assert time.now == 15.0
        assert float(trainer.callback_metrics["fed/utilization"]) == pytest.approx((1 + 2 + 5) / 15)
    else:
        assert time.now in {float(a + b + c) for a in (1, 2, 5) for b in (1, 2, 5) for c in (1, 2, 5)}


def test_an_asynchronous_algorithm_logs_its_time() -> None:
    callback = FedAsync(4, speeds=[100, 50])
    data_module = TensorDataModule(quadratic_clients([1.0] * 2, [0.0, 1.0]), batch_size=None)
    trainer = quiet_trainer(max_epochs=2, callbacks=[callback])
    trainer.fit(Quadratic(lr=0.1), datamodule=data_module)
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    # uploads at 1 2 2 3 | 4 4 5 6: staleness in the second round 1, 0, 2 and so on; see the ties of the clock
    assert logged["fed/virtual_time"] == 6.0
    assert logged["fed/staleness_max"] == 2.0
    assert logged["fed/aggregations"] == 8.0


# ---- timeline ----


def test_the_timeline_shows_work_that_has_not_ended() -> None:
    # durations 8, 2 and 5: client 1 arrives at 2, 4 and 6, client 2 at 5; at 6 client 0 works since 0, client 2 since 5
    timeline = Timeline()
    data_module = TensorDataModule(quadratic_clients([1.0] * 3, [0.0, 1.0, 2.0]), batch_size=None)
    callback = FedAsync(2, speeds=[12.5, 50, 20])
    quiet_trainer(max_epochs=2, callbacks=[callback, timeline]).fit(Quadratic(lr=0.1), datamodule=data_module)
    assert (timeline.now, sorted(timeline.at_work)) == (6.0, [(0, 0.0), (2, 5.0)])
    axes = timeline.plot().axes[0]
    bars = {text: container for container, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    assert sorted((bar.get_x(), bar.get_width()) for bar in bars["at work"]) == [(0.0, 6.0), (5.0, 1.0)]
    assert sorted(bar.get_x() for bar in bars["used"]) == [0.0, 0.0, 2.0, 4.0]
    early = timeline.plot(until=3.0).axes[0]
    bars = {text: container for container, text in zip(*early.get_legend_handles_labels(), strict=True)}
    assert sorted((bar.get_x(), bar.get_width()) for bar in bars["at work"]) == [(0.0, 3.0), (0.0, 3.0), (2.0, 1.0)]


def test_the_timeline_counts_and_draws(tmp_path: Path) -> None:
    path = tmp_path / "out" / "timeline.png"
    timeline = Timeline(path)
    data_module = TensorDataModule(quadratic_clients([1.0] * 2, [0.0, 1.0]), batch_size=None)
    for _ in range(2):
        trainer = quiet_trainer(max_epochs=3, callbacks=[FedAsync(2, speeds=[100, 50]), timeline])
        trainer.fit(Quadratic(lr=0.1), datamodule=data_module)
    assert timeline.contributions == Counter({0: 4, 1: 2})  # of the second fit alone
    assert timeline.staleness == Counter({0: 3, 1: 1, 2: 2})
    assert float(trainer.callback_metrics["fed/contributing_clients"]) == 2
    assert path.read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "out" / "timeline-1.png").exists()  # nothing is overwritten
    picture = timeline.plot(until=2.0)
    picture.savefig(tmp_path / "again.png")
    assert (tmp_path / "again.png").read_bytes()[:4] == picture._repr_png_()[:4] == b"\x89PNG"
    figure, (when, late, who) = picture
    assert picture.figure is figure
    assert repr(picture) == "TimelinePlot(3 panels; `.savefig(path)` writes it)"
    assert all(tick == round(tick) for axes in (late, who) for tick in axes.get_yticks())
    assert when.get_xlabel() == "virtual time"
    assert sorted(bar.get_height() for bar in late.patches) == [1, 2, 3]
    assert [bar.get_height() for bar in who.patches] == [4, 2]


@pytest.mark.parametrize("path", ["tl.csv", "timeline"])
def test_a_timeline_is_a_picture(path: str) -> None:
    message = rf"^`path` must end in .png, .pdf or .svg, got '{path}'. It is the picture of the timeline; the results"
    with pytest.raises(ValueError, match=message):
        Timeline(path)
    assert Timeline("timeline.SVG").path == Path("timeline.SVG")


# ---- a buffer that is never full ----

NEVER = (
    r"^{} never aggregates in this fit: `buffer_size` is 10, but only {} \({} x {}\). Give a `buffer_size` of at most "
    r"{}, more `clients_per_round` or more rounds.$"
)


@pytest.mark.parametrize(
    ("callback", "rounds", "words"),
    [
        # a tenth of 8 clients, at least 1
        (FedBuff(), 9, ("FedBuff", "9 results arrive", "9 rounds", 1, 9)),
        (FedBuff(clients_per_round=3), 3, ("FedBuff", "9 results arrive", "3 rounds", 3, 9)),
        (DynamicWeightFedBuff(10), 1, ("DynamicWeightFedBuff", "1 result arrives", "1 round", 1, 1)),
        (
            Federated(0.5, schedule=Asynchronous(VirtualClock(1), buffer_size=10)),
            2,
            ("Federated", "8 results arrive", "2 rounds", 4, 8),
        ),
    ],
)
def test_a_fit_that_never_fills_the_buffer_is_a_warning(
    callback: AggregationCallback, rounds: int, words: tuple[Any, ...]
) -> None:
    with pytest.warns(UserWarning, match=NEVER.format(*words)):
        train_eight(callback, rounds)


@pytest.mark.parametrize(
    ("callback", "rounds"),
    [(FedBuff(), 10), (FedBuff(clients_per_round=5), 2), (FedBuff(flush_rounds=True), 1), (FedAsync(), 1)],
)
def test_a_buffer_that_is_full_in_time_is_no_warning(callback: AggregationCallback, rounds: int) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train_eight(callback, rounds)
    assert not [warning for warning in caught if "never aggregates" in str(warning.message)]


def train_eight(callback: AggregationCallback, rounds: int) -> None:
    data_module = TensorDataModule(quadratic_clients([1.0] * 8, [0.0] * 8), batch_size=None)
    quiet_trainer(max_epochs=rounds, callbacks=[callback]).fit(Quadratic(lr=0.1), datamodule=data_module)


# ---- calibration ----


@pytest.mark.parametrize(("clients", "paper"), [(6, 18), (8, 25), (9, 28)])
def test_exponential_durations_give_nearly_the_papers_staleness(clients: int, paper: int) -> None:
    assert abs(calibrate_staleness(clients, quantile=0.965) - paper) <= 1


def test_equal_durations_have_one_staleness() -> None:
    assert calibrate_staleness(7, [2.0], arrivals=1000) == 6
    assert PAPER_STALENESS == {"MNIST": 18, "CIFAR-10": 19, "Covertype": 18, "Shakespeare": 28, "eICU": 31}


# ---- bad input ----


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAsync(1, speeds=[1, 2, 3]), r"`speeds` must have one number for each of the 10 .* got 3"),
        (lambda: FedAsync(1, concurrency=11), r"`concurrency` is 11, but only 10 clients train"),
        (lambda: FedBuff(11, 1, wait_for_flush=True), r"`buffer_size` is 11, but only 10 clients train at once"),
        (lambda: FedBuff(4, 1, wait_for_flush=True, concurrency=3), r"`buffer_size` is 4, but only 3"),
        (lambda: FedBuff(11, 1, once_per_buffer=True), r"`buffer_size` is 11, but only 10"),
        (lambda: FedAsync(1, clock=VirtualClock(lambda n, rng: -np.ones(n))), r"`speeds` .* got .*-1.0.* for client 0"),
    ],
)
def test_what_cannot_work_is_refused_before_training(make: Callable[[], AggregationCallback], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_ten(make(), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,pace\n0,1\n", r"has no column \['speed'\]"),
        ("client,speed\n0,1\n2,1\n", r"must have a line for each client from 0 to K-1"),
        ("client,speed\nx,1\n", r"line 2: .* is no client's line"),
        ("client,speed\n0,fast\n", r"line 2: .* is no client's line .*'fast'"),
        ("client,speed\n0,1\n1\n", r"line 3: .* is no client's line"),
        ("client,speed\n0,1/0\n", r"line 2: .* is no client's line"),
        ("client,speed,delay\n0,1,soon\n", r"line 2: .* is no client's line .*'soon'"),
        ("client,speed,online_from\n0,1,0\n", r"has no column \['online_until'\]"),
        ("client,speed\n0,0\n", r"`speeds` must be finite numbers greater than 0"),
    ],
)
def test_a_wrong_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        VirtualClock.from_file(path)


def test_a_trace_that_is_not_there_is_named() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"`path` must be a CSV file with the columns client and speed; there is"
    ):
        VirtualClock.from_file("nope.csv")


def test_observers_refuse_the_wrong_kind_of_algorithm() -> None:
    data_module = TensorDataModule(quadratic_clients([1.0] * 2, [0.0, 1.0]), batch_size=None)
    for callback, observer, message in (
        (FedAsync(1), VirtualTime(VirtualClock()), "FedAsync keeps virtual time itself"),
        (FedAvg(1), Timeline(), "Timeline records asynchronous algorithms"),
    ):
        with pytest.raises(ValueError, match=message):
            quiet_trainer(max_epochs=1, callbacks=[callback, observer]).fit(Quadratic(0.1), datamodule=data_module)
    with pytest.raises(RuntimeError, match="Nothing was recorded"):
        Timeline().plot()


def test_the_numbers_of_many_clients_do_not_overlap() -> None:
    timeline = Timeline()
    timeline.arrivals = [ArrivalRecord(client, 0.0, 1.0, 0, "used", False) for client in range(50)]
    picture = timeline.plot()
    FigureCanvasAgg(picture.figure).draw()
    boxes = [label.get_window_extent() for label in picture.axes[0].get_yticklabels()]
    assert len(boxes) == 50
    assert all(upper.y0 >= lower.y1 for upper, lower in pairwise(boxes))
