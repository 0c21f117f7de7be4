"""Clients with a batch of one sample are named before a BatchNorm meets it."""

from __future__ import annotations

import warnings

import pytest
from helpers.stacked import Module, clients_of
from helpers.toys import quiet_trainer
from torch import nn

from fl_lightning import FedAvg, TensorDataModule


@pytest.mark.parametrize(
    ("sizes", "batch_size", "drop_last", "told"),
    [
        ((4, 5, 8), 4, False, True),  # 5 = 4 + 1
        ((4, 5, 8), 4, True, False),
        ((4, 6, 8), 4, False, False),
        ((4, 1), 4, True, True),
        ((4, 1), None, False, True),
        ((4, 2), 1, False, True),
    ],
)
def test_a_batch_of_one_sample_is_told_at_the_start(
    sizes: tuple[int, ...], batch_size: int | None, drop_last: bool, told: bool
) -> None:
    data = TensorDataModule(clients_of((6,), sizes), batch_size=batch_size, drop_last=drop_last)
    trainer = quiet_trainer(max_epochs=1, callbacks=[FedAvg(1, seed=1)])
    module = Module(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            trainer.fit(module, datamodule=data)
        except ValueError as error:  # torch's, if the client was drawn
            assert "more than 1 value" in str(error)
    assert any("`batch_size`" in str(each.message) for each in found) == told
