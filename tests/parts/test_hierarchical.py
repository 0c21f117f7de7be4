"""Groups of clients under regional models, by hand; ``contracts/test_setups.py`` has them in every set-up."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.toys import Quadratic, clients_that_reach, fit_clients, fit_quadratic, quadratic_clients
from helpers.watching import Watch

import fl_lightning as fl
from fl_lightning import parts
from fl_lightning.diagnostics import Communication

LR = 0.25
OPTIMA = [4.0, -8.0, 2.0, 12.0]
SIZES = [1, 3, 2, 2]
GROUPS = [[0, 3], [1, 2]]


def stepped(w: float, client: int) -> float:
    """One full-batch step of w to a client's optimum."""
    return w - LR * (w - OPTIMA[client])


def mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def test_regional_models_are_means_of_their_clients_and_the_server_s_the_mean_of_regions() -> None:
    server, shown = 1.0, []
    for _ in range(2):
        regions = [server, server]
        for _ in range(2):
            for group, members in enumerate(GROUPS):
                ends = [stepped(regions[group], client) for client in members]
                regions[group] = mean(ends, [SIZES[client] for client in members])
            shown.append(mean(regions, [SIZES[0] + SIZES[3], SIZES[1] + SIZES[2]]))
        server = shown[-1]
    clients = quadratic_clients([1.0] * 4, OPTIMA, SIZES)
    seen, traffic = Watch(), Communication()
    fit_clients(fl.HierFAVG(GROUPS, 2), Quadratic(LR, start=1.0), clients, 4, seen, traffic)
    assert seen.weights == pytest.approx(shown, abs=1e-14)
    assert [values["fed/aggregated"] for values in seen.values] == [0, 1, 0, 1]
    # a model of one float64: to and from four clients in four rounds, and to and from two edges in two cycles
    assert traffic.values == {
        **{"fed/models_down": 16, "fed/models_up": 16, "fed/bytes_down": 128, "fed/bytes_up": 128},
        **{"fed/edge_models_down": 4, "fed/edge_models_up": 4, "fed/edge_bytes_down": 32, "fed/edge_bytes_up": 32},
    }


def test_the_server_s_optimizer_moves_it_from_the_mean_of_the_last_cycle() -> None:
    clients = clients_that_reach([[4.0], [0.0]], [1, 1])
    callback = fl.HierFAVG(2, 2, server=parts.Mixing(0.5))
    assert float(fit_quadratic(callback, Quadratic(1.0, start=[6.0]), clients, rounds=2)) == 6 + 0.5 * (2 - 6)


def test_a_group_that_nobody_trained_does_not_count_and_its_edge_gets_no_model() -> None:
    clients = clients_that_reach([[4.0], [0.0], [7.0]], [1, 1, 5])
    participation = parts.Participation(available=lambda number: [[0], [2], [0, 1], [0]][number])
    callback = fl.HierFAVG([[0, 1], [2]], 2, participation=participation, evaluate="aggregate")
    seen = Watch()
    fit_clients(callback, Quadratic(1.0, start=[1.0]), clients, 4, seen)
    # in the first cycle both groups train once, in the second the first one twice
    assert seen.weights == pytest.approx([1.0, (2 * 4.0 + 5 * 7.0) / 7, (2 * 4.0 + 5 * 7.0) / 7, 4.0], abs=1e-14)
    traffic = callback.algorithm.traffic
    assert (traffic.edge_models_down, traffic.edge_models_up) == (3, 3)


def test_clients_are_drawn_from_each_group() -> None:
    sampler = parts.GroupSampler([[0, 1, 2, 3, 4], [5], [6, 7]], 2)
    drawn = sampler.draw(8, np.random.default_rng(0), np.array([0, 1, 4, 5, 6]))
    assert len(set(drawn) & {0, 1, 4}) == 2
    assert sorted(set(drawn) - {0, 1, 4}) == [5, 6]
    assert (sampler.cohort_size(8), parts.GroupSampler([[*range(8)], [8]], 0.6).cohort_size(9)) == (5, 4 + 1)


def test_clients_are_scored_at_the_model_of_their_group() -> None:
    # the first region goes to 4 at once. There client 1 has the larger loss, at the server's 0 client 0 has
    clients = clients_that_reach([[4.0], [-1.0]], [1, 1])
    module = Quadratic(1.0, start=[0.0])
    callback = fl.HierFAVG(1, 3, sampler=parts.PowerOfChoice(1, 2))
    fit_quadratic(callback, module, clients, rounds=2)
    assert float(module.w) == -1.0
    assert callback.algorithm.traffic.models_down == 4  # each is scored in both rounds, and has the model then
