"""Sparse buffers stay where they are, as complex ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.stacked import Module, clients_of, linear
from helpers.toys import quiet_trainer
from torch import Tensor

from fl_lightning import FedAvg, TensorDataModule


class Graph(Module):
    """Mixes features by a matrix."""

    def __init__(self, layout: Callable[[Tensor], Tensor]) -> None:
        super().__init__(linear())
        self.register_buffer("adjacency", layout(torch.eye(6).double().roll(1, 0) + torch.eye(6)))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(((self.adjacency @ batch[0].T).T, batch[1]), batch_idx)


def fitted(layout: Callable[[Tensor], Tensor]) -> Graph:
    module = Graph(layout)
    trainer = quiet_trainer(max_epochs=2, callbacks=[FedAvg(1.0, executor="sequential", seed=1)])
    trainer.fit(module, datamodule=TensorDataModule(clients_of((6,)), batch_size=4))
    return module


@pytest.mark.parametrize("layout", [Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_sparse_csc])
def test_a_sparse_matrix_trains_as_a_dense_one(layout: Callable[[Tensor], Tensor]) -> None:
    expected, module = fitted(lambda a: a), fitted(layout)
    torch.testing.assert_close(module.layers[0].weight, expected.layers[0].weight, atol=1e-12, rtol=0)
    assert torch.equal(module.adjacency.to_dense(), expected.adjacency)
