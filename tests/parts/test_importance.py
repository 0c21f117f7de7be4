"""RADFedi: importance scores (O12), accumulation, draws in proportion to the scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from helpers.algorithms import Net, data
from helpers.begun import federation_of
from helpers.toys import Quadratic, fit_clients, fit_quadratic, quadratic_clients
from torch import Tensor, nn

from fl_lightning import RADFed
from fl_lightning.parts import ImportanceSampler, UniformSampler
from fl_lightning.testing.fits import distance, fit


class Linear(Quadratic):
    """The gradient of a sample is the sample: loss = w mean(x)."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.w * batch[0].mean()


SAMPLES = (torch.tensor([1.0, -1.0, 3.0, 1.0], dtype=torch.float64),)


@pytest.mark.parametrize(
    ("score", "batch_size", "expected"),
    [("sample", 2, 3.0), ("batch", 2, 2.0), ("batch", None, 1.0), ("full", 2, 1.0), ("sum", 2, 4.0)],
)
@pytest.mark.parametrize("initial", ["scores", "uniform"])
def test_o12_scores(score: Any, batch_size: int | None, expected: float, initial: Any) -> None:
    sampler = ImportanceSampler(1, score=score, initial=initial, gamma=None)
    module = Linear(lr=0.0)
    module.unused = nn.Parameter(torch.zeros(2).double())
    fit_clients(RADFed(1, sampler=sampler), module, [SAMPLES], batch_size=batch_size)
    # the score of the start, 1 or the same (the gradient is constant), and that after training; their mean
    first = 1.0 if initial == "uniform" else expected
    assert sampler.scores.tolist() == [pytest.approx((first + expected) / 2 if initial == "scores" else expected)]


def shares(x: Tensor) -> Tensor:
    """Samples weigh 1 and 3, and a batch's loss is their weighted mean, so that a single sample's weight is lost."""
    weights = torch.where(x > 0, 3.0, 1.0)
    return (weights * x).sum() / weights.sum()


class Pair(Quadratic):
    """The gradients of two weights are two functions of the samples."""

    def __init__(self, *gradients: Callable[[Tensor], Tensor]) -> None:
        super().__init__(lr=0.0)
        self.other, self.gradients = nn.Parameter(torch.zeros((), dtype=torch.float64)), gradients

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.w * self.gradients[0](batch[0]) + self.other * self.gradients[1](batch[0])


@pytest.mark.parametrize("gradients", [(shares, torch.mean), (torch.mean, torch.sum)])
def test_scores_of_samples_need_a_mean_over_samples(gradients: Any) -> None:
    def score(kind: Any, module: Pair, samples: Any = SAMPLES) -> None:
        fit_clients(RADFed(1, sampler=ImportanceSampler(1, score=kind)), module, [samples], batch_size=3)

    for kind in ("batch", "full"):
        score(kind, Pair(*gradients))
    # rounding is in proportion to both gradients
    score("sample", Pair(torch.mean, lambda x: 0 * x.sum()), (torch.arange(8).double() / 13,))
    with pytest.raises(ValueError, match=r"ImportanceSampler\(score=\"sample\"\).*class weights"):
        score("sample", Pair(*gradients))


def test_o12_accumulation() -> None:
    # without gamma it is their mean
    for gamma, scores, expected in ((0.9, (2.0, 5.0), 4.7), (None, (2.0, 5.0, 11.0), 6.0)):
        sampler = ImportanceSampler(1, gamma=gamma)
        sampler.begin_fit(federation_of([1]))
        for score in scores:
            sampler.take_scores({0: score})
        assert sampler.scores.tolist() == [pytest.approx(expected, abs=1e-15)]


def test_o12_successive_draws() -> None:
    sampler = ImportanceSampler(2, gamma=0.5, initial="uniform")
    sampler.begin_fit(federation_of([1] * 3))
    sampler.take_scores({0: 9.0, 1: 5.0, 2: 3.0})  # from 1: 5, 3, 2
    rng, count = np.random.default_rng(0), 5000
    drawn = Counter(int(client) for _ in range(count) for client in sampler.draw(3, rng, np.arange(3)))
    # five standard deviations of a frequency near 1/2
    for client, expected in enumerate((0.839285714, 0.675, 0.485714286)):
        assert drawn[client] / count == pytest.approx(expected, abs=5 * 0.0071)


