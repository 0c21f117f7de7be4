"""Power-of-choice, AFL, Oort, TiFL: whom they draw, and what that costs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from helpers.begun import federation_of
from helpers.toys import Quadratic, clients_that_reach, fit_clients, fit_quadratic, quadratic_clients

from fl_lightning import FedAvg, Federated, parts


def begun(sampler: Any, sizes: list[int]) -> Any:
    """Return a sampler whose fit has begun."""
    sampler.begin_fit(federation_of(sizes))
    return sampler


def draw(sampler: parts.ClientSampler, rng: np.random.Generator) -> list[int]:
    return sampler.draw(sampler.federation.num_clients, rng, np.arange(sampler.federation.num_clients)).tolist()


# ---- power-of-choice ----


def test_power_of_choice_of_m_candidates_is_uniform_sampling_bit_for_bit() -> None:
    optima = torch.randn(8, 1, generator=torch.Generator().manual_seed(0)).tolist()
    clients = clients_that_reach(optima, [1, 2, 3, 4, 5, 6, 7, 8])
    uniform, choice = parts.UniformSampler(3), parts.PowerOfChoice(3, 3, candidates="uniform")
    failing = parts.Participation(available=0.8, dropout=0.3)
    ends = [
        fit_quadratic(FedAvg(sampler=s, participation=failing, seed=1), Quadratic(0.1, [0.0]), clients, 4)
        for s in (uniform, choice)
    ]
    assert torch.equal(*ends)


FOUR = quadratic_clients([1.0] * 4, [0.0, 1.0, 5.0, 3.0])


def test_clients_with_the_largest_losses_train() -> None:
    # one step takes a client to its optimum. At 0 those at 5 and 3 have the largest losses; at 4 those at 0 and 1
    assert float(fit_quadratic(FedAvg(sampler=parts.PowerOfChoice(2, 4)), Quadratic(1.0), FOUR, 1)) == 4.0
    trainer = fit_clients(callback := FedAvg(sampler=parts.PowerOfChoice(2, 4)), module := Quadratic(1.0), FOUR, 2)
    assert float(module.w) == 0.5
    # in each round four clients receive the model to be scored; two of them train it and send theirs
    traffic = callback.algorithm.traffic
    assert (traffic.models_down, traffic.models_up) == (2 * 4, 2 * 2)
    assert (traffic.bits_down, traffic.bits_up) == (64 * 2 * 4, 64 * 2 * (2 + 4))  # a loss is a number
    log = {"clients": 2, "dropped": 0, "left_out": 0, "scored": 4}
    log |= {"aggregations": 2, "aggregated": 1, "models_sent": 12}
    assert trainer.callback_metrics == {f"fed/{name}": value for name, value in log.items()}


def test_candidates_with_the_largest_losses_stay_in_the_order_of_the_draw() -> None:
    sampler = begun(parts.PowerOfChoice(3, 4, candidates="uniform"), [1] * 4)
    candidates = list(sampler.clients_to_score(np.random.default_rng(0), np.arange(4)))
    sampler.take_scores({client: float(place) for place, client in enumerate(candidates)})
    assert draw(sampler, np.random.default_rng(0)) == candidates[1:]


def test_candidates_come_in_proportion_to_their_sizes() -> None:
    sampler, rng = begun(parts.PowerOfChoice(1, 1), [1, 1, 8]), np.random.default_rng(0)
    drawn = Counter(int(sampler.clients_to_score(rng, np.arange(3)) or draw(sampler, rng)[0]) for _ in range(2000))
    assert drawn[2] / 2000 == pytest.approx(0.8, abs=5 * 0.009)


def test_losses_are_those_of_the_servers_model() -> None:
    # in the second round of a cycle the server is still at 0, and the module shows the mean of the circulating models
    module = Quadratic(1.0)
    callback = Federated(sampler=parts.PowerOfChoice(2, 4), schedule=parts.Redistribution(2))
    fit_quadratic(callback, module, FOUR, rounds=2)
    assert callback.algorithm.traffic.models_down == 2 * 4 + 2  # in the second round two models circulate besides
    trained = [c for c in module.seen if c in (5.0, 3.0)]
    assert Counter(trained) == {5.0: 2 + 2, 3.0: 2 + 2}  # each is scored twice, too
    assert Counter(module.seen)[0.0] == 2


@pytest.mark.parametrize(
    ("sampler", "scored"),
    [
        (parts.UniformSampler(3), 0),
        (parts.ImportanceSampler(3), 4),
        (parts.PowerOfChoice(3, 3), 0),
        (parts.ActiveSampler(3, alpha1=0.0, alpha3=0.0), 4),
        (parts.ActiveSampler(3, alpha3=0.7), 4),
        (parts.Oort(3, parts.VirtualClock(), exploration=0.0), 4),
        (parts.Oort(3, parts.VirtualClock(), exploration=1.0), 1),
        (parts.TierSampler(3, parts.VirtualClock(), num_tiers=1), 4),
    ],
)
def test_nobody_is_drawn_twice(sampler: Any, scored: int) -> None:
    rng = np.random.default_rng(0)
    begun(sampler, [9, 1, 1, 1])
    if scored:
        sampler.take_scores(dict.fromkeys(range(scored), 1.0))
    for there in (np.arange(4), np.array([1, 3])) * 25:
        sampler.clients_to_score(rng, there)
        assert len(set(sampler.draw(4, rng, there)) & {*there}) == min(3, len(there))


# ---- AFL ----


def test_probabilities_of_afl_by_hand() -> None:
    sampler = begun(parts.ActiveSampler(2, alpha1=0.25, alpha2=0.5, alpha3=0.5), [1] * 4)
    sampler.take_scores({0: 1.0, 1: 4.0, 2: 2.0, 3: float("nan")})  # 0 for the last one, which is dropped
    weights = np.exp([0.5, 2.0, 1.0, -np.inf])
    np.testing.assert_allclose(sampler.probabilities(np.arange(4)), weights / weights.sum())
    rng, count = np.random.default_rng(0), 4000
    draws = [draw(sampler, rng) for _ in range(count)]
    first = Counter(pair[0] for pair in draws)
    for client in range(4):
        assert first[client] / count == pytest.approx(weights[client] / weights.sum(), abs=5 * 0.008)
    # the second is any of the other three
    assert Counter(pair[1] for pair in draws)[3] / count == pytest.approx(1 / 3, abs=5 * 0.0075)


def test_valuations_are_those_at_the_received_model() -> None:
    # sqrt(n) (w - c)^2 / 2: at 0, and after a round, which ends at the mean 2, there
    clients = quadratic_clients([1.0, 1.0], [1.0, 3.0], sizes=[4, 4])
    for rounds, expected in ((1, [1.0, 9.0]), (2, [1.0, 1.0])):
        sampler = parts.ActiveSampler(1.0)
        callback = FedAvg(sampler=sampler)
        fit_quadratic(callback, Quadratic(1.0), clients, rounds)
        assert sampler.valuations.tolist() == expected
        # before the first round all are asked; then each sends a number with its model
        assert callback.algorithm.traffic.bits_up == 64 * (2 + rounds * 2 * 2)


# ---- Oort ----


def test_the_share_of_exploration_by_count() -> None:
    clients = quadratic_clients([1.0] * 30, list(range(30)))
    seen = []
    for rounds in (1, 2, 3, 4):
        sampler = parts.Oort(10, parts.VirtualClock(), exploration=lambda t: [0.0, 0.6, 0.3, 0.9][t])
        fit_quadratic(FedAvg(sampler=sampler, seed=rounds), Quadratic(0.1), clients, rounds)
        seen.append(np.count_nonzero(~np.isnan(sampler.utilities)))
    assert seen == [10, 16, 19, 28]
    # by default 0.9, 0.98 times as much each round, at least 0.2
    sampler = begun(parts.Oort(10, parts.VirtualClock()), [1] * 30)
    sampler.take_scores(dict.fromkeys(range(10), 1.0))
    for sampler.round, explored in ((1, 9), (20, 6), (500, 2)):
        assert sum(client >= 10 for client in draw(sampler, np.random.default_rng(0))) == explored


def test_utilities_of_oort_by_hand() -> None:
    # batches of losses 2 and 8 of one sample each, at the received model: 2 sqrt((4 + 64) / 2)
    x = torch.tensor([2.0, 4.0], dtype=torch.float64)
    sampler = parts.Oort(1, parts.VirtualClock([1, 4], work=4))
    callback = FedAvg(sampler=sampler)
    fit_clients(callback, Quadratic(0.1), [(torch.ones_like(x), x)] * 2, batch_size=1)
    [client] = np.flatnonzero(~np.isnan(sampler.utilities))
    assert sampler.utilities[client] == pytest.approx(2 * 34**0.5)
    assert callback.algorithm.traffic.bits_up == 64 * 2  # the model and the utility


def test_slow_clients_are_worth_less_until_the_pace_slackens() -> None:
    # tasks of 4 units take 4 and 1; the first of three rounds counts as 1
    sampler = begun(parts.Oort(1, parts.VirtualClock([1, 4, 4], work=4), pace=2.0, window=2), [1] * 3)
    for round_index, utility in enumerate((5.0, 4.0, 5.0, 4.0, 3.0, 3.0)):
        assert sampler.longest == 2.0  # also with 5 + 4 after 5 + 4
        sampler.begin_round(round_index)
        sampler.take_scores({0: utility})
    assert sampler.longest == 4.0  # 3 + 3 is less than 5 + 4
    sampler.take_scores({1: 3.0})
    bonus = (0.1 * np.log(6) / 6) ** 0.5
    assert sampler.worth(np.array([0, 1])).tolist() == [pytest.approx(3 + bonus)] * 2
    sampler.longest = 2.0
    assert sampler.worth(np.array([0, 1])).tolist() == pytest.approx([(3 + bonus) / 4, 3 + bonus])


def test_clients_are_explored_by_speed_and_exploited_by_worth() -> None:
    rng = np.random.default_rng(0)
    sampler = begun(parts.Oort(1, parts.VirtualClock([1, 3], work=1)), [1, 1])
    assert Counter(draw(sampler, rng)[0] for _ in range(2000))[1] / 2000 == pytest.approx(0.75, abs=5 * 0.0097)
    sampler = begun(parts.Oort(1, parts.VirtualClock(), exploration=0.0), [1] * 3)
    sampler.take_scores({0: 10.0, 1: 9.6, 2: 9.0})  # the last one is below 95 % of the first
    drawn = Counter(draw(sampler, rng)[0] for _ in range(2000))
    assert drawn[2] == 0
    assert drawn[0] / 2000 == pytest.approx(10 / 19.6, abs=5 * 0.0112)
    sampler.cutoff = 1.0
    assert draw(sampler, rng) == [0]


# ---- TiFL ----


def test_tiers_credits_and_chances() -> None:
    # two fast clients, two of middle speed, two slow ones
    clock = parts.VirtualClock([1, 9, 5, 1, 9, 5])
    sampler = begun(parts.TierSampler(2, clock, num_tiers=3, interval=1, credits=[5, 2, 1]), [1, 1, 1, 3, 1, 1])
    assert [sorted(tier) for tier in sampler.tiers] == [[1, 4], [2, 5], [0, 3]]
    alike = begun(parts.TierSampler(2, parts.VirtualClock(), num_tiers=2), [1] * 400)
    assert [tier.tolist() for tier in alike.tiers] == [list(range(200)), list(range(200, 400))]
    rng = np.random.default_rng(0)
    tiers = [tuple(sorted(draw(sampler, rng))) for _ in range(8)]
    assert Counter(tiers) == {(1, 4): 5, (2, 5): 2, (0, 3): 1}
    assert draw(sampler, rng)  # all are used up, and are drawn alike, as far as their clients are there
    for each, clients, there in ((sampler, 6, [0, 3]), (alike, 400, [7])):
        assert [sorted(each.draw(clients, rng, np.array(there)).tolist()) for _ in range(9)] == [there] * 9
    sampler.begin_fit(sampler.federation)
    sampler.take_scores({0: 8.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 2.0, 5: 1.0})
    assert sampler.losses.tolist() == [2.0, 2.0, 5.0]
    assert sampler.weights.tolist() == [1.0, 1.0, 1.0]  # from the second evaluation on
    sampler.take_scores(dict.fromkeys((1, 4), 3.0) | dict.fromkeys((2, 5), 1.0) | dict.fromkeys((0, 3), 5.0))
    assert sampler.weights.tolist() == [2.0, 1.0, 3.0]
    sampler.take_scores(dict.fromkeys(range(6), 1.0))
    assert sampler.weights.tolist() == [2.0, 1.0, 3.0]  # the last tier's loss has fallen
    sampler.left[1] = 0.0
    sampler.take_scores(dict.fromkeys(range(6), 1.0))
    assert sampler.weights.tolist() == [1.0, 0.0, 2.0]  # it has not, and tiers without credits have no rank


def test_the_cost_of_evaluating_tiers() -> None:
    clients = quadratic_clients([1.0] * 6, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    callback = FedAvg(sampler=parts.TierSampler(2, parts.VirtualClock([1, 1, 2, 2, 3, 3]), num_tiers=3, interval=2))
    fit_quadratic(callback, Quadratic(0.1), clients, 3)
    traffic = callback.algorithm.traffic
    assert (traffic.models_down, traffic.models_up) == (2 * 6 + 2, 3 * 2)  # evaluated in rounds 0 and 2
    assert traffic.bits_up == 64 * (2 * 6 + 3 * 2)
