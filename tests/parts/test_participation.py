"""Who takes part: readings of partial participation (O1), sampling, drop-out, stragglers, unequal rounds (O11c)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from helpers.begun import federation_of
from helpers.rounds import begin_round
from helpers.toys import Quadratic, clients_that_reach, fit_clients, fit_quadratic, quadratic_clients
from helpers.watching import Results

from fl_lightning import FedAvg, RADFed, parts


def reached(*rounds: list[int]) -> parts.Participation:
    """The clients that can be reached, round by round."""
    return parts.Participation(available=lambda round_index: rounds[round_index])


O1 = clients_that_reach([[1.0, 2.0], [7.0, 7.0], [4.0, 8.0]], [1, 2, 3])


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"partial": "selected"}, [3.25, 6.5]),
        ({"partial": "current"}, [5.5, 11.0]),
        ({"partial": "selected", "weighting": "uniform"}, [2.5, 5.0]),
        ({"partial": "current", "weighting": "uniform"}, [5.0, 10.0]),  # (1, 2), (10, 20), (4, 8)
    ],
    ids=["selected", "current", "uniform", "current-uniform"],
)
def test_o1_readings_of_partial_participation(settings: dict[str, Any], expected: list[float]) -> None:
    callback = FedAvg(2, participation=reached([0, 2]), **settings)
    weights = fit_quadratic(callback, Quadratic(1.0, [10.0, 20.0]), O1, rounds=1)
    assert weights.tolist() == pytest.approx(expected, abs=1e-12)


def test_o1_stale_counts_last_local_models() -> None:
    # round 0: client 2 reaches (7, 7), the others count with (10, 20); round 1: the oracle's
    rounds = [([1.0 * 10 + 2 * 7 + 3 * 10, 20.0 + 2 * 7 + 3 * 20], 1), ([4.5 * 6, 40.0], 2)]
    for total, count in rounds:
        callback = FedAvg(2, partial="stale", participation=reached([1], [0, 2]))
        weights = fit_quadratic(callback, Quadratic(1.0, [10.0, 20.0]), O1, rounds=count)
        assert weights.tolist() == pytest.approx([value / 6 for value in total], abs=1e-12)


def test_weights_that_a_user_assigns_are_shown_until_a_client_has_trained() -> None:
    callback, module = FedAvg(1.0, evaluate="active", participation=reached([], [], [0])), Quadratic(1.0, [0.0, 0.0])
    trainer = fit_clients(callback, module, O1, 1)
    with torch.no_grad():
        module.w.fill_(5.0)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(module, datamodule=trainer.datamodule)
    assert module.w.tolist() == [5.0, 5.0]
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, datamodule=trainer.datamodule)
    assert module.w.tolist() == [1.0, 2.0]


def test_a_round_in_which_all_clients_drop_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    callback = FedAvg(1.0, participation=parts.Participation(dropout=1 - 1e-12))
    with caplog.at_level("INFO"):
        fit_quadratic(callback, Quadratic(1.0, [0.0, 0.0]), O1, 1)
    assert "Round 1 is empty" in caplog.text


# ---- samplers ----


def test_bernoulli_sampling_draws_each_client_by_itself_and_now_and_then_nobody() -> None:
    rng, sampler = np.random.default_rng(0), parts.BernoulliSampler(0.2)
    draws = [sampler.draw(5, rng, np.arange(5)) for _ in range(4000)]
    # nobody with chance 0.8^5 = 0.32768, two given ones with 0.04; five standard deviations are 149 and 62
    assert abs(sum(len(drawn) == 0 for drawn in draws) - 4000 * 0.32768) < 149
    assert abs(sum({0, 3} <= set(drawn.tolist()) for drawn in draws) - 4000 * 0.04) < 62
    counts = Counter(int(client) for drawn in draws for client in drawn)
    assert all(abs(counts[client] - 4000 * 0.2) < 127 for client in range(5))
    assert any(drawn.tolist() != sorted(drawn.tolist()) for drawn in draws)


# ---- clients that fail ----


def test_a_client_that_drops_out_costs_its_download_only() -> None:
    callback = FedAvg(4, participation=parts.Participation(dropout=0.5), seed=1)
    module = Quadratic(0.1)
    fit_quadratic(callback, module, quadratic_clients([1.0] * 8, [1.0] * 8), rounds=10)
    traffic = callback.algorithm.traffic
    assert traffic.models_down == 40
    assert traffic.models_up == len(module.seen)
    assert 5 < len(module.seen) < 35


@pytest.mark.parametrize("make", [FedAvg, lambda *a, **k: RADFed(2, *a, unequal="park", **k)], ids=["fedavg", "radfed"])
def test_a_round_in_which_nobody_reports_leaves_the_model(make: Any) -> None:
    clients = quadratic_clients([1.0, 1.0], [2.0, 2.0])
    module = Quadratic(1.0, start=5.0)
    callback = make(1.0, participation=reached([], [], [0, 1], [0, 1]))
    trainer = fit_clients(callback, module, clients, 2)
    assert float(module.w.detach()) == 5.0
    assert callback.algorithm.server.moves == 0
    assert trainer.callback_metrics["fed/clients"] == 0
    assert float(fit_quadratic(callback, module, clients, 4)) == 2.0


def test_stragglers_do_a_part_of_the_epochs() -> None:
    results = Results()
    callback = FedAvg(1.0, participation=parts.Participation(stragglers=0.5), local_epochs=4, seed=1)
    fit_quadratic(callback, Quadratic(0.1), quadratic_clients([1.0] * 10, [1.0] * 10), 8, results)
    rounds = [sorted(each.num_steps for each in results.seen if each.task.round == number) for number in range(8)]
    assert [counts[5:] for counts in rounds] == [[4] * 5] * 8
    assert {count for counts in rounds for count in counts[:5]} == {1, 2, 3}


def test_stragglers_whose_work_is_dropped() -> None:
    module = Quadratic(0.1)
    callback = FedAvg(1.0, participation=parts.Participation(stragglers=0.5, drop_stragglers=True), seed=1)
    fit_quadratic(callback, module, quadratic_clients([1.0] * 10, [float(k) for k in range(10)]), rounds=3)
    assert len(module.seen) == 15
    assert callback.algorithm.traffic.models_down == 30


# ---- invalid updates ----


# client 1's sample has an infinite curvature
INVALID = quadratic_clients(a=[1.0, float("inf"), 1.0], c=[2.0, 1.0, 4.0])


def test_a_client_with_invalid_values_is_left_out_and_counted() -> None:
    callback = FedAvg(1.0, weighting="uniform")
    with pytest.warns(UserWarning, match=r"clients \[1\]"):
        weights = fit_quadratic(callback, Quadratic(1.0), INVALID, rounds=2)
    assert float(weights) == 3.0
    assert callback.algorithm.report.left_out == [1]
    assert sorted(callback.algorithm.report.reported) == [0, 2]
    log = {"clients": 2, "dropped": 0, "left_out": 1, "aggregations": 2, "aggregated": 1, "models_sent": 2 * (3 + 3)}
    assert callback.algorithm.run.values() == {f"fed/{name}": value for name, value in log.items()}


def test_a_circulating_model_that_became_invalid_is_as_it_was_before() -> None:
    # S = 1 with all clients: the model that visited client 1 counts with the server's 0
    with pytest.warns(UserWarning, match="left out"):
        weights = fit_quadratic(RADFed(1, 1.0), Quadratic(1.0), INVALID, rounds=1)
    assert float(weights) == pytest.approx((2.0 + 0.0 + 4.0) / 3, abs=1e-15)


def test_invalid_values_can_end_the_fit() -> None:
    module = Quadratic(1.0, start=0.5)
    with pytest.raises(FloatingPointError, match=r"Client 1 \(1 samples\)"):
        fit_quadratic(FedAvg(1.0, invalid_updates="raise"), module, INVALID, rounds=1)
    assert float(module.w.detach()) == 0.5


# ---- circulating models with unequal numbers of clients ----


def picks(schedule: parts.Redistribution, active: list[int]) -> list[list[int]]:
    """Drive a schedule by hand, with clients that add 1; return the models that train in each round."""
    participation = reached(*(list(range(count)) for count in active))
    algorithm, chosen = parts.Algorithm(parts.UniformSampler(4), schedule, participation=participation), []
    algorithm.run = parts.Run.begin(algorithm, federation_of([1] * 8))

    def add_one(tasks: Sequence[parts.Task]) -> list[parts.ClientResult]:
        starts = [algorithm.received(task) for task in tasks]
        return [parts.ClientResult(task, start, start + 1, 1, [0.5]) for task, start in zip(tasks, starts, strict=True)]

    for round_index in range(len(active)):
        begun = begin_round(algorithm, round_index)
        chosen.append([task.slot for task in algorithm.tasks])
        begun.play(add_one)
        algorithm.run.end_round(begun.published)
    return chosen


def test_o11c_the_least_trained_models_train() -> None:
    schedule = parts.Redistribution(10, unequal="count")
    assert picks(schedule, [4, 2, 3, 3]) == [[0, 1, 2, 3], [0, 1], [0, 2, 3], [1, 2, 3]]
    assert schedule.trainings == {0: 3, 1: 3, 2: 3, 3: 3}
    assert {slot: float(model) for slot, model in schedule.models.items()} == {0: 3.0, 1: 3.0, 2: 3.0, 3: 3.0}
    # One step on a client of one sample, with a rate of a half, in each training.
    assert {(each.num_steps, each.num_samples, *each.summed_lr) for each in schedule.results.values()} == {(3, 3, 1.5)}


def test_an_extended_cycle_lasts_until_all_models_are_done() -> None:
    schedule = parts.Redistribution(2, unequal="count", extend_cycle=True)
    # 3 + 3 + 2 trainings make 2 for each of 4 models; then a new cycle
    assert picks(schedule, [3, 3, 4, 4]) == [[0, 1, 2], [0, 1, 3], [2, 3], [0, 1, 2, 3]]
    assert schedule.position == 1


def test_reduced_models_leave_until_the_cycle_ends() -> None:
    chosen = picks(parts.Redistribution(3, unequal="reduce"), [4, 2, 4, 4])
    assert [len(slots) for slots in chosen] == [4, 2, 2, 4]
    assert chosen[1] == chosen[2]


class Noting(parts.WeightedMean):
    """Notes the rounds of what it merges."""

    def weighted(self, result: parts.ClientResult) -> Any:
        self.rounds = {*getattr(self, "rounds", ()), result.task.round}
        return super().weighted(result)


@pytest.mark.parametrize(
    ("unequal", "expected"),
    # two models; both train, then one of them on the one client left; r = 0.5, c = 1: 0.5, then 0.75 and 0.5
    [("reduce", 0.75), ("park", 0.625), ("count", 0.625)],
)
def test_unequal_inner_rounds_through_a_fit(unequal: Any, expected: float) -> None:
    clients = quadratic_clients(a=[0.5, 0.5], c=[1.0, 1.0])
    callback = RADFed(2, 2, unequal=unequal, participation=reached([0, 1], [1]), aggregation=Noting("uniform"))
    assert float(fit_quadratic(callback, Quadratic(1.0), clients, rounds=2)) == pytest.approx(expected, abs=1e-15)
    assert callback.aggregation.rounds == {1}  # of the merge, not of a model's last training


def test_more_active_clients_than_models_are_subsampled() -> None:
    clients = quadratic_clients(a=[1.0] * 6, c=[float(k) for k in range(6)])
    module = Quadratic(1.0)
    fit_quadratic(RADFed(2, 2, participation=reached([0, 2, 4], [1, 3, 5])), module, clients, rounds=2)
    assert len(module.seen) == 4
    assert set(module.seen[:2]) <= {0.0, 2.0, 4.0}
    assert set(module.seen[2:]) <= {1.0, 3.0, 5.0}


def test_parked_models_come_back() -> None:
    schedule = parts.Redistribution(5, unequal="park")
    chosen = picks(schedule, [4, 2, 4])
    assert [len(slots) for slots in chosen] == [4, 2, 4]
    assert sorted(float(model) for model in schedule.models.values()) == [2.0, 2.0, 3.0, 3.0]
