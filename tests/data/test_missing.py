"""Inputs that are NaN or infinite: named before training, or filled on request."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.tiny_files import set_up
from torch.utils.data import TensorDataset

from fl_lightning.data import FederatedDataModule, Source, TensorDataModule, WithinClientSplit
from fl_lightning.partitioners import ExplicitPartitioner

NAN, INF = float("nan"), float("inf")


def rows(*values: tuple[float, float], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(values, dtype=dtype), torch.zeros(len(values), dtype=torch.long)


def ready(*clients: tuple[torch.Tensor, torch.Tensor], **options: Any) -> TensorDataModule:
    return set_up(TensorDataModule(clients, batch_size=None, shuffle=False, **options))


def inputs(data: FederatedDataModule, client: int) -> list[list[float]]:
    generator = torch.Generator()
    return next(iter(data.client_batches(client, generator=generator)))[0].tolist()


def test_the_mean_of_all_training_clients_stands_for_nan() -> None:
    data = ready(rows((1.0, NAN), (3.0, 2.0**24)), rows((NAN, 1.0), (2.0, 1.0)), test=rows((NAN, NAN)), impute="global")
    # means by hand: (1 + 3 + 2) / 3, and (2^24 + 1 + 1) / 3, which single precision would make 2^24 / 3
    assert inputs(data, 0) == [[1.0, 5592406.0], [3.0, 2.0**24]]
    assert inputs(data, 1) == [[2.0, 1.0], [2.0, 1.0]]
    assert next(iter(data.test_dataloader()))[0].tolist() == [[2.0, 5592406.0]]


def test_a_clients_own_mean_stands_for_nan() -> None:
    held_out = {"val": [rows((NAN, NAN)), None, rows((NAN, 3.0), (7.0, NAN), (9.0, INF))], "test": [rows((NAN, NAN))]}
    data = ready(rows((1.0, NAN), (3.0, 4.0)), rows((NAN, 8.0)), **held_out, impute="local")
    # client 1 never observed column 0, so that the mean of all, 2, stands there
    assert inputs(data, 0) == [[1.0, 4.0], [3.0, 4.0]]
    assert inputs(data, 1) == [[2.0, 8.0]]
    # client 2 evaluates only, by its own means of finite values
    [(val, _)], [(test, _)] = data.val_dataloader(), data.test_dataloader()
    assert (val.tolist(), test.tolist()) == ([[2.0, 4.0], [8.0, 3.0], [7.0, 3.0], [9.0, INF]], [[2.0, 4.0]])


def test_nan_is_filled_before_standardisation_and_the_users_tensors_stay() -> None:
    client = rows((1.0, NAN), (3.0, 4.0), (NAN, 8.0))
    data = ready(client, standardize="global", impute="global")
    # columns 1, 3, 2 and 6, 4, 8 have mean 2 and 6 and variance 2/3 and 8/3
    expected = torch.tensor([[-1.0, 0.0], [1.0, -2.0], [0.0, 2.0]]) / torch.tensor([2 / 3, 8 / 3]).sqrt()
    assert torch.allclose(torch.tensor(inputs(data, 0)), expected)
    assert torch.isnan(client[0]).sum() == 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_type_stays(dtype: torch.dtype) -> None:
    data = ready(rows((1.0, NAN), (3.0, 4.0), dtype=dtype), impute="global")
    assert data.source_inputs().dtype == dtype
    assert data.source_inputs().tolist() == [[1.0, 4.0], [3.0, 4.0]]


class Images(FederatedDataModule):
    standardized_features = slice(1, None)

    def load(self) -> Source:
        x = torch.zeros(6, 3, 3, 3)
        x[1, 2, 0, :2] = NAN
        x[5] = NAN  # a sample of no client
        return Source(TensorDataset(x, torch.zeros(6)), None)


def test_channels_count_as_columns_and_samples_of_nobody_do_not_count() -> None:
    clients = ExplicitPartitioner([[0], [1, 2], [3, 4]])
    with pytest.raises(ValueError, match=r"got 2 NaN or infinite values in column 2\. A single one"):
        Images(clients, split=WithinClientSplit(0.0, 0.0), standardize="global").setup()
    Images(ExplicitPartitioner([[0], [2, 3], [4]]), split=WithinClientSplit(0.0, 0.0), standardize="global").setup()
