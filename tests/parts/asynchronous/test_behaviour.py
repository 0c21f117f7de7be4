"""What asynchronous algorithms do beside their closed forms: waiting, drawing, losing, resuming, refusing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.algorithms import SPEEDS, Net, data
from helpers.toys import Quadratic, fit_clients, fit_quadratic, quadratic_clients
from helpers.watching import of_ten, watch
from lightning.pytorch.callbacks import Callback

from fl_lightning import AggregationCallback, DynamicWeightFedBuff, FedAsync, FedAvg, FedBuff, Federated, RADFed
from fl_lightning.diagnostics import Timeline, VirtualTime
from fl_lightning.parts import Aggregation, Asynchronous, ClientResult, Federation, VirtualClock, calibrate_staleness
from fl_lightning.testing.fits import distance, fit

# ---- training ahead ----

MAKERS: dict[str, Callable[..., AggregationCallback]] = {
    "FedAsync": lambda **k: FedAsync(4, rho=lambda t: 0.1 * t, speeds=SPEEDS, seed=2, **k),
    "FedBuff": lambda **k: FedBuff(2, 4, clock=VirtualClock(SPEEDS, jitter=0.5, dropout=0.2), seed=2, **k),
    "waiting": lambda **k: FedBuff(3, 4, wait_for_flush=True, concurrency=4, speeds=SPEEDS, seed=2, **k),
    "DynamicWeight": lambda **k: DynamicWeightFedBuff(3, 4, speeds=SPEEDS, seed=2, **k),
}


@pytest.mark.parametrize("name", MAKERS)
def test_clients_trained_together_give_bitwise_what_they_give_one_at_a_time(name: str) -> None:
    fit(MAKERS[name](lookahead=1), one := Net(), data(), 5)
    fit(MAKERS[name](lookahead=100), many := Net(), data(), 5)
    assert distance(one.state_dict(), many.state_dict()) == 0


def test_clients_with_values_of_their_own_do_not_train_ahead() -> None:
    ends = []
    for lookahead in (1, None):
        callback = FedBuff(2, 4, buffers="local", speeds=SPEEDS, seed=2, lookahead=lookahead)
        fit(callback, Net(), data(), 5)
        kept = callback.algorithm.chain.members[0].own
        ends.append([kept[client] for client in range(6)])
    assert all(torch.equal(one, other) for one, other in zip(*ends, strict=True))


def test_a_client_trains_with_the_rates_of_the_round_in_which_it_received_its_model() -> None:
    # speed 5 takes 20 units of time: it starts in round 0 and is trained rounds later, with that round's rate
    rates = []

    class Rates(Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
            rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    fit(FedAsync(4, speeds=[100, 95, 50, 25, 20, 20], lookahead=1), Net(), data(), 5, Rates())
    cosine = [0.1 * (1 + np.cos(np.pi * t / 7)) / 2 for t in range(5)]
    assert {round(rate, 12) for rate in rates} <= {round(rate, 12) for rate in cosine}
    # in time order: uploads at 1, 1.05, 2, 2 | 2.1, 3, 3.2, 4 | ...: in the second round, client 0 comes again at 3
    # with the model of round 0's third upload, client 3 (speed 25) at 4 with the first of all
    assert rates.count(rates[0]) > sum(-(-n // 4) for n in (8, 14, 6))


# ---- waiting, concurrency, coming and going ----


class EverySecond(Aggregation):
    """Merges every second buffer, and stays after the others."""

    def setup(self, federation: Federation) -> None:
        self.add_state("buffers", 0)

    def merge(self, model: torch.Tensor, results: Sequence[ClientResult]) -> torch.Tensor | None:
        self.buffers += 1
        return model + sum(result.delta for result in results) / len(results) if self.buffers % 2 == 0 else None


def test_clients_that_wait_go_on_when_the_server_stays() -> None:
    aggregation = EverySecond()
    timeline = Timeline()
    callback = FedBuff(2, 2, wait_for_flush=True, speeds=[100, 50], server_lr=0.5, aggregation=aggregation)
    module = Quadratic(1.0, 0.0)
    fit_quadratic(callback, module, quadratic_clients([1.0, 1.0], [2.0, 4.0]), 5, timeline)
    # one step takes a client to its optimum, 2 or 4; every second buffer moves the server half of the way to 3
    assert float(module.w) == 2.25
    assert (aggregation.buffers, callback.algorithm.server.moves) == (5, 2)
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
    seen = of_ten(FedAsync(100, concurrency=3, speeds=100), 3).arrivals
    # the three of a moment are in the order of their numbers: at best 0, at worst 2 of this moment and 2 of the last
    assert max(record.staleness for record in seen) == 4
    assert sum(record.staleness for record in seen) / len(seen) == pytest.approx(2.0, abs=0.02)
    starts = Counter(record.sent for record in seen)
    assert max(starts.values()) == 3
    clients = Counter(record.client for record in seen)
    # drawn uniformly: 30 each, sd 5.2
    assert all(abs(clients[client] - 30) < 26 for client in range(10))


def test_clients_come_and_go() -> None:
    # one unit a task; client 1 is there in (1.5, 3) and (10, 20): it finishes at 2.5, what it begins then is lost at 3
    clock = VirtualClock(100, online={1: [(1.5, 3), (10, 20)]})
    seen = watch(FedAsync(13, clock=clock), 1, [0.0, 0.0]).arrivals
    assert [(r.sent, r.arrived, r.outcome) for r in seen if r.client == 1] == [
        (1.5, 2.5, "used"),
        (2.5, 3, "lost"),
        (10, 11, "used"),
    ]


def test_a_free_place_waits_until_somebody_comes() -> None:
    clock = VirtualClock(100, online={0: [(0, 1)], 1: [(5, 9)]})
    seen = watch(FedAsync(3, clock=clock, concurrency=2), 1, [0.0, 0.0]).arrivals
    assert [(record.client, record.sent, record.arrived) for record in seen] == [(0, 0, 1), (1, 5, 6), (1, 6, 7)]


def test_lost_results_cost_time_and_no_more() -> None:
    seen = watch(FedAsync(150, clock=VirtualClock(100, dropout=0.25)), 1, [0.0])
    lost = sum((record.outcome, record.staleness) == ("lost", -1) for record in seen.arrivals)
    # 150 results that arrive, and 150 / 3 that do not on average, sd 8
    assert 10 < lost < 90
    assert seen.arrivals[-1].arrived == 150 + lost


def test_work_is_counted_in_samples_or_steps() -> None:
    targets, sizes = [0.0, 0.0], [1, 3]
    for work, times in (("samples", {0: 1.0, 1: 3.0}), ("steps", {0: 1.0, 1: 1.0})):
        callback = FedAsync(2, clock=VirtualClock(2, work=work), local_epochs=2)  # type: ignore[arg-type]
        first = {record.client: record.arrived for record in reversed(watch(callback, 3, targets, sizes).arrivals)}
        assert first == times


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])  # the second is what spreadsheets write
def test_a_trace_file_gives_speeds_delays_and_windows(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "trace.csv"
    text = "client,speed,delay,online_from,online_until\n1,50,0.5,,\n0,100,,0,1\n0,100,,4,inf\n"
    path.write_text(text, encoding=encoding)
    seen = watch(FedAsync(4, clock=VirtualClock.from_file(path)), 1, [0.0, 0.0]).arrivals
    assert [(r.client, r.arrived) for r in seen] == [(0, 1), (1, 2.5), (0, 5), (1, 5)]


def test_time_and_models_sent_are_counted() -> None:
    callback = FedAsync(4, speeds=[100, 50])
    values = watch(callback, 2, [0.0, 0.0]).values[-1]
    # uploads at 1 2 2 3 | 4 4 5 6: staleness in the second round 0, 2, 1 and 0; see the ties of the clock
    log = {"clients": 4, "dropped": 0, "left_out": 0, "aggregations": 8, "aggregated": 1.0, "models_sent": 9 + 8}
    log |= {"staleness": 0.75, "staleness_max": 2, "rejected": 0, "buffer": 0, "virtual_time": 6.0, "utilization": 1.0}
    assert values == {f"fed/{name}": value for name, value in log.items()}
    # 2 at first, and a reply to each of the 8 results but for the last, which is sent when the next round begins
    assert callback.algorithm.traffic.models_down == 2 + 7
    assert callback.algorithm.traffic.models_up == 8


def test_flush_at_each_rounds_end() -> None:
    seen = watch(FedBuff(4, 1, flush_rounds=True, staleness="constant"), 2, [3.0])
    # each round's single update is used at its end, divided by one
    assert seen.weights == [3.0, 3.0]


def test_once_per_buffer_rejects_a_second_result() -> None:
    seen = watch(FedBuff(3, 6, once_per_buffer=True, speeds=[100, 80, 40]), 1, [0.0] * 3).arrivals
    assert [record.client for record in seen] == [0, 1, 0, 1, 2, 0]
    assert [record.outcome for record in seen] == ["used", "used", "rejected", "rejected", "used", "used"]
    # Client 0 arrives four times, and counts once; it gets three models after the first one.
    values = watch(FedBuff(2, 4, once_per_buffer=True, speeds=[100, 20]), 1, [0.0, 0.0]).values[-1]
    log = {"clients": 1, "dropped": 0, "left_out": 0, "aggregations": 0, "aggregated": 0.0, "models_sent": 5 + 4}
    log |= {"staleness": 0.0, "staleness_max": 0, "rejected": 3, "buffer": 1, "virtual_time": 4.0, "utilization": 1.0}
    assert values == {f"fed/{name}": value for name, value in log.items()}


def test_invalid_results_are_left_out() -> None:
    with pytest.warns(UserWarning, match=r"clients \[1, 1\]"):
        seen = watch(FedBuff(2, 6, wait_for_flush=True, speeds=[100, 50, 40]), 1, [0.0, float("nan"), 1.0])
    assert {r.client: r.outcome for r in seen.arrivals}[1] == "invalid"
    assert np.isfinite(seen.weights[0])
    with pytest.raises(FloatingPointError, match="Client 1"):
        watch(FedBuff(2, 6, speeds=[100, 50, 40], invalid_updates="raise"), 1, [0.0, float("nan"), 1.0])


# ---- synchronous rounds on the same clock ----


@pytest.mark.parametrize("callback", [FedAvg(1.0), RADFed(3, 1.0)])
def test_a_synchronous_round_takes_as_long_as_its_slowest_client(callback: AggregationCallback) -> None:
    time = VirtualTime(VirtualClock([100, 50, 20]))
    trainer = fit_clients(callback, Quadratic(lr=0.1), quadratic_clients([1.0] * 3, [0.0, 1.0, 2.0]), 3, time)
    assert time.now == 15.0
    assert float(trainer.callback_metrics["fed/utilization"]) == pytest.approx((1 + 2 + 5) / 15)


def test_a_round_takes_no_longer_than_its_own_clients() -> None:
    time, module = VirtualTime(VirtualClock([100, 50, 20])), Quadratic(lr=0.1)
    fit_quadratic(FedAvg(1), module, quadratic_clients([1.0] * 3, [1.0, 2.0, 5.0]), 3, time)
    assert time.now == sum(module.seen)  # each client's target is its time


# ---- a buffer that is never full ----


@pytest.mark.parametrize(
    ("callback", "rounds", "found"),
    [
        (FedBuff(), 9, r"9 results arrive \(9 rounds x 1\)"),  # a tenth of 8 clients, at least 1
        (Federated(0.5, schedule=Asynchronous(VirtualClock(1), buffer_size=10)), 2, r"8 results .*2 rounds x 4"),
    ],
)
def test_a_fit_that_never_fills_the_buffer_is_a_warning(callback: AggregationCallback, rounds: int, found: str) -> None:
    with pytest.warns(UserWarning, match=rf"`buffer_size` is 10, and {found}"):
        fit_quadratic(callback, Quadratic(lr=0.1), quadratic_clients([1.0] * 8, [0.0] * 8), rounds)


# ---- calibration ----


@pytest.mark.parametrize(("clients", "paper"), [(6, 18), (8, 25), (9, 28)])
def test_exponential_durations_give_nearly_the_papers_staleness(clients: int, paper: int) -> None:
    assert abs(calibrate_staleness(clients, quantile=0.965) - paper) <= 1
    # Where all take as long, each result comes after those of all others; a task that takes longer waits for more.
    alike: list[Any] = [[2.0], lambda rng: 2.0]
    assert [calibrate_staleness(clients, each, arrivals=100) for each in alike] == [clients - 1] * 2
    assert calibrate_staleness(clients, [1.0, 9.0], arrivals=1000) > clients - 1


# ---- bad input ----


def test_broadcasts_cost_traffic_alone() -> None:
    results, sent = [], []
    speeds = [100, 95, 90, 85, 80, 25, 20, 15, 10, 5]
    for threshold in (None, 1e-6):
        callback = FedBuff(2, 6, speeds=speeds, broadcast_threshold=threshold)
        results.append(of_ten(callback, 2).weights)
        sent.append(callback.algorithm.traffic.models_down)
    assert results[0] == results[1]
    # six moves, each of them large, to ten clients
    assert sent[1] - sent[0] == 60
    assert callback.algorithm.run.values()["fed/broadcasts"] == 6
    # from 1 to 2 is no more than the whole model
    callback = FedBuff(2, 2, broadcast_threshold=1.0)
    fit_quadratic(callback, Quadratic(1.0, 1.0), quadratic_clients([1.0, 1.0], [2.0, 2.0]), 1)
    assert callback.algorithm.run.values()["fed/broadcasts"] == 0


def test_the_timeline_counts_and_draws(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.png")
    clients = quadratic_clients([1.0] * 2, [0.0, 1.0])
    for _ in range(2):
        trainer = fit_clients(FedAsync(2, speeds=[100, 50]), Quadratic(lr=0.1), clients, 3, timeline)
    assert timeline.contributions == Counter({0: 4, 1: 2})  # of the second fit alone
    assert timeline.staleness == Counter({0: 3, 1: 1, 2: 2})
    assert float(trainer.callback_metrics["fed/contributing_clients"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timeline-1.png", "timeline.png"]
