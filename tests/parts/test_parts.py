"""The mathematics by itself: aggregation, server, sampling, redistribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_lightning.parts.aggregations.means import WeightedMean
from fl_lightning.parts.federation import Federation
from fl_lightning.parts.layout import Layout
from fl_lightning.parts.messages import ClientResult, Task
from fl_lightning.parts.samplers.uniform import BernoulliSampler, UniformSampler
from fl_lightning.parts.schedules.redistribution import Redistribution

VALUES = st.floats(-1e6, 1e6, width=32)
RESULTS = st.lists(st.tuples(st.integers(1, 1000), st.tuples(VALUES, VALUES)), min_size=1, max_size=20)


def result(num_samples: int, vector: tuple[float, ...] | torch.Tensor, slot: int = 0) -> ClientResult:
    return ClientResult(Task(slot, slot, num_samples), torch.zeros(0), torch.as_tensor(vector, dtype=torch.float32), 1)


def mean_of(results: list[tuple[int, tuple[float, ...]]], weighting: str = "samples") -> torch.Tensor:
    mean = WeightedMean(weighting).merge(torch.zeros(0), [result(size, vector) for size, vector in results])
    assert mean is not None
    return mean


@settings(max_examples=25, deadline=None)
@given(RESULTS, st.randoms(use_true_random=False))
def test_aggregation_does_not_depend_on_the_order(results: list, random) -> None:
    shuffled = list(results)
    random.shuffle(shuffled)
    torch.testing.assert_close(mean_of(results), mean_of(shuffled), rtol=1e-12, atol=1e-9)


def test_aggregation_accumulates_in_float64() -> None:
    # in float32, adding 1 to 2^24 changes nothing
    mean = mean_of([(1, (2.0**24,)), (1, (1.0,)), (1, (1.0,))])
    assert mean.dtype == torch.float64
    assert mean.item() == (2.0**24 + 2) / 3


def test_aggregation_of_nothing_is_none() -> None:
    assert WeightedMean().merge(torch.zeros(1), []) is None
    assert WeightedMean().merge(torch.zeros(1), [result(0, (5.0,))]) is None


def test_cohort_size_rounds_down() -> None:
    sizes = [(0.1, 60, 6), (0.1, 98, 9), (0.1, 5, 1), (0.3, 10, 3), (0.29, 100, 29), (1.0, 7, 7), (4, 7, 4)]
    for share, clients, expected in sizes:
        assert UniformSampler(share).cohort_size(clients) == expected
    assert UniformSampler(0.4, "ceil").cohort_size(6) == 3


def test_redistribution_refuses_what_does_not_suit_the_cycle_of_a_checkpoint() -> None:
    schedule = Redistribution(3)
    schedule.begin_fit(Federation(np.array([4, 4]), torch.zeros(2), Layout.of_parameters(2)))
    cycle: dict[str, Any] = {"position": 2, "num_models": 2, "trainings": {0: 2, 1: 2}, "results": {}, "length": 3}
    with pytest.raises(ValueError, match="redistributions"):
        schedule.load_state_dict({**cycle, "length": 5})
    schedule.load_state_dict(cycle)
    schedule.slots(2, 2, np.random.default_rng(0))
    with pytest.raises(ValueError, match="clients_per_round"):
        schedule.slots(3, 3, np.random.default_rng(0))


def test_a_cohort_is_expected_to_have_a_client() -> None:
    assert [BernoulliSampler(0.1).cohort_size(clients) for clients in (3, 14, 16)] == [1, 1, 2]


def test_a_models_tensors_by_name() -> None:
    shapes = torch.Size([2]), torch.Size([]), torch.Size([1, 3])
    federation = Federation(np.ones(2), torch.arange(6.0), Layout(("a", "b", "c"), shapes, 2, (32, 32, 32)))
    tensors = federation.tensors(torch.arange(6.0))
    expected = {"a": [0.0, 1.0], "b": 2.0, "c": [[3.0, 4.0, 5.0]]}
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == expected
    assert list(federation.tensors(torch.arange(3.0))) == ["a", "b"]
