"""Which circulating model a client meets, and who is a straggler, does not depend on the order of a sampler's draws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from helpers.begun import federation_of
from helpers.rounds import begin_round
from scipy.stats import chisquare

from fl_lightning import BernoulliSampler, FedAvg, ImportanceSampler, Participation, RADFed, UniformSampler
from fl_lightning.parts import ClientSampler, Run, Task

ROUNDS = 1500
SCORES = {0: 100.0, 1: 1.0, 2: 1.0, 3: 1.0}


class Sorted(UniformSampler):
    """Draws uniformly, and returns the smallest client first."""

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        return np.sort(super().draw(num_clients, rng, available))


def planned(
    callback: RADFed | FedAvg, num_clients: int, full_work: int = 1, scores: Mapping[int, float] = SCORES
) -> list[list[Task]]:
    """Return the tasks of many rounds in which nobody trains."""
    algorithm = callback.algorithm
    algorithm.run = Run.begin(algorithm, federation_of([1] * num_clients, seed=1))
    if isinstance(callback.sampler, ImportanceSampler):
        callback.sampler.take_scores(scores)
    rounds = []
    for round_index in range(ROUNDS):
        begin_round(algorithm, round_index, full_work)
        rounds.append(list(algorithm.tasks))
    return rounds


def orders(rounds: Sequence[Sequence[Task]]) -> Counter[tuple[int, ...]]:
    """Count the clients of rounds in the order of the models that they meet."""
    return Counter(tuple(task.client for task in sorted(tasks, key=lambda task: task.slot)) for tasks in rounds)


def test_models_and_clients_meet_as_in_algorithm_1() -> None:
    # two clients are drawn by p = (.5, .3, .2), then the models are given out at random: half of a cohort's chance to
    # each order, .514285714, .325 and .160714286 by cohort
    cohorts = {(0, 1): 0.514285714, (0, 2): 0.325, (1, 2): 0.160714286}
    law = {order: chance / 2 for pair, chance in cohorts.items() for order in (pair, pair[::-1])}
    counts = orders(planned(RADFed(3, sampler=ImportanceSampler(2, gamma=0.0)), 3, scores={0: 0.5, 1: 0.3, 2: 0.2}))
    assert set(counts) == set(law)  # no order is left out, as it would be if models were given out by client
    assert chisquare([counts[order] for order in law], [ROUNDS * law[order] for order in law]).pvalue > 1e-3


@pytest.mark.parametrize("sampler", [Sorted(1.0), BernoulliSampler(1.0), ImportanceSampler(1.0, initial="uniform")])
def test_everybody_is_a_straggler_alike(sampler: ClientSampler) -> None:
    callback = FedAvg(sampler=sampler, participation=Participation(stragglers=0.5), local_epochs=2)
    rounds = planned(callback, 4, full_work=2)
    stragglers = Counter(task.client for tasks in rounds for task in tasks if task.work == 1)
    # two of four in each round: 750 each, with a standard deviation of sqrt(1500 / 4) = 19
    assert all(abs(stragglers[client] - ROUNDS / 2) < 5 * 19 for client in range(4))
