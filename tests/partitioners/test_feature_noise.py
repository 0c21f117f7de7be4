from __future__ import annotations

import numpy as np
import pytest
import torch

from fl_lightning.partitioners import IIDPartitioner, Partition, add_feature_noise

PARTITION = IIDPartitioner(5)(np.zeros(20_000, dtype=int))


def test_noise_grows_with_the_client() -> None:
    x = torch.full((20_000, 3, 2), 7.0)
    noise = add_feature_noise(x, PARTITION, level=0.4) - x
    stds = [float(noise[torch.from_numpy(indices)].std()) for indices in PARTITION.indices]

    # 0.4 i / 4, of 24,000 draws each
    assert stds[0] == 0.0
    assert stds[1:] == pytest.approx([0.1, 0.2, 0.3, 0.4], rel=0.03)
    assert (x == 7.0).all()


def test_noise_does_not_depend_on_other_clients_or_the_order_of_the_data_set() -> None:
    x = torch.zeros(6, 2)
    first = add_feature_noise(x, Partition((np.array([0, 1]), np.array([2, 3]), np.array([4, 5]))), 1.0, seed=3)
    second = add_feature_noise(x, Partition((np.array([0]), np.array([4, 5]), np.array([1, 2]))), 1.0, seed=3)

    assert first[2:4].tolist() == second[4:6].tolist()
    # the same from version to version
    assert first[2:4].flatten().tolist() == pytest.approx([0.3299, -0.2138, -0.5735, -0.2155], abs=1e-4)
    assert first[4:6].tolist() == second[1:3].tolist()
    assert second[3].tolist() == [0.0, 0.0]


def test_a_single_client_and_a_level_of_0_have_no_noise() -> None:
    x = torch.arange(4.0)

    assert add_feature_noise(x, Partition((np.arange(4),)), level=1.0).tolist() == x.tolist()
    assert add_feature_noise(x[:1], Partition((np.array([0]),)), level=1.0).tolist() == [0.0]
    assert add_feature_noise(x, Partition((np.array([0]), np.array([1]))), level=0.0).tolist() == x.tolist()
