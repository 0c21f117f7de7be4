from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.tiny_files import set_up

from fl_lightning.data import WithinClientSplit
from fl_lightning.datamodules import FedDynSyntheticDataModule, FedProxSyntheticDataModule

ALL = WithinClientSplit(val=0.0, test=0.0)


def client_means(data) -> torch.Tensor:
    """Mean input of each client, shape (clients, features)."""
    x = data.source_inputs()
    return torch.stack([x[indices].mean(dim=0) for indices in data.partition.indices])


def test_feddyn_has_twenty_clients_of_200_samples():
    data = set_up(FedDynSyntheticDataModule())
    assert data.client_sizes.tolist() == [200] * 20
    ((x, y), *_) = data.client_batches(0, generator=torch.Generator())
    assert (x.shape, x.dtype, y.dtype) == ((32, 30), torch.float32, torch.int64)
    assert set(np.unique(data.labels)) == {0, 1, 2, 3, 4}


def test_feddyns_test_set_is_a_copy_of_the_training_samples():
    data = set_up(FedDynSyntheticDataModule(gamma3=0.5, eval_batch_size=100_000))
    ((x, y),) = data.test_dataloader()
    assert len(x) == data.client_sizes.sum()
    rows = np.concatenate(data.partition.indices)
    assert torch.equal(x, data.source_inputs()[rows])
    assert y.tolist() == data.labels[rows].tolist()


def test_inputs_have_falling_variances_and_mean_0_where_they_are_the_same():
    x = set_up(FedDynSyntheticDataModule(num_clients=200, same_inputs=True, split=ALL)).source_inputs()
    assert x.mean(dim=0).abs().max() < 0.02
    assert x.var(dim=0).tolist() == pytest.approx([j**-1.2 for j in range(1, 31)], rel=0.05)


def test_gamma2_spreads_the_clients_inputs():
    for gamma2, expected in ((0.0, (1 / 30) ** 0.5), (5.0, (25 + 1 / 30) ** 0.5)):
        data = set_up(FedDynSyntheticDataModule(gamma2=gamma2, num_clients=500, split=ALL))
        # the mean over features is B_i and the mean of 30 unit normals
        assert float(client_means(data).mean(dim=1).std()) == pytest.approx(expected, rel=0.1)


def test_gamma3_spreads_the_clients_sizes():
    sizes = np.log(set_up(FedDynSyntheticDataModule(gamma3=0.5, num_clients=500, split=ALL)).client_sizes)
    assert sizes.mean() == pytest.approx(np.log(200), abs=0.05)
    assert sizes.std() == pytest.approx(0.5, rel=0.05)
    # one of these draws is below 1
    few = set_up(FedDynSyntheticDataModule(gamma3=3.0, seed=58, split=ALL)).client_sizes
    assert (len(few), few.min()) == (20, 1)


def accuracy_of_one_linear_model(data) -> float:
    from sklearn.linear_model import LogisticRegression

    x = data.source_inputs().numpy()
    return LogisticRegression(C=1e3, max_iter=500).fit(x, data.labels).score(x, data.labels)


def test_one_linear_model_fits_all_clients_only_where_they_have_the_same():
    for same, low, high in [(True, 0.97, 1.0), (False, 0.0, 0.6)]:
        data = set_up(FedDynSyntheticDataModule(same_model=same, same_inputs=True, num_clients=5, split=ALL))
        assert low < accuracy_of_one_linear_model(data) <= high


def test_fedprox_holds_out_a_tenth_of_each_client():
    data = set_up(FedProxSyntheticDataModule())
    assert data.partition.num_clients == 30
    assert data.partition.sizes.min() >= 50
    assert data.source_inputs().shape[1] == 60
    assert set(np.unique(data.labels)) == set(range(10))
    test = np.bincount(data.eval_client_ids("test"), minlength=30)
    assert test.tolist() == (data.partition.sizes // 10).tolist()
    assert data.val_dataloader() == []


def test_fedprox_beta_spreads_the_inputs_and_iid_does_not():
    data = set_up(FedProxSyntheticDataModule(0.0, 4.0, num_clients=300))
    assert float(client_means(data).mean(dim=1).std()) == pytest.approx((16 + 1 / 60) ** 0.5, rel=0.15)
    iid = set_up(FedProxSyntheticDataModule(1.0, 1.0, iid=True))
    assert iid.source_inputs().mean(dim=0).abs().max() < 0.1
    # one model on inputs of one distribution gives all clients the same classes
    assert iid.statistics().c_score < 0.5 < 1.2 < data.statistics().c_score


def test_a_seed_gives_the_same_data_everywhere():
    feddyn = FedDynSyntheticDataModule(0.5, 0.5, 0.3, num_clients=4, seed=1)
    fedprox = FedProxSyntheticDataModule(0.5, 0.5, num_clients=4, seed=1)
    for data, sizes, classes, inputs, shown in [
        (feddyn, [221, 255, 220, 135], [520, 270, 762, 110], [0.1176, 2.1016], "1662 samples, gamma1=0.5, g"),
        (fedprox, [158, 332, 155, 54], [0, 115, 3, 157, 2, 82, 54, 138, 116, 32], [2.2669, -0.5267], "699 samples, a"),
    ]:
        assert "(4 clients, " in repr(data)
        data.setup()
        assert data.partition.sizes.tolist() == sizes
        assert np.bincount(data.labels).tolist() == classes
        assert data.source_inputs()[[0, -1], [0, -1]].tolist() == pytest.approx(inputs, abs=1e-4)
        assert f"(4 of 4 clients train, {shown}" in repr(data)
