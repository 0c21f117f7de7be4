from __future__ import annotations

import numpy as np
import pytest
import torch

from fl_lightning.data import FederatedSplit, apply_statistics, fit_statistics
from fl_lightning.data.inputs import standardized
from fl_lightning.partitioners import Partition


@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_statistics_are_per_feature_and_of_the_population(chunk, monkeypatch):
    monkeypatch.setattr("fl_lightning.data.inputs._CHUNK", chunk)
    mean, std = fit_statistics(torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 40.0]]))
    # variances by hand: ((1-3)^2 + 0 + (5-3)^2) / 3 = 8/3 and (100 + 100 + 400) / 3 = 200
    assert mean.tolist() == [3.0, 20.0]
    assert torch.allclose(std, torch.tensor([8 / 3, 200.0], dtype=torch.float64).sqrt(), rtol=1e-15)


def test_statistics_of_images_are_per_channel():
    x = torch.zeros(2, 3, 1, 2)
    x[:, 0] = torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])
    x[:, 1] = 7.0
    mean, std = fit_statistics(x)
    assert mean.tolist() == [2.5, 7.0, 0.0]
    assert std.tolist() == [1.25**0.5, 1.0, 1.0]  # a constant channel is divided by 1
    standardized = apply_statistics(x, mean, std)
    assert torch.allclose(standardized[:, 0], (x[:, 0] - 2.5) / 1.25**0.5)
    assert not standardized[:, 1:].any()


def test_statistics_are_accumulated_in_double_precision():
    # float32 accumulation loses the spread around 10,000 and, past 2^24, whole samples
    x = torch.tensor([10_000.0, 10_001.0]).repeat(3_000_000).unsqueeze(1)
    mean, std = fit_statistics(x)
    assert mean.dtype == std.dtype == torch.float64
    assert mean.item() == 10_000.5
    assert std.item() == 0.5


def standardize(x, how, train, evaluation, features=slice(None)):
    val, test = [*evaluation, {}, {}][:2]
    return standardized(x, how, FederatedSplit(train, val, test, Partition(tuple(train.values()))), features)[0]


# Samples 0-1 are client 0's, 2-3 client 1's, 4-5 client 2's.
X = torch.tensor([[0.0], [2.0], [10.0], [14.0], [100.0], [100.0]])


def test_global_statistics_come_from_training_clients_only():
    out = standardize(X, "global", {0: np.array([0, 1]), 1: np.array([2, 3])}, [{2: np.array([4, 5])}])
    # mean 6.5, variance (6.5^2 + 4.5^2 + 3.5^2 + 7.5^2) / 4 = 32.75
    expected = (X.double() - 6.5) / 32.75**0.5
    assert torch.allclose(out, expected.float(), rtol=1e-6)
    assert X[0] == 0.0  # the samples given stay as they are


def test_local_statistics_are_each_clients_own():
    out = standardize(
        X, "local", {0: np.array([0, 1])}, [{1: np.array([2, 3])}, {2: np.array([4, 5]), 3: np.arange(0)}]
    )
    assert out.flatten().tolist() == [-1.0, 1.0, -1.0, 1.0, 0.0, 0.0]


def test_local_statistics_of_a_client_with_evaluation_samples_are_its_training_samples():
    out = standardize(X, "local", {0: np.array([0, 1])}, [{0: np.array([2])}, {-1: np.array([3, 4, 5])}])
    assert out[:3].flatten().tolist() == [-1.0, 1.0, 9.0]  # (10 - 1) / 1
    # a set of no client by itself: 14, 100, 100 have mean 214/3 and standard deviation 86 sqrt(2) / 3
    assert out[3:].flatten().tolist() == pytest.approx([-(2**0.5), 0.5**0.5, 0.5**0.5])


def test_other_features_stay_as_they_are():
    x = torch.cat([X, X], dim=1)
    train = {0: np.array([0, 1])}
    for how in ("global", "local"):
        out = standardize(x, how, train, [], slice(0, 1))
        assert out[:2, 0].tolist() == [-1.0, 1.0]
        assert torch.equal(out[:, 1], x[:, 1])
        assert torch.equal(standardize(x, how, train, [], slice(0, 0)), x)


def test_a_constant_feature_becomes_zero():
    for dtype, value, n in [
        (torch.float64, 0.2, 3),
        (torch.float64, 1e6 / 3, 1001),
        (torch.float32, -0.1, 10),
        (torch.float32, 3.0, 1),
        (torch.float16, 1e-8, 1001),
    ]:
        x = torch.full((n, 1), value, dtype=dtype)
        mean, std = fit_statistics(x)
        assert std.item() == 1.0  # not the rounding error of the mean, which would make huge numbers of nothing
        assert apply_statistics(x, mean, std).dtype == dtype
        assert abs(apply_statistics(x, mean, std)).max() <= abs(value) * 1e-15
        # a test sample is moved by the mean alone
        assert apply_statistics(x + 1, mean, std).double().sub(1).abs().max() <= 2 * torch.finfo(dtype).eps * (
            1 + abs(value)
        )


def test_a_small_spread_is_a_spread():
    for values, std in [
        (torch.tensor([2e6, 2e6 + 1]), 0.5),  # whole numbers near the precision of float32
        (torch.tensor([1e-30, 3e-30], dtype=torch.float64), 1e-30),  # small, but not beside its mean
        (torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64), 5e-13),
        (torch.tensor([-1e-20, 1e-20], dtype=torch.float64), 1e-20),
        (torch.tensor([1, 5]), 2.0),
        # up to 4 units in the last place of float64, and up to one of float32, are rounding
        (torch.tensor([1.0, 1 + 2**-50], dtype=torch.float64), 1.0),
        (torch.tensor([1.0, 1 + 5 * 2**-52], dtype=torch.float64), 5 * 2**-53),
        (torch.tensor([1.0, 1 + 2**-23]), 1.0),
        (torch.tensor([1.0, 1 + 2**-22]), 2**-23),
    ]:
        assert fit_statistics(values.unsqueeze(1))[1].item() == pytest.approx(std, rel=1e-3)
