"""Rounds without clients, trainings that fail, and parameters without gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from helpers.begun import begun
from helpers.toys import Quadratic, fit_quadratic, quadratic_clients

import fl_lightning as fl
from fl_lightning import parts

CLOCK = parts.VirtualClock([1, 2, 4])
SAMPLERS = [parts.ImportanceSampler(1, initial="uniform"), parts.ActiveSampler(1), parts.TierSampler(1, CLOCK)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_of_nobody_nobody_is_drawn(sampler: parts.ClientSampler) -> None:
    begun(sampler=sampler)
    assert sampler.draw(3, np.random.default_rng(0), np.array([], dtype=np.int64)).tolist() == []


def test_a_utility_that_is_not_finite_changes_nothing() -> None:
    begun(sampler=(oort := parts.Oort(1, CLOCK))).run.begin_round(4)
    oort.take_scores({0: 2.0, 1: math.nan})
    np.testing.assert_equal(oort.utilities, [2.0, math.nan, math.nan])
    assert (oort.since.tolist(), oort.gained) == ([5.0, 1.0, 1.0], [2.0])


def test_clusters_stay_in_a_round_without_clients() -> None:
    callback = fl.IFCA(2, 1.0, participation=fl.Participation(available=[[0, 1, 2], []].__getitem__), seed=1)
    fit_quadratic(callback, Quadratic(0.1, 1.0), quadratic_clients([1.0] * 3, [5.0] * 3), 2)
    assert callback.algorithm.server.moves == 1


def failed(callback: fl.AggregationCallback, *optima: float) -> parts.Algorithm:
    """Return the algorithm after a round in which clients without an optimum return NaN."""
    with pytest.warns(UserWarning, match="NaN"):
        fit_quadratic(callback, Quadratic(0.1), quadratic_clients([1.0] * len(optima), [*optima]), 1)
    return callback.algorithm


def test_a_training_that_fails_leaves_nothing() -> None:
    # the first client's gradient at 0 is -1, of which the momentum takes a tenth
    momenta = [failed(fl.Mime(1.0), each, math.nan).objective.momentum.tolist() for each in (1.0, math.nan)]
    assert momenta == [[pytest.approx(-0.1)], [0.0]]
    own = failed(fl.Ditto(1.0, 1.0), 1.0, math.nan).schedule.own
    assert [own.get(client) is None for client in (0, 1)] == [False, True]
    assert list(failed(fl.HierFAVG(2, 2, 1.0), 1.0, math.nan).schedule.models) == [0]


def test_where_the_gradient_is_0_nothing_is_uphill() -> None:
    callback = fl.FedSAM(0.5, 1.0, invalid_updates="raise")
    assert float(fit_quadratic(callback, Quadratic(0.1, 3.0), quadratic_clients([1.0], [3.0]), 1)) == 3.0


class Extra(Quadratic):
    def __init__(self) -> None:
        super().__init__(0.1, 1.0)
        self.extra = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))


WALKS = [fl.FedSAM(0.5, 1.0), fl.FedALA("*", 1.0), fl.Federated(1.0, schedule=parts.FineTuning(lr=0.1))]


@pytest.mark.parametrize("callback", WALKS, ids=repr)
def test_parameters_without_gradients_stay_and_change_nothing(callback: fl.AggregationCallback) -> None:
    modules = Quadratic(0.1, 1.0), Extra()
    plain, other = (fit_quadratic(callback, each, quadratic_clients([1.0, 2.0], [3.0, 4.0]), 2) for each in modules)
    assert float(other) == pytest.approx(float(plain), rel=1e-14)
    assert modules[1].extra.tolist() == [1.0, 1.0]
