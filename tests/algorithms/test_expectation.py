"""Where clients' training is affine in the weights, redistribution changes no expectation; elsewhere it does.

Every sequence of cohorts, in every order, is played once and counts alike: these are expectations, not estimates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import Tensor

from fl_lightning import AggregationCallback, FedAvg, RADFed
from fl_lightning.parts import ClientResult, ClientSampler, Federation, Task

LocalMap = Callable[[Tensor], Tensor]


class Told(ClientSampler):
    """Draws the cohorts that it is told, in their order: the first client meets the first circulating model."""

    draws_in_random_order = True

    def __init__(self, cohorts: tuple[tuple[int, ...], ...]) -> None:
        self.cohorts = iter(cohorts)
        self.size = len(cohorts[0])

    def cohort_size(self, num_clients: int) -> int:
        return self.size

    def draw(self, num_clients: int, rng: np.random.Generator, available: np.ndarray | None = None) -> np.ndarray:
        return np.array(next(self.cohorts))


def play(callback: AggregationCallback, maps: list[LocalMap], start: list[float], rounds: int) -> Iterator[list[float]]:
    """Yield the model that the user sees after each round, when client k's training takes w to ``maps[k](w)``."""
    algorithm, model = callback.algorithm, torch.tensor(start, dtype=torch.float64)
    algorithm.begin_fit(Federation(np.ones(len(maps)), model, [len(start)], seed=0), fresh=True)

    def train(tasks: Sequence[Task]) -> Iterator[ClientResult]:
        for task in tasks:
            received = algorithm.start(task)
            yield ClientResult(task, received, maps[task.client](received), num_steps=1)

    for number in range(rounds):
        algorithm.start_round(number)
        algorithm.end_round(shown := algorithm.play(train))
        yield shown.tolist()


def outcomes(
    make: Callable[..., AggregationCallback], maps: list[LocalMap], clients: int, start: list[float], rounds: int
) -> np.ndarray:
    """Return the models of all sequences of cohorts, shape (sequences, rounds, dimensions)."""
    cohorts = list(permutations(range(len(maps)), clients))
    sequences = product(cohorts, repeat=rounds)
    return np.array([list(play(make(sampler=Told(sequence)), maps, start, rounds)) for sequence in sequences])


def affine(matrix: list[list[float]], shift: list[float]) -> LocalMap:
    a, b = (torch.tensor(values, dtype=torch.float64) for values in (matrix, shift))
    return lambda w: a @ w + b


def radfed(redistributions: int) -> Callable[..., AggregationCallback]:
    return lambda **options: RADFed(redistributions, **options)


def fedavg(**options: Told) -> AggregationCallback:
    return FedAvg(weighting="uniform", **options)


# the mean matrix is ((1/4, 1/4), (1/6, 1/4)), the mean shift (4/3, 1/3)
THREE = [
    affine([[0.5, 0.0], [0.0, 0.25]], [1.0, 0.0]),
    affine([[0.0, 0.5], [0.5, 0.0]], [0.0, 2.0]),
    affine([[0.25, 0.25], [0.0, 0.5]], [3.0, -1.0]),
]


@pytest.mark.parametrize(
    ("make", "clients"), [(radfed(2), 2), (radfed(3), 2), pytest.param(fedavg, 2, marks=pytest.mark.long)]
)
def test_affine_training_has_one_expectation_for_every_s(
    make: Callable[..., AggregationCallback], clients: int
) -> None:
    # E w_{t+1} = mean matrix E w_t + mean shift, from (0, 0): every client is as likely to meet any of the models
    expected = [(4 / 3, 1 / 3), (7 / 4, 23 / 36), (139 / 72, 113 / 144)]
    found = outcomes(make, THREE, clients, [0.0, 0.0], rounds=3).mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_the_same_expectation_is_not_the_same_path() -> None:
    # from 0, w -> .9 w and w -> .5 w + .5: models that stay reach 0 and .75, models that swap .5 and .45
    maps = [affine([[0.9]], [0.0]), affine([[0.5]], [0.5])]
    found = np.sort(outcomes(radfed(2), maps, 2, [0.0], rounds=2)[:, -1, 0])
    np.testing.assert_allclose(found, [0.375, 0.375, 0.475, 0.475], rtol=1e-12)
    np.testing.assert_allclose(outcomes(fedavg, maps, 2, [0.0], rounds=2)[:, -1, 0], [0.425] * 4, rtol=1e-12)
