"""The mathematics by itself: aggregation, server, sampling, redistribution."""

from __future__ import annotations

import torch

from fl_lightning.parts import BernoulliSampler, ClientResult, Task, UniformSampler, WeightedMean


def result(num_samples: int, value: float) -> ClientResult:
    return ClientResult(Task(0, 0, num_samples), torch.zeros(0), torch.tensor([value]), 1)


def test_aggregation_accumulates_in_float64() -> None:
    # in float32, adding 1 to 2^24 changes nothing
    mean = WeightedMean().merge(torch.zeros(0), [result(1, 2.0**24), result(1, 1.0), result(1, 1.0)])
    assert mean is not None
    assert (mean.dtype, mean.item()) == (torch.float64, (2.0**24 + 2) / 3)


def test_aggregation_of_nothing_is_none() -> None:
    assert WeightedMean().merge(torch.zeros(1), []) is None
    assert WeightedMean().merge(torch.zeros(1), [result(0, 5.0)]) is None


def test_cohort_size_rounds_down() -> None:
    sizes = [(0.1, 60, 6), (0.1, 98, 9), (0.1, 5, 1), (0.3, 10, 3), (0.29, 100, 29), (1.0, 7, 7), (4, 7, 4)]
    for share, clients, expected in sizes:
        assert UniformSampler(share).cohort_size(clients) == expected
    assert UniformSampler(0.4, "ceil").cohort_size(6) == 3


def test_a_cohort_is_expected_to_have_a_client() -> None:
    assert [BernoulliSampler(0.1).cohort_size(clients) for clients in (3, 14, 16)] == [1, 1, 2]