def test_a_score_of_zero_stays_drawable() -> None:
    sampler = ImportanceSampler(3, floor=1e-3)
    sampler.begin_fit(federation_of([1] * 3))
    sampler.take_scores({0: 1.0, 1: 0.0, 2: 0.0})
    assert sampler.probabilities(np.arange(3)).tolist() == pytest.approx([1 / 1.002, 0.001 / 1.002, 0.001 / 1.002])
    assert sorted(sampler.draw(3, np.random.default_rng(0), np.arange(3)).tolist()) == [0, 1, 2]


def test_scores_after_training_move_only_the_clients_that_trained() -> None:
    # One full-batch step with learning rate 1 and a = 1/2 halves the distance to c, so the gradient a (w - c) too.
    clients = quadratic_clients(a=[0.5] * 3, c=[2.0, 4.0, 8.0])
    sampler = ImportanceSampler(1, gamma=0.75)
    module = Quadratic(1.0)
    fit_quadratic(RADFed(1, sampler=sampler, seed=1), module, clients, rounds=1)
    before = [1.0, 4.0, 16.0]  # (a c)^2 at w = 0
    [trained] = [k for k, c in enumerate((2.0, 4.0, 8.0)) if module.seen[-1] == c]
    expected = list(before)
    expected[trained] = 0.25 * before[trained] + 0.75 * before[trained] / 4
    assert sampler.scores.tolist() == pytest.approx(expected, abs=1e-12)


def test_the_score_may_go_by_a_part_of_the_parameters() -> None:
    class Two(Quadratic):
        def __init__(self) -> None:
            super().__init__(lr=0.0)
            self.classifier = nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (self.classifier(torch.ones(1)) * batch[0].mean()).sum() + 100 * self.w

    sampler = ImportanceSampler(1, parameters=["classifier.w", "classifier.b"])
    fit_clients(RADFed(1, sampler=sampler), Two(), [(torch.tensor([2.0, 4.0]),)])
    assert sampler.scores.tolist() == pytest.approx([9.0 + 9.0])  # d/dweight and d/dbias are mean(x) = 3


def test_the_score_travels_with_the_upload() -> None:
    callback = RADFed(1, sampler=ImportanceSampler(2, initial="uniform"))
    fit_quadratic(callback, Quadratic(0.1, [0.0, 0.0]), [(torch.ones(1, 2), torch.ones(1, 2))] * 3, rounds=4)
    assert (callback.algorithm.traffic.values_down, callback.algorithm.traffic.values_up) == (4 * 2 * 2, 4 * 2 * 3)


@pytest.mark.parametrize(("initial", "expected"), [("uniform", 1.0), ("scores", 0.0)])
def test_a_score_that_is_not_finite_changes_nothing_and_counts_as_0_if_it_is_the_first(
    initial: Any, expected: float
) -> None:
    sampler = ImportanceSampler(1, initial=initial)
    sampler.begin_fit(federation_of([1] * 2))
    sampler.take_scores({0: float("nan"), 1: float("inf")})
    assert sampler.scores.tolist() == [expected, expected]
    assert sampler.probabilities(np.arange(2)).tolist() == [0.5, 0.5]


def test_scoring_leaves_training_as_it_is() -> None:
    # all clients train, in an order that the scores decide; the mean over them does not see it
    losses, nets = [], [Net(), Net()]
    for net, sampler in zip(nets, (UniformSampler(6), ImportanceSampler(6)), strict=True):
        trainer = fit(RADFed(1, sampler=sampler, seed=5), net, data(4), 1)
        losses.append(float(trainer.callback_metrics["train_loss_epoch"]))
    assert distance(nets[0].state_dict(), nets[1].state_dict()) < 1e-12
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
